#include "kernels/linear.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"

namespace nibble::kernels {
namespace {

// Cuts `prefix` off the front of `text`, if it stands there.
bool Consume(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Cuts off and returns what stands before `separator` (all of it where there
// is none), and the separator.
std::string_view TakeUntil(std::string_view& text, std::string_view separator) {
  const size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size()
                                                   : end + separator.size());
  return taken;
}

template <typename T>
bool ParseInt(std::string_view text, T* value) {
  return absl::SimpleAtoi(absl::string_view(text.data(), text.size()), value);
}

absl::Status Unreadable(std::string_view what, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot read ", std::string(what), " '", std::string(text), "'"));
}

bool IsName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// One word of a spec behind the kernel's name: tile=4x16, split_k=2, stages=3,
// variant=shared.
bool ParseSpecWord(std::string_view word, LaunchSpec* spec) {
  if (Consume(word, "tile=")) {
    const std::string_view m = TakeUntil(word, "x");
    return ParseInt(m, &spec->tile_m) && ParseInt(word, &spec->tile_n) &&
           spec->tile_m >= 0 && spec->tile_n >= 0;
  }
  if (Consume(word, "split_k=")) {
    return ParseInt(word, &spec->split_k) && spec->split_k >= 1;
  }
  if (Consume(word, "stages=")) {
    return ParseInt(word, &spec->stages) && spec->stages >= 1;
  }
  if (Consume(word, "variant=")) {
    spec->variant = std::string(word);
    return IsName(word);
  }
  return false;
}

// "1..8 narrow:gemv tile=4x8 (1.2 us)" or, as the last, "9.. wide:gemm".
absl::StatusOr<LinearPlan::Bucket> ParseBucket(std::string_view text,
                                               int64_t first, bool last) {
  const std::string_view whole = text;
  LinearPlan::Bucket bucket;
  bucket.max_rows = std::numeric_limits<int64_t>::max();
  int64_t begin = 0;
  if (!ParseInt(TakeUntil(text, ".."), &begin) || begin != first) {
    return Unreadable("the rows of", whole);
  }
  const std::string_view end = TakeUntil(text, " ");
  if (last ? !end.empty()
           : !ParseInt(end, &bucket.max_rows) || bucket.max_rows < begin ||
                 bucket.max_rows == std::numeric_limits<int64_t>::max()) {
    return Unreadable("the rows of", whole);
  }
  std::string_view spec = TakeUntil(text, " (");
  if (!text.empty()) {
    const std::string_view us = TakeUntil(text, " us)");
    if (!text.empty() ||
        !absl::SimpleAtod(absl::string_view(us.data(), us.size()),
                          &bucket.us) ||
        !std::isfinite(bucket.us) || bucket.us < 0) {
      return Unreadable("the time of", whole);
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(bucket.spec, LaunchSpec::Parse(spec));
  return bucket;
}

}  // namespace

std::string LaunchSpec::ToString() const {
  std::string text =
      absl::StrCat(path == LinearPath::kNarrow ? "narrow:" : "wide:", kernel);
  if (tile_m != 0 || tile_n != 0) {
    absl::StrAppend(&text, " tile=", tile_m, "x", tile_n);
  }
  if (split_k != 1) absl::StrAppend(&text, " split_k=", split_k);
  if (stages != 1) absl::StrAppend(&text, " stages=", stages);
  if (!variant.empty()) absl::StrAppend(&text, " variant=", variant);
  return text;
}

absl::StatusOr<LaunchSpec> LaunchSpec::Parse(std::string_view text) {
  const std::string_view whole = text;
  LaunchSpec spec;
  if (Consume(text, "wide:")) {
    spec.path = LinearPath::kWide;
  } else if (!Consume(text, "narrow:")) {
    return Unreadable("the path of", whole);
  }
  spec.kernel = std::string(TakeUntil(text, " "));
  if (!IsName(spec.kernel)) return Unreadable("the kernel of", whole);
  while (!text.empty()) {
    const std::string_view word = TakeUntil(text, " ");
    if (!ParseSpecWord(word, &spec)) return Unreadable("the word", word);
  }
  return spec;
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

absl::StatusOr<LinearPlan> LinearPlan::Parse(std::string_view text) {
  std::vector<Bucket> buckets;
  int64_t first = 1;
  while (!text.empty()) {
    const std::string_view bucket = TakeUntil(text, " | ");
    NIBBLE_ASSIGN_OR_RETURN(buckets.emplace_back(),
                            ParseBucket(bucket, first, text.empty()));
    if (!text.empty()) first = buckets.back().max_rows + 1;
  }
  if (buckets.empty()) return Unreadable("the plan", text);
  return LinearPlan(std::move(buckets));
}

}  // namespace nibble::kernels
