#include "kernels/linear.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace nibble::kernels {

std::string LaunchSpec::ToString() const {
  std::string text =
      absl::StrCat(path == LinearPath::kNarrow ? "narrow:" : "wide:", kernel);
  if (tile_m != 0 || tile_n != 0) {
    absl::StrAppend(&text, " tile=", tile_m, "x", tile_n);
  }
  if (split_k != 1) absl::StrAppend(&text, " split_k=", split_k);
  if (stages != 1) absl::StrAppend(&text, " stages=", stages);
  return text;
}

LinearPlan::LinearPlan(std::vector<Bucket> buckets)
    : buckets_(std::move(buckets)) {
  int64_t below = 0;
  for (const Bucket& bucket : buckets_) {
    NIBBLE_CHECK_GT(bucket.max_rows, below);
    below = bucket.max_rows;
  }
}

const LaunchSpec& LinearPlan::ForRows(int64_t rows) const {
  NIBBLE_CHECK_GE(rows, 1);
  NIBBLE_CHECK(!buckets_.empty());
  const auto bucket = std::find_if(
      buckets_.begin(), buckets_.end() - 1,
      [rows](const Bucket& candidate) { return rows <= candidate.max_rows; });
  return bucket->spec;
}

std::string LinearPlan::ToString() const {
  std::string text;
  int64_t first = 1;
  for (const Bucket& bucket : buckets_) {
    if (!text.empty()) absl::StrAppend(&text, " | ");
    absl::StrAppend(&text, first, "..");
    if (&bucket != &buckets_.back()) {
      absl::StrAppend(&text, bucket.max_rows);
      first = bucket.max_rows + 1;  // would overflow for a last INT64_MAX
    }
    absl::StrAppend(&text, " ", bucket.spec.ToString());
    if (bucket.us > 0) absl::StrAppendFormat(&text, " (%.1f us)", bucket.us);
  }
  return text;
}

}  // namespace nibble::kernels
