// A checked vocabulary: what every kind of tokenizer looks up.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/tokenizer_data.h"

namespace nibble::model {

// TokenizerData that holds what it promises, with its lookups. Immutable,
// thread-safe, owned by the Tokenizer.
class Vocabulary final {
 public:
  // INVALID_ARGUMENT names the field, the token and the value that is wrong.
  static absl::StatusOr<std::unique_ptr<Vocabulary>> Create(TokenizerData data);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  const TokenizerData& data() const { return data_; }
  int32_t size() const { return static_cast<int32_t>(data_.tokens.size()); }
  TokenKind kind(int32_t id) const { return data_.kinds[id]; }

  // As the file spells it, and the bytes it adds to a text.
  std::string_view spelling(int32_t id) const { return data_.tokens[id]; }
  std::string_view bytes(int32_t id) const { return bytes_[id]; }

  // Never produced from plain text, not shown.
  bool IsSpecial(int32_t id) const {
    return kind(id) == TokenKind::kControl || kind(id) == TokenKind::kUnknown;
  }
  // May come out of plain text by its spelling.
  bool IsPlain(int32_t id) const {
    return !IsSpecial(id) && kind(id) != TokenKind::kByte;
  }

  // The token with this spelling, or -1.
  int32_t Find(std::string_view spelling) const;
  // The kByte token of a byte, or -1.
  int32_t ByteToken(uint8_t byte) const { return byte_tokens_[byte]; }
  const std::vector<int32_t>& end_of_generation() const {
    return end_of_generation_;
  }
  size_t max_token_bytes() const { return max_token_bytes_; }

 private:
  explicit Vocabulary(TokenizerData data) : data_(std::move(data)) {
    byte_tokens_.fill(-1);
  }
  absl::Status CheckSizes() const;
  absl::Status CheckIds() const;
  absl::Status IndexTokens();
  absl::Status AddByteToken(int32_t id);
  void ListEndOfGeneration();
  std::string MakeBytes(int32_t id) const;

  TokenizerData data_;
  absl::flat_hash_map<std::string_view, int32_t> ids_;  // of data_.tokens
  std::vector<std::string> bytes_;                      // [vocab]
  std::array<int32_t, 256> byte_tokens_;
  std::vector<int32_t> end_of_generation_;  // ascending
  size_t max_token_bytes_ = 0;
};

}  // namespace nibble::model
