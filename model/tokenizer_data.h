// What a checkpoint says about its vocabulary, before a Tokenizer is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble::model {

enum class TokenKind : uint8_t {
  kNormal,
  kUnknown,
  kControl,      // special: never produced from plain text, not shown
  kUserDefined,  // special in matching, shown as text
  kUnused,
  kByte,  // one raw byte, "<0xEA>" in the file
};

enum class TokenizerType : uint8_t {
  kByteLevelBpe,   // GPT-2 style: merges over a byte alphabet
  kSentencePiece,  // llama style: scores, byte fallback
  // Longest match over the raw bytes of the vocabulary: scripted models.
  kLongestMatch,
};

// The vocabulary as the file spells it. Plain values; Tokenizer::Create
// checks them.
struct TokenizerData {
  TokenizerType type = TokenizerType::kByteLevelBpe;
  std::string pre;                  // tokenizer.ggml.pre, "" when absent
  std::vector<std::string> tokens;  // [vocab], raw bytes for kLongestMatch
  std::vector<float> scores;        // [vocab] for kSentencePiece, else empty
  std::vector<TokenKind> kinds;     // [vocab]
  std::vector<std::string> merges;  // "left right", best first
  std::optional<int32_t> bos, eos, eot, unknown, padding;
  std::vector<int32_t> end_of_generation;  // further ids that end a text
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = true;  // kSentencePiece
  std::string chat_template;     // Jinja text of the file, "" when absent
};

}  // namespace nibble::model
