// SentencePiece's BPE models (Kudo and Richardson 2018), as Llama uses them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "model/tokenizer.h"
#include "model/vocabulary.h"

namespace nibble::model {

// Merges the characters of a text into tokens, best score first, leftmost of
// equals; a space is spelled "▁". What no token covers becomes byte tokens,
// or one unknown token a run. Immutable, thread-safe, owned by the Tokenizer;
// `vocabulary` must outlive it.
class SentencePiece final {
 public:
  explicit SentencePiece(const Vocabulary& vocabulary);

  struct Fragment {
    std::string_view text;  // valid UTF-8
    size_t offset = 0;      // of text in the whole, bytes
    bool space_before = false;
  };

  // Appends the tokens of `fragment`. The space before it, and the last two
  // bytes of a "▁" that fell apart, have no place in the text: their spans
  // are empty. INVALID_ARGUMENT when the vocabulary has neither byte tokens
  // nor an unknown token for a character.
  absl::Status Encode(const Fragment& fragment,
                      std::vector<TokenSpan>& out) const;

 private:
  struct Symbol;
  struct Candidate;
  struct Work;

  void PushPair(uint32_t left, Work& work) const;
  void MergeAll(Work& work) const;
  absl::Status Emit(const Work& work, const Symbol& symbol,
                    std::vector<TokenSpan>& out) const;

  const Vocabulary& vocabulary_;
  absl::flat_hash_map<std::string_view, int32_t> plain_;  // by spelling
};

}  // namespace nibble::model
