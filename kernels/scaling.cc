#include "kernels/scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace nibble::kernels {
namespace {

constexpr char kHeader[] = "nibble activation maxima 1";

float ScaleOf(Fp8 format, float greatest) {
  return std::max(greatest, kLeastMax) / Greatest(format);
}

}  // namespace

MaxHistory::MaxHistory(int length) : ring_(length) { NIBBLE_CHECK(length > 0); }

void MaxHistory::Record(float greatest) {
  if (!std::isfinite(greatest)) return;
  ring_[recorded_ % static_cast<int64_t>(ring_.size())] = greatest;
  ++recorded_;
}

float MaxHistory::Greatest() const {
  return *std::max_element(ring_.begin(), ring_.end());
}

TensorScale::TensorScale(Recipe recipe, Fp8 format, int history)
    : recipe_(recipe), format_(format), history_(history) {}

TensorScale TensorScale::Current(Fp8 format) {
  return {Recipe::kCurrent, format, 1};
}

TensorScale TensorScale::Delayed(Fp8 format, int history) {
  return {Recipe::kDelayed, format, history};
}

TensorScale TensorScale::Static(Fp8 format, float greatest) {
  NIBBLE_CHECK(std::isfinite(greatest) && greatest >= 0);
  TensorScale scale(Recipe::kStatic, format, 1);
  scale.history_.Record(greatest);
  return scale;
}

float TensorScale::ScaleFor(float greatest) {
  if (recipe_ == Recipe::kStatic) return ScaleOf(format_, history_.Greatest());
  const bool own = recipe_ == Recipe::kCurrent || history_.empty();
  const float used = own ? greatest : history_.Greatest();
  history_.Record(greatest);
  if (!std::isfinite(used)) return std::numeric_limits<float>::quiet_NaN();
  return ScaleOf(format_, used);
}

bool ActivationMaxima::Observe(std::string_view name, float greatest) {
  if (!std::isfinite(greatest) || greatest < 0) return false;
  float& kept = maxima_[std::string(name)];
  kept = std::max(kept, greatest);
  return true;
}

absl::StatusOr<float> ActivationMaxima::Find(std::string_view name) const {
  const auto found = maxima_.find(name);
  if (found == maxima_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no activation maximum of '", std::string(name), "'"));
  }
  return found->second;
}

std::string ActivationMaxima::ToString() const {
  std::string text = absl::StrCat(kHeader, "\n");
  for (const auto& [name, greatest] : maxima_) {
    absl::StrAppendFormat(&text, "%.9g %s\n", greatest, name);
  }
  return text;
}

absl::StatusOr<ActivationMaxima> ActivationMaxima::Parse(
    std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  if (!std::getline(lines, line) || line != kHeader) {
    return absl::InvalidArgumentError(absl::StrCat(
        "activation maxima: the first line is not \"", kHeader, "\""));
  }
  ActivationMaxima maxima;
  for (int number = 2; std::getline(lines, line); ++number) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(std::min(space + 1, line.size()));
    float greatest = 0;
    if (!absl::SimpleAtof(line.substr(0, space), &greatest) || name.empty() ||
        maxima.maxima_.contains(name) || !maxima.Observe(name, greatest)) {
      return absl::InvalidArgumentError(
          absl::StrCat("activation maxima, line ", number, ": '", line,
                       "' is no finite maximum and new name"));
    }
  }
  return maxima;
}

absl::Status ActivationMaxima::Save(const std::string& path) const {
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  file << ToString();
  file.close();
  if (!file.good() || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    std::remove(unfinished.c_str());
    return absl::NotFoundError(absl::StrCat(path, ": cannot be written"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ActivationMaxima> ActivationMaxima::Load(
    const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  absl::StatusOr<ActivationMaxima> maxima = Parse(text);
  if (maxima.ok()) return maxima;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", std::string(maxima.status().message())));
}

}  // namespace nibble::kernels
