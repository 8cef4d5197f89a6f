// How a row is spread over the threads of a CTA. No CUDA in here.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// Up to max_threads threads, each with `chunks` runs of eight values. Without
// stages a CTA takes one row; with them it walks through rows, so many of which
// are on their way to shared memory.
struct RowShape {
  int chunks = 0;
  int max_threads = 0;
  int stages = 0;

  constexpr int64_t MaxK() const { return int64_t{8} * chunks * max_threads; }
};

// Those without stages by rising k.
inline constexpr RowShape kRowShapes[] = {
    {4, 512, 0}, {8, 512, 0}, {8, 1024, 0}, {4, 512, 6}};
inline constexpr int kNumRowShapes = 4;
inline constexpr int kWalkingShape = 3;

// The first without stages that holds rows of k, 0 <= k <= MaxK of the last.
constexpr int RowShapeFor(int64_t k) {
  int shape = 0;
  while (kRowShapes[shape].MaxK() < k) ++shape;
  return shape;
}

}  // namespace nibble::kernels::cuda
