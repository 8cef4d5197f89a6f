// Reads tests/golden/tokens_*.json (made by make_tokens.py).
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer_data.h"
#include "nlohmann/json.hpp"

namespace nibble::model {

inline nlohmann::json ReadGolden(const std::string& name) {
  std::ifstream file(std::string(NIBBLE_SOURCE_DIR) + "/tests/golden/" + name);
  return nlohmann::json::parse(file);
}

inline std::vector<std::string> GoldenTexts() {
  return ReadGolden("tokens_texts.json").get<std::vector<std::string>>();
}

using IdLists = std::vector<std::vector<int32_t>>;

// A byte-level vocabulary of which the file holds the part that matters. The
// other ids are spelled so that no text can reach them.
inline TokenizerData GoldenBpe(const nlohmann::json& golden) {
  TokenizerData data;
  data.type = TokenizerType::kByteLevelBpe;
  data.pre = golden["pre"];
  const size_t size = golden["vocab_size"];
  for (size_t id = 0; id < size; ++id) {
    data.tokens.push_back("[filler " + std::to_string(id) + "]");
  }
  for (const auto& entry : golden["tokens"]) {
    data.tokens[entry[0].get<size_t>()] = entry[1];
  }
  data.kinds.assign(size, TokenKind::kNormal);
  data.merges = golden["merges"].get<std::vector<std::string>>();
  return data;
}

inline TokenizerData GoldenSentencePiece(const nlohmann::json& golden) {
  TokenizerData data;
  data.type = TokenizerType::kSentencePiece;
  data.add_space_prefix = golden["add_space_prefix"];
  data.unknown = golden["unknown"].get<int32_t>();
  for (const auto& entry : golden["tokens"]) {
    data.tokens.push_back(entry[0]);
    data.scores.push_back(entry[1]);
    const std::string kind = entry[2];
    data.kinds.push_back(kind == "byte"      ? TokenKind::kByte
                         : kind == "control" ? TokenKind::kControl
                         : kind == "unknown" ? TokenKind::kUnknown
                                             : TokenKind::kNormal);
  }
  return data;
}

}  // namespace nibble::model
