// What must be done once for a kernel on a device before it is launched.
#pragma once

namespace nibble::kernels::cuda {

// What is known of a kernel on a device. By value.
struct KernelTraits {
  // Its code waits for the kernels ahead of it, so that it may be launched
  // before they have ended (programmatic dependent launch).
  bool may_overlap = false;
};

// Lets `function`, a __global__ function, have as much dynamic shared memory
// as a CTA can have on the device of this index, which must be current; asks
// only once for each pair. Fatal where this build holds no code for the device.
// Thread-safe.
KernelTraits PrepareKernel(const void* function, int device);

// How many clusters of so many CTAs run at the same time on the device of this
// index, which must be current, when each CTA has all the shared memory that
// `function`, a prepared kernel, lets it have, and so an SM to itself. GPCs
// differ in size, so that this is fewer than the SMs would do for. Asks only
// once for each device and number of CTAs. Thread-safe.
int MostClusters(const void* function, int device, int ctas);

}  // namespace nibble::kernels::cuda
