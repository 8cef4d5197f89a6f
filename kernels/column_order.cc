#include "kernels/column_order.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/little_endian.h"

namespace nibble::kernels {

absl::StatusOr<std::vector<int32_t>> ColumnOrder(const WeightView& weight) {
  std::vector<int32_t> order;
  if (weight.g_idx == nullptr) return order;
  const auto group_of = [&weight](int32_t column) {
    return static_cast<int32_t>(Load32(weight.g_idx + 4 * int64_t{column}));
  };
  order.resize(static_cast<size_t>(weight.k));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return group_of(a) < group_of(b);
  });
  for (int64_t c = 0; c < weight.k; ++c) {
    const int64_t expected = c / weight.Group();
    const int64_t actual = group_of(order[c]);
    if (actual != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", std::string(weight.name), "' (", DisplayName(weight),
          "): g_idx gives group ", std::min(expected, actual),
          actual < expected ? " more" : " fewer", " than ", weight.Group(),
          " columns"));
    }
  }
  if (std::is_sorted(order.begin(), order.end())) order.clear();
  return order;
}

}  // namespace nibble::kernels
