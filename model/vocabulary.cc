#include "model/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "model/byte_alphabet.h"

namespace nibble::model {
namespace {

absl::Status Wrong(std::string what) {
  return absl::InvalidArgumentError("vocabulary: " + std::move(what));
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte of "<0xEA>"; -1 for anything else.
int ByteOfSpelling(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') {
    return -1;
  }
  const int high = HexDigit(text[3]);
  const int low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Vocabulary>> Vocabulary::Create(
    TokenizerData data) {
  std::unique_ptr<Vocabulary> result(new Vocabulary(std::move(data)));
  NIBBLE_RETURN_IF_ERROR(result->CheckSizes());
  NIBBLE_RETURN_IF_ERROR(result->CheckIds());
  NIBBLE_RETURN_IF_ERROR(result->IndexTokens());
  result->ListEndOfGeneration();
  return result;
}

int32_t Vocabulary::Find(std::string_view spelling) const {
  const auto found = ids_.find(spelling);
  return found == ids_.end() ? -1 : found->second;
}

absl::Status Vocabulary::CheckSizes() const {
  const size_t count = data_.tokens.size();
  if (count == 0) return Wrong("it has no tokens");
  if (count > std::numeric_limits<int32_t>::max()) {
    return Wrong(absl::StrCat(count, " tokens; ids have 31 bits"));
  }
  if (data_.kinds.size() != count) {
    return Wrong(absl::StrCat("kinds: ", data_.kinds.size(), " entries for ",
                              count, " tokens"));
  }
  if (data_.type != TokenizerType::kSentencePiece) return absl::OkStatus();
  if (data_.scores.size() != count) {
    return Wrong(absl::StrCat("scores: ", data_.scores.size(), " entries for ",
                              count, " tokens"));
  }
  for (size_t id = 0; id < count; ++id) {
    if (std::isnan(data_.scores[id])) {
      return Wrong(absl::StrCat("scores: token ", id, " has NaN"));
    }
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::CheckIds() const {
  const std::pair<const char*, std::optional<int32_t>> named[] = {
      {"bos", data_.bos},         {"eos", data_.eos},
      {"eot", data_.eot},         {"unknown", data_.unknown},
      {"padding", data_.padding},
  };
  for (const auto& [name, id] : named) {
    if (id.has_value() && (*id < 0 || *id >= size())) {
      return Wrong(
          absl::StrCat(name, ": id ", *id, " is not in [0, ", size(), ")"));
    }
  }
  for (const int32_t id : data_.end_of_generation) {
    if (id < 0 || id >= size()) {
      return Wrong(absl::StrCat("end_of_generation: id ", id, " is not in [0, ",
                                size(), ")"));
    }
  }
  if (data_.add_bos && !data_.bos.has_value()) {
    return Wrong("add_bos is set, but there is no bos");
  }
  if (data_.add_eos && !data_.eos.has_value()) {
    return Wrong("add_eos is set, but there is no eos");
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::IndexTokens() {
  ids_.reserve(data_.tokens.size());
  bytes_.reserve(data_.tokens.size());
  for (int32_t id = 0; id < size(); ++id) {
    if (!spelling(id).empty()) {
      const auto [at, inserted] = ids_.try_emplace(spelling(id), id);
      if (!inserted) {
        return Wrong(absl::StrCat("tokens ", at->second, " and ", id,
                                  " are both \"", data_.tokens[id], "\""));
      }
    }
    if (kind(id) == TokenKind::kByte &&
        data_.type != TokenizerType::kLongestMatch) {
      NIBBLE_RETURN_IF_ERROR(AddByteToken(id));
    }
    bytes_.push_back(MakeBytes(id));
    max_token_bytes_ = std::max(max_token_bytes_, bytes_.back().size());
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::AddByteToken(int32_t id) {
  const int byte = ByteOfSpelling(spelling(id));
  if (byte < 0) {
    return Wrong(absl::StrCat("token ", id, ": a byte token is \"<0x\", two ",
                              "hexadecimal digits and \">\", not \"",
                              data_.tokens[id], "\""));
  }
  if (byte_tokens_[byte] >= 0) {
    return Wrong(absl::StrCat("tokens ", byte_tokens_[byte], " and ", id,
                              " are both byte ", byte));
  }
  byte_tokens_[byte] = id;
  return absl::OkStatus();
}

std::string Vocabulary::MakeBytes(int32_t id) const {
  const std::string& text = data_.tokens[id];
  if (data_.type == TokenizerType::kLongestMatch || IsSpecial(id) ||
      kind(id) == TokenKind::kUserDefined) {
    return text;
  }
  if (kind(id) == TokenKind::kByte) {
    return std::string(1, static_cast<char>(ByteOfSpelling(text)));
  }
  if (data_.type == TokenizerType::kSentencePiece) {
    return absl::StrReplaceAll(text, {{"\u2581", " "}});
  }
  // A token that the alphabet cannot spell was added to the vocabulary as it
  // is to be shown.
  return BytesOfSpelling(text).value_or(text);
}

void Vocabulary::ListEndOfGeneration() {
  std::vector<int32_t>& ids = end_of_generation_;
  ids = data_.end_of_generation;
  if (data_.eos.has_value()) ids.push_back(*data_.eos);
  if (data_.eot.has_value()) ids.push_back(*data_.eot);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace nibble::model
