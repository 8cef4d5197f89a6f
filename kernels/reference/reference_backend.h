// The reference operations as a backend: the oracle of whole models, and
// --device=reference.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace nibble::kernels {

struct ReferenceOptions {
  int threads = 1;  // that share the rows of a weight matrix, >= 1
};

// Host memory, FP32 weights, activations and KV pages; never optimised.
std::unique_ptr<Backend> MakeReferenceBackend(
    const ReferenceOptions& options = {});

}  // namespace nibble::kernels
