// How rows are spread over threads and CTAs. No CUDA in here.
#pragma once

#include <cstdint>

namespace nibble::kernels::cuda {

// A row has up to max_threads threads, each with `chunks` runs of eight values.
// What is read goes to registers (stages 0: one row a CTA), or by asynchronous
// copies to shared memory: of one row a CTA (1), or of the next `stages` rows
// of a CTA that walks through many.
struct RowShape {
  int chunks = 0;
  int max_threads = 0;
  int stages = 0;

  constexpr int64_t MaxK() const { return int64_t{8} * chunks * max_threads; }
};

inline constexpr RowShape kRowShapes[] = {
    {2, 512, 0}, {4, 512, 0}, {8, 512, 0}, {8, 1024, 0}, {2, 512, 1},
    {4, 512, 1}, {2, 512, 2}, {4, 512, 2}, {2, 512, 3}};
inline constexpr int kNumRowShapes = 9;

}  // namespace nibble::kernels::cuda
