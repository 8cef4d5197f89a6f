#include "kernels/cuda/linear/inst/w4a8_kernels.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "base/check.h"

namespace nibble::kernels::cuda {
namespace {

// In the order of kW4a8Formats.
using Table = std::array<std::vector<const void*>, std::size(kW4a8Formats)>;

Table MakeTable() {
  return {W4a8Rerounded128Kernels(),  W4a8Rerounded32Kernels(),
          W4a8Scale128Kernels(),      W4a8Scale32Kernels(),
          W4a8Min128Kernels(),        W4a8Min32Kernels(),
          W4a8SubScaleKernels(),      W4a8SubScaleSumsKernels(),
          W4a8SubScaleFloatKernels(), W4a8E4m3Group128Kernels(),
          W4a8E4m3Group32Kernels()};
}

}  // namespace

const void* W4a8KernelOf(W4a8Format format, int columns) {
  static const Table table = MakeTable();
  const auto* const at =
      std::find(std::begin(kW4a8Formats), std::end(kW4a8Formats), format);
  NIBBLE_CHECK(at != std::end(kW4a8Formats));
  const auto& kernels =
      table[static_cast<size_t>(at - std::begin(kW4a8Formats))];
  const std::span<const int> all = W4a8Columns(format);
  const auto of = std::find(all.begin(), all.end(), columns);
  NIBBLE_CHECK(of != all.end());
  NIBBLE_CHECK_EQ(kernels.size(), all.size());
  return kernels[static_cast<size_t>(of - all.begin())];
}

}  // namespace nibble::kernels::cuda
