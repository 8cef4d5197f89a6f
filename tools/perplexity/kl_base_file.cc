#include "tools/perplexity/kl_base_file.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"

namespace nibble::tools {
namespace {

constexpr std::string_view kMagic = "_logits_";
constexpr int64_t kHeaderBytes = 8 + 3 * 4;
// A float scale and a float minimum, counted in uint16.
constexpr int64_t kRowHeaderCodes = 4;
// One scored position needs a token before it and one after it.
constexpr int32_t kMinContext = 3;

template <typename T>
bool Read(std::ifstream& file, T* out, int64_t count) {
  const auto bytes = static_cast<std::streamsize>(count * sizeof(T));
  file.read(reinterpret_cast<char*>(out), bytes);
  return file.gcount() == bytes;
}

// Bytes the whole file must have, or nothing when they overflow.
std::optional<int64_t> ExpectedBytes(int64_t context, int64_t windows,
                                     int64_t rows, int64_t row_codes) {
  const auto token_bytes = CheckedMul<int64_t>(context * windows, 4);
  const auto row_count = CheckedMul<int64_t>(windows, rows);
  if (!token_bytes || !row_count) return std::nullopt;
  const auto row_bytes = CheckedMul<int64_t>(*row_count, 2 * row_codes);
  if (!row_bytes) return std::nullopt;
  const auto body = CheckedAdd<int64_t>(*token_bytes, *row_bytes);
  return body ? CheckedAdd<int64_t>(*body, kHeaderBytes) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KlBaseFile>> KlBaseFile::Open(
    const std::string& path) {
  std::unique_ptr<KlBaseFile> base(new KlBaseFile());
  base->path_ = path;
  base->file_.open(path, std::ios::binary | std::ios::ate);
  if (!base->file_) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  }
  const int64_t file_bytes = base->file_.tellg();
  base->file_.seekg(0);
  NIBBLE_RETURN_IF_ERROR(base->ReadHeader(file_bytes));
  NIBBLE_RETURN_IF_ERROR(base->ReadTokens());
  return base;
}

absl::Status KlBaseFile::Error(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

int64_t KlBaseFile::row_codes() const {
  return RoundUp<int64_t>(vocab_, 2) + kRowHeaderCodes;
}

absl::Status KlBaseFile::ReadHeader(int64_t file_bytes) {
  char magic[kMagic.size()];
  if (!Read(file_, magic, kMagic.size()) ||
      std::string_view(magic, sizeof(magic)) != kMagic) {
    return Error(
        "does not begin with \"_logits_\": not a file of base log-"
        "probabilities (llama-perplexity --kl-divergence-base)");
  }
  if (!Read(file_, &context_, 1) || !Read(file_, &vocab_, 1) ||
      !Read(file_, &windows_, 1)) {
    return Error(
        absl::StrCat("ends within its header of ", kHeaderBytes, " bytes"));
  }
  if (context_ < kMinContext) {
    return Error(absl::StrCat("context is ", context_, ", must be at least ",
                              kMinContext));
  }
  if (vocab_ < 1) {
    return Error(
        absl::StrCat("vocabulary size is ", vocab_, ", must be at least 1"));
  }
  if (windows_ < 1) {
    return Error(absl::StrCat("number of windows is ", windows_,
                              ", must be at least 1"));
  }
  const std::optional<int64_t> expected =
      ExpectedBytes(context_, windows_, rows(), row_codes());
  if (!expected || *expected != file_bytes) {
    return Error(absl::StrCat(
        "context ", context_, ", vocabulary ", vocab_, " and ", windows_,
        " windows take ",
        expected ? absl::StrCat(*expected) : std::string("too many"),
        " bytes, but the file has ", file_bytes));
  }
  return absl::OkStatus();
}

absl::Status KlBaseFile::ReadTokens() {
  tokens_.resize(static_cast<size_t>(context_) * windows_);
  if (!Read(file_, tokens_.data(), tokens_.size())) {
    return Error("cannot be read");
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] < 0 || tokens_[i] >= vocab_) {
      return Error(absl::StrCat("token ", i, " is ", tokens_[i],
                                ", must be in [0, ", vocab_, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status KlBaseFile::ReadWindow(int32_t index) {
  NIBBLE_CHECK(index >= 0 && index < windows_);
  window_.resize(static_cast<size_t>(rows()) * row_codes());
  const int64_t window_bytes = static_cast<int64_t>(window_.size()) * 2;
  file_.clear();
  file_.seekg(kHeaderBytes + static_cast<int64_t>(tokens_.size()) * 4 +
              index * window_bytes);
  if (!Read(file_, window_.data(), window_.size())) {
    return Error(absl::StrCat("window ", index, " cannot be read"));
  }
  for (int32_t row = 0; row < rows(); ++row) {
    const KlBaseRow r = Row(row);
    if (!std::isfinite(r.scale) || r.scale < 0 || !std::isfinite(r.minimum)) {
      return Error(absl::StrCat("window ", index, ", row ", row, ": scale ",
                                r.scale, " and minimum ", r.minimum,
                                " must be finite, the scale not negative"));
    }
  }
  return absl::OkStatus();
}

KlBaseRow KlBaseFile::Row(int32_t row) const {
  NIBBLE_DCHECK(row >= 0 && row < rows());
  const uint16_t* begin = window_.data() + row * row_codes();
  float header[2];
  std::memcpy(header, begin, sizeof(header));
  return {.scale = header[0],
          .minimum = header[1],
          .codes = {begin + kRowHeaderCodes, static_cast<size_t>(vocab_)}};
}

}  // namespace nibble::tools
