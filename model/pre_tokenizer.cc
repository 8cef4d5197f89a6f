#include "model/pre_tokenizer.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace nibble::model {
namespace {

// The expressions are those of the vocabularies' own tokenizer.json files.
// Contractions ignore ASCII case only, where the originals' (?i:) would also
// take U+017F for an s.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)"
    R"(|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kDigits = R"(\p{N}+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";

struct Rule {
  std::string_view name;
  std::array<std::string_view, 4> expressions;  // in order, "" = none
  bool ignore_merges = false;
};

constexpr Rule kGpt2Rule = {"gpt-2", {kGpt2}};
// Digits one by one, then as GPT-2.
constexpr Rule kSmolLmRule = {"smollm", {kDigit, kGpt2}};
constexpr Rule kLlama3Rule = {"llama-bpe", {kLlama3}, true};
// As Llama 3, whose merges build every token.
constexpr Rule kDbrxRule = {"dbrx", {kLlama3}};
constexpr Rule kQwen2Rule = {"qwen2", {kQwen2}};
constexpr Rule kQwen35Rule = {"qwen35", {kQwen35}};
constexpr Rule kTekkenRule = {"tekken", {kTekken}, true};
constexpr Rule kDefaultRule = {
    "default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, kDigits, kThreeDigits}};
constexpr Rule kFalconRule = {
    "falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeDigits}};

struct NamedRule {
  std::string_view name;  // of tokenizer.ggml.pre
  const Rule* rule;
};

constexpr NamedRule kRules[] = {
    {"", &kDefaultRule},         {"default", &kDefaultRule},
    {"gpt-2", &kGpt2Rule},       {"phi-2", &kGpt2Rule},
    {"mpt", &kGpt2Rule},         {"olmo", &kGpt2Rule},
    {"exaone4", &kGpt2Rule},     {"smollm", &kSmolLmRule},
    {"starcoder", &kSmolLmRule}, {"refact", &kSmolLmRule},
    {"command-r", &kSmolLmRule}, {"codeshell", &kSmolLmRule},
    {"exaone", &kSmolLmRule},    {"minerva-7b", &kSmolLmRule},
    {"llama-bpe", &kLlama3Rule}, {"llama3", &kLlama3Rule},
    {"llama-v3", &kLlama3Rule},  {"falcon3", &kLlama3Rule},
    {"dbrx", &kDbrxRule},        {"smaug-bpe", &kDbrxRule},
    {"qwen2", &kQwen2Rule},      {"deepseek-r1-qwen", &kQwen2Rule},
    {"megrez", &kQwen2Rule},     {"stablelm2", &kQwen2Rule},
    {"qwen35", &kQwen35Rule},    {"tekken", &kTekkenRule},
    {"falcon", &kFalconRule},
};

// The Unicode property White_Space, which the original regex engines mean by
// \s. PCRE2's own \s is ASCII alone or, with PCRE2_UCP, has U+180E too.
constexpr std::string_view kWhiteSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F})"
    R"(\x{205F}\x{3000})";

// `expression` with \s and \S (the latter outside brackets only) written out.
std::string WriteOutWhiteSpace(std::string_view expression) {
  std::string out;
  bool in_brackets = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c != '\\') {
      in_brackets = c == '[' || (in_brackets && c != ']');
      out += c;
      continue;
    }
    const char kind = expression[++i];
    if (kind == 's' && in_brackets) {
      out += kWhiteSpace;
    } else if (kind == 's') {
      absl::StrAppend(&out, "[", std::string(kWhiteSpace), "]");
    } else if (kind == 'S') {
      absl::StrAppend(&out, "[^", std::string(kWhiteSpace), "]");
    } else {
      out += {'\\', kind};
    }
  }
  return out;
}

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// The working memory of one call of Split, on its thread.
class Matcher final {
 public:
  // PCRE2's limits for one match: a megabyte of white space needs about as
  // many steps as it has characters, and no expression here needs a stack
  // that grows with the text.
  static constexpr uint32_t kMatchLimit = 400'000'000;
  static constexpr uint32_t kHeapLimitKib = 64 << 10;
  static constexpr size_t kJitStackBytes = 1 << 20;

  Matcher()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    NIBBLE_CHECK(data_ != nullptr && context_ != nullptr && stack_ != nullptr);
    pcre2_set_match_limit(context_, kMatchLimit);
    pcre2_set_heap_limit(context_, kHeapLimitKib);
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~Matcher() {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // The first match at or after `from`; an empty range at the end of the text
  // when there is none.
  absl::StatusOr<TextRange> Find(const pcre2_code* code, std::string_view text,
                                 size_t from) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // Checking the whole text again for each match would be quadratic.
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int found =
        pcre2_match(code, subject, text.size(), from, options, data_, context_);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;
      found = pcre2_match(code, subject, text.size(), from, options, data_,
                          context_);
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      return TextRange{text.size(), text.size()};
    }
    if (found < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("text: cannot be cut into words: ", ErrorText(found)));
    }
    const size_t* ends = pcre2_get_ovector_pointer(data_);
    NIBBLE_CHECK_GT(ends[1], ends[0]);
    return TextRange{ends[0], ends[1]};
  }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

// Appends the pieces of `range` of `text` to `out`.
absl::Status SplitRange(const pcre2_code* code, std::string_view text,
                        TextRange range, Matcher& matcher,
                        std::vector<TextRange>& out) {
  const std::string_view piece =
      text.substr(range.begin, range.end - range.begin);
  for (size_t at = 0; at < piece.size();) {
    NIBBLE_ASSIGN_OR_RETURN(const TextRange match,
                            matcher.Find(code, piece, at));
    if (match.begin > at) {
      out.push_back({range.begin + at, range.begin + match.begin});
    }
    if (match.end > match.begin) {
      out.push_back({range.begin + match.begin, range.begin + match.end});
    }
    at = match.end;
  }
  return absl::OkStatus();
}

}  // namespace

void PreTokenizer::FreeCode::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

absl::StatusOr<PreTokenizer::Code> PreTokenizer::Compile(
    std::string_view expression) {
  const std::string pattern = WriteOutWhiteSpace(expression);
  int error = 0;
  size_t error_offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                          pattern.size(), PCRE2_UTF, &error, &error_offset,
                          nullptr));
  if (code == nullptr) {
    return absl::InternalError(absl::StrCat(
        "pre-tokenizer expression at ", error_offset, ": ", ErrorText(error)));
  }
  // Where the system forbids run-time code, the interpreter does the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view pre) {
  const Rule* rule = nullptr;
  for (const NamedRule& named : kRules) {
    if (named.name == pre) rule = named.rule;
  }
  if (rule == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.pre: unknown pre-tokenizer \"",
                     std::string(pre), "\""));
  }
  PreTokenizer result;
  result.ignore_merges_ = rule->ignore_merges;
  for (const std::string_view expression : rule->expressions) {
    if (expression.empty()) break;
    NIBBLE_ASSIGN_OR_RETURN(Code code, Compile(expression));
    result.codes_.push_back(std::move(code));
  }
  return result;
}

absl::StatusOr<std::vector<TextRange>> PreTokenizer::Split(
    std::string_view text) const {
  std::vector<TextRange> pieces;
  if (!text.empty()) pieces.push_back({0, text.size()});
  Matcher matcher;
  for (const Code& code : codes_) {
    std::vector<TextRange> finer;
    finer.reserve(pieces.size());
    for (const TextRange& piece : pieces) {
      NIBBLE_RETURN_IF_ERROR(
          SplitRange(code.get(), text, piece, matcher, finer));
    }
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace nibble::model
