// How a byte-level BPE vocabulary cuts a text before it merges.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace nibble::model {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// The rule that `tokenizer.ggml.pre` names: one or more regular expressions,
// each applied to the pieces that the one before left; what an expression
// matches is a piece, and so is what lies between matches. Immutable,
// thread-safe, owned by the tokenizer.
class PreTokenizer final {
 public:
  // INVALID_ARGUMENT names an unknown `pre`. "" is "default", as in files
  // from before the key existed.
  static absl::StatusOr<PreTokenizer> Create(std::string_view pre);

  // The pieces of `text` (valid UTF-8) in order; together they are the text.
  // INVALID_ARGUMENT when matching needs more than its limits.
  absl::StatusOr<std::vector<TextRange>> Split(std::string_view text) const;

  // A piece that is a token as a whole is taken without merging.
  bool ignore_merges() const { return ignore_merges_; }

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, FreeCode>;

  PreTokenizer() = default;
  static absl::StatusOr<Code> Compile(std::string_view expression);

  std::vector<Code> codes_;
  bool ignore_merges_ = false;
};

}  // namespace nibble::model
