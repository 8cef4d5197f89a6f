// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer_data.h"

namespace nibble::model {

struct EncodeOptions {
  // Put the vocabulary's BOS (and EOS) where its add_bos (add_eos) says.
  // A text that already begins with BOS (parse_special) gets no second one.
  bool add_special = true;
  // Recognise special tokens spelled out in the text ("<|im_start|>"), the
  // longest at each place; when false kControl and kUnknown ones are plain
  // text. kUserDefined ones are recognised always, as their models were
  // trained.
  bool parse_special = false;
};

// A piece of the text and the token it became.
struct TokenSpan {
  int32_t id = 0;
  // Bytes [begin, end) of the text; empty for an added BOS or EOS.
  size_t begin = 0;
  size_t end = 0;
};

// A part of a text that says itself whether special tokens are recognised in
// it. Borrows its text.
struct TextPiece {
  std::string_view text;
  bool parse_special = false;
};

// A vocabulary with its rules. Immutable, thread-safe; owned by the loaded
// model. Encoding takes time linear in the text (n log n at worst).
class Tokenizer final {
 public:
  // INVALID_ARGUMENT names the field that is missing or wrong (an unknown
  // `pre`, a byte token "<0xZZ>", ids beyond the vocabulary, ...).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerData data);
  ~Tokenizer();

  // The ids of `text`; INVALID_ARGUMENT when it is not UTF-8, or has a
  // character that a SentencePiece or longest-match vocabulary cannot spell.
  // Byte-level BPE drops a byte without token, as the reference
  // implementations do (published vocabularies lack rare control bytes).
  absl::StatusOr<std::vector<int32_t>> Encode(
      std::string_view text, const EncodeOptions& options) const;
  // The same with the place of each token in the text. Spans follow each other
  // without gap or overlap from 0 to text.size(), if there is any token.
  absl::StatusOr<std::vector<TokenSpan>> EncodeWithSpans(
      std::string_view text, const EncodeOptions& options) const;

  // The ids of the joined text of `pieces`, without added BOS or EOS. A special
  // token is recognised inside one piece, never across two; plain text is
  // tokenized as if there were no boundary.
  absl::StatusOr<std::vector<int32_t>> EncodePieces(
      std::span<const TextPiece> pieces) const;

  // The bytes a token adds to a text: those of special (kControl, kUnknown)
  // tokens are empty unless `special`, which gives their spelling. A
  // SentencePiece "▁" is a space. `id` must be in [0, vocab_size).
  std::string_view TokenBytes(int32_t id, bool special = false) const;

  // The concatenated TokenBytes; SentencePiece drops the space that Encode put
  // before the text and after each special token. Not necessarily UTF-8:
  // SanitizeUtf8 is the caller's. `ids` must be in [0, vocab_size).
  std::string Decode(std::span<const int32_t> ids, bool special = false) const;

  bool IsSpecial(int32_t id) const;  // kControl or kUnknown
  // EOS, EOT and TokenizerData::end_of_generation.
  bool IsEndOfGeneration(int32_t id) const;
  std::span<const int32_t> end_of_generation() const;
  // The id of a special token by its spelling.
  std::optional<int32_t> SpecialToken(std::string_view text) const;

  int32_t vocab_size() const;
  std::optional<int32_t> bos() const;
  std::optional<int32_t> eos() const;
  bool adds_bos() const;
  // The longest TokenBytes of the vocabulary, bytes.
  size_t max_token_bytes() const;
  const TokenizerData& data() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::model
