#include "model/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"
#include "model/bpe.h"
#include "model/byte_trie.h"
#include "model/sentencepiece.h"
#include "model/vocabulary.h"

namespace nibble::model {
namespace {

// The longest token at each place, over raw bytes.
class LongestMatch final {
 public:
  explicit LongestMatch(const Vocabulary& vocabulary) {
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      if (!vocabulary.IsSpecial(id) && !vocabulary.spelling(id).empty()) {
        tokens_.Insert(vocabulary.spelling(id), id);
      }
    }
  }

  absl::Status Encode(std::string_view text, size_t offset,
                      std::vector<TokenSpan>& out) const {
    for (size_t at = 0; at < text.size();) {
      const ByteTrie::Match match = tokens_.Longest(text.substr(at));
      if (match.id < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "text: no token of the vocabulary matches at byte ", offset + at));
      }
      out.push_back({match.id, offset + at, offset + at + match.length});
      at += match.length;
    }
    return absl::OkStatus();
  }

 private:
  ByteTrie tokens_;
};

std::vector<int32_t> IdsOf(std::span<const TokenSpan> spans) {
  std::vector<int32_t> ids;
  ids.reserve(spans.size());
  for (const TokenSpan& span : spans) ids.push_back(span.id);
  return ids;
}

absl::Status CheckText(std::string_view text) {
  // Offsets inside the tokenizers have 32 bits, and a space may take three
  // bytes there.
  constexpr size_t kMaxTextBytes = std::numeric_limits<int32_t>::max() / 3;
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: ", text.size(), " bytes; at most ", kMaxTextBytes));
  }
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8(text.substr(at));
    if (unit.kind != Utf8Unit::kCharacter) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: not UTF-8 at byte ", at));
    }
    at += unit.length;
  }
  return absl::OkStatus();
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(std::unique_ptr<Vocabulary> checked);

  // Appends the tokens of the plain text [begin, end) of `text`.
  absl::Status EncodePlain(std::string_view text, size_t begin, size_t end,
                           std::vector<TokenSpan>& out) const;
  // Appends the tokens of `text`, which is that of `pieces` joined.
  absl::Status EncodeBody(std::string_view text,
                          std::span<const TextPiece> pieces,
                          std::vector<TokenSpan>& out) const;
  // Recognised in a text before anything else.
  bool IsMarked(int32_t id) const {
    return vocabulary->IsSpecial(id) ||
           vocabulary->kind(id) == TokenKind::kUserDefined;
  }
  bool HasSpacePrefix() const {
    return vocabulary->data().type == TokenizerType::kSentencePiece &&
           vocabulary->data().add_space_prefix;
  }

  std::unique_ptr<Vocabulary> vocabulary;
  ByteTrie user_defined;  // matched always
  ByteTrie marked;        // these and the special tokens
  std::variant<std::monostate, Bpe, SentencePiece, LongestMatch> encoder;
};

Tokenizer::Impl::Impl(std::unique_ptr<Vocabulary> checked)
    : vocabulary(std::move(checked)) {
  for (int32_t id = 0; id < vocabulary->size(); ++id) {
    const std::string_view text = vocabulary->spelling(id);
    if (!IsMarked(id) || text.empty()) continue;
    marked.Insert(text, id);
    if (!vocabulary->IsSpecial(id)) user_defined.Insert(text, id);
  }
}

absl::Status Tokenizer::Impl::EncodePlain(std::string_view text, size_t begin,
                                          size_t end,
                                          std::vector<TokenSpan>& out) const {
  const std::string_view plain = text.substr(begin, end - begin);
  if (const auto* bpe = std::get_if<Bpe>(&encoder)) {
    return bpe->Encode(plain, begin, out);
  }
  if (const auto* pieces = std::get_if<SentencePiece>(&encoder)) {
    // A text begins with a space, and so does what follows a marked token.
    return pieces->Encode(
        {plain, begin,
         HasSpacePrefix() && (out.empty() || IsMarked(out.back().id))},
        out);
  }
  return std::get<LongestMatch>(encoder).Encode(plain, begin, out);
}

