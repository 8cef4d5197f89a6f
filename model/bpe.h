// Byte-level byte-pair encoding (Sennrich et al. 2016, over GPT-2's bytes).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/pre_tokenizer.h"
#include "model/tokenizer.h"
#include "model/vocabulary.h"

namespace nibble::model {

// Cuts a text into pieces and merges the bytes of each piece, best-ranked
// pair first, leftmost of equals. Immutable, thread-safe, owned by the
// Tokenizer; `vocabulary` must outlive it.
class Bpe final {
 public:
  // INVALID_ARGUMENT for an unknown pre-tokenizer or a merge that is not two
  // parts. A merge that names a token the vocabulary lacks can never yield
  // one and is left out; of two equal merges the better-ranked counts.
  static absl::StatusOr<Bpe> Create(const Vocabulary& vocabulary);

  // Appends the tokens of `text` (valid UTF-8), which stands at byte `offset`
  // of the whole. A byte the vocabulary cannot spell yields no token, as in
  // the reference implementations; it lies in the span of a neighbour.
  absl::Status Encode(std::string_view text, size_t offset,
                      std::vector<TokenSpan>& out) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;  // of the merged token
  };
  struct Scratch;

  explicit Bpe(PreTokenizer pre) : pre_(std::move(pre)) {}
  absl::Status AddMerges(const Vocabulary& vocabulary);
  void AddBytes(const Vocabulary& vocabulary);
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void PushPair(uint32_t left, Scratch& scratch) const;
  void MergePiece(std::string_view piece, Scratch& scratch) const;
  void EncodePiece(std::string_view piece, size_t offset, Scratch& scratch,
                   std::vector<TokenSpan>& out) const;

  PreTokenizer pre_;
  std::array<int32_t, 256> byte_ids_;            // -1: no token
  absl::flat_hash_map<uint64_t, Merge> merges_;  // left id << 32 | right id
  // Whole pieces, by the vocabulary's bytes; filled when the rule ignores
  // merges.
  absl::flat_hash_map<std::string_view, int32_t> whole_;
};

}  // namespace nibble::model
