// The file that `llama-perplexity --kl-divergence-base FILE` writes: what a
// base model thought of each token of a text.
//
// Little endian: "_logits_", int32 context, int32 vocab, int32 windows, then
// int32 tokens[windows * context], then for each window and each of its
// context - 1 - context / 2 scored positions one row of uint16: a float scale
// and a float minimum (two uint16 each), then one code per token of the
// vocabulary, log p = scale * code + minimum, padded to an even count.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::tools {

// One scored position of the base model. Borrowed from the KlBaseFile, valid
// until its next ReadWindow.
struct KlBaseRow {
  float scale = 0;  // >= 0
  float minimum = 0;
  std::span<const uint16_t> codes;  // [vocab]

  float LogProb(size_t id) const {
    return scale * static_cast<float>(codes[id]) + minimum;
  }
};

// An open file, read window by window. Owned by the tool; one thread.
class KlBaseFile final {
 public:
  // Every count is checked against the file's size before it is used.
  static absl::StatusOr<std::unique_ptr<KlBaseFile>> Open(
      const std::string& path);

  int32_t context() const { return context_; }
  int32_t vocab() const { return vocab_; }
  int32_t windows() const { return windows_; }
  // [windows * context], each in [0, vocab).
  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Scored positions of one window.
  int32_t rows() const { return context_ - 1 - context_ / 2; }

  // Loads window `index`; after that Row(0 .. rows() - 1) are its rows.
  absl::Status ReadWindow(int32_t index);
  KlBaseRow Row(int32_t row) const;

 private:
  KlBaseFile() = default;
  absl::Status ReadHeader(int64_t file_bytes);
  absl::Status ReadTokens();
  absl::Status Error(const std::string& what) const;
  int64_t row_codes() const;  // uint16 of one row, scale and minimum included

  std::string path_;
  std::ifstream file_;
  int32_t context_ = 0;
  int32_t vocab_ = 0;
  int32_t windows_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<uint16_t> window_;  // [rows(), row_codes()]
};

}  // namespace nibble::tools
