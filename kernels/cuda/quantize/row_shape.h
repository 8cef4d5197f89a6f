// How a row is spread over the threads of a CTA. No CUDA in here.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// Up to max_threads threads, each with `chunks` runs of eight values. A value,
// immutable.
struct RowShape {
  int chunks = 0;
  int max_threads = 0;

  constexpr int64_t MaxK() const { return int64_t{8} * chunks * max_threads; }
};

// By rising k.
inline constexpr RowShape kRowShapes[] = {
    {4, 128}, {4, 512}, {8, 512}, {8, 1024}};
inline constexpr int kNumRowShapes = 4;

// The first that holds rows of k, 0 <= k <= the MaxK of the last.
constexpr int RowShapeFor(int64_t k) {
  int shape = 0;
  while (kRowShapes[shape].MaxK() < k) ++shape;
  return shape;
}

}  // namespace nibble::kernels::cuda