absl::Status Tokenizer::Impl::EncodeBody(std::string_view text,
                                         std::span<const TextPiece> pieces,
                                         std::vector<TokenSpan>& out) const {
  size_t at = 0;
  size_t plain = 0;  // where the plain text before `at` begins
  for (const TextPiece& piece : pieces) {
    const size_t end = at + piece.text.size();
    const ByteTrie& matcher = piece.parse_special ? marked : user_defined;
    if (matcher.empty()) at = end;
    while (at < end) {
      const ByteTrie::Match match = matcher.Longest(text.substr(at, end - at));
      if (match.id < 0) {
        ++at;
        continue;
      }
      if (plain < at) {
        NIBBLE_RETURN_IF_ERROR(EncodePlain(text, plain, at, out));
      }
      out.push_back({match.id, at, at + match.length});
      at += match.length;
      plain = at;
    }
  }
  if (plain == text.size()) return absl::OkStatus();
  return EncodePlain(text, plain, text.size(), out);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(
    TokenizerData data) {
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Vocabulary> vocabulary,
                          Vocabulary::Create(std::move(data)));
  auto impl = std::make_unique<Impl>(std::move(vocabulary));
  const Vocabulary& checked = *impl->vocabulary;
  switch (checked.data().type) {
    case TokenizerType::kByteLevelBpe: {
      NIBBLE_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(checked));
      impl->encoder.emplace<Bpe>(std::move(bpe));
      break;
    }
    case TokenizerType::kSentencePiece:
      impl->encoder.emplace<SentencePiece>(checked);
      break;
    case TokenizerType::kLongestMatch:
      impl->encoder.emplace<LongestMatch>(checked);
      break;
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::vector<TokenSpan>> Tokenizer::EncodeWithSpans(
    std::string_view text, const EncodeOptions& options) const {
  NIBBLE_RETURN_IF_ERROR(CheckText(text));
  const TextPiece whole = {text, options.parse_special};
  std::vector<TokenSpan> body;
  NIBBLE_RETURN_IF_ERROR(impl_->EncodeBody(text, {&whole, 1}, body));
  // Dropped bytes before the first token are its own.
  if (!body.empty()) body.front().begin = 0;
  if (!options.add_special) return body;
  const TokenizerData& vocabulary = data();
  if (vocabulary.add_bos &&
      (body.empty() || body.front().id != *vocabulary.bos)) {
    body.insert(body.begin(), TokenSpan{*vocabulary.bos, 0, 0});
  }
  if (vocabulary.add_eos &&
      (body.empty() || body.back().id != *vocabulary.eos)) {
    body.push_back({*vocabulary.eos, text.size(), text.size()});
  }
  return body;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(
    std::string_view text, const EncodeOptions& options) const {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<TokenSpan> spans,
                          EncodeWithSpans(text, options));
  return IdsOf(spans);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePieces(
    std::span<const TextPiece> pieces) const {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  NIBBLE_RETURN_IF_ERROR(CheckText(text));
  std::vector<TokenSpan> spans;
  NIBBLE_RETURN_IF_ERROR(impl_->EncodeBody(text, pieces, spans));
  return IdsOf(spans);
}

std::string_view Tokenizer::TokenBytes(int32_t id, bool special) const {
  NIBBLE_CHECK(id >= 0 && id < vocab_size());
  if (!special && IsSpecial(id)) return {};
  return impl_->vocabulary->bytes(id);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids,
                              bool special) const {
  std::string text;
  const bool has_prefix = impl_->HasSpacePrefix();
  bool drop_space = has_prefix;
  for (const int32_t id : ids) {
    std::string_view bytes = TokenBytes(id, special);
    const bool marked = impl_->IsMarked(id);
    if (drop_space && !marked && bytes.starts_with(' ')) {
      bytes.remove_prefix(1);
    }
    // An unknown token stands for text here, not for a mark.
    drop_space = has_prefix && marked &&
                 impl_->vocabulary->kind(id) != TokenKind::kUnknown;
    text += bytes;
  }
  return text;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return impl_->vocabulary->IsSpecial(id);
}

bool Tokenizer::IsEndOfGeneration(int32_t id) const {
  const std::span<const int32_t> ids = end_of_generation();
  return std::binary_search(ids.begin(), ids.end(), id);
}

std::span<const int32_t> Tokenizer::end_of_generation() const {
  return impl_->vocabulary->end_of_generation();
}

std::optional<int32_t> Tokenizer::SpecialToken(std::string_view text) const {
  const int32_t id = impl_->vocabulary->Find(text);
  if (id < 0 || !impl_->IsMarked(id)) return std::nullopt;
  return id;
}

int32_t Tokenizer::vocab_size() const { return impl_->vocabulary->size(); }

std::optional<int32_t> Tokenizer::bos() const { return data().bos; }

std::optional<int32_t> Tokenizer::eos() const { return data().eos; }

bool Tokenizer::adds_bos() const { return data().add_bos; }

size_t Tokenizer::max_token_bytes() const {
  return impl_->vocabulary->max_token_bytes();
}

const TokenizerData& Tokenizer::data() const {
  return impl_->vocabulary->data();
}

}  // namespace nibble::model
