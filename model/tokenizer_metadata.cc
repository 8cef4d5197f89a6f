#include "model/tokenizer_metadata.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nibble::model {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";

// Vocabularies of byte-level BPE that put BOS first unless a key says
// otherwise, by tokenizer.ggml.pre (as llama.cpp has them).
constexpr std::array<std::string_view, 8> kPreWithBos = {
    "llama3",  "llama-v3", "llama-bpe", "falcon3",
    "pixtral", "lfm2",     "tekken",    "chameleon"};

// Control tokens that end a text by their spelling: files name one EOS, chat
// models use several.
constexpr std::array<std::string_view, 10> kEndSpellings = {
    "<|im_end|>",    "<|eot_id|>",        "<|eom_id|>", "<|end_of_text|>",
    "<|endoftext|>", "<end_of_turn>",     "</s>",       "<|end|>",
    "<eos>",         "<end_of_utterance>"};

// Reads one file's vocabulary; a local of ReadTokenizerData.
class TokenizerReader final {
 public:
  explicit TokenizerReader(const GgufFile& file) : file_(file) {}
  absl::StatusOr<TokenizerData> Read();

 private:
  absl::StatusOr<bool> ReadType();
  absl::Status ReadTokens();
  absl::Status ReadKinds();
  absl::Status ReadScores();
  absl::Status ReadMerges();
  absl::Status ReadSpecialIds();
  absl::Status ReadFlags();
  void CollectEnds();
  absl::Status CheckLength(std::string_view key, size_t length) const;
  absl::Status ReadId(std::string_view key, std::optional<int32_t>& id) const;

  const GgufFile& file_;
  TokenizerData data_;
};

// False: the file has no vocabulary.
absl::StatusOr<bool> TokenizerReader::ReadType() {
  if (file_.Find("tokenizer.ggml.model") == nullptr &&
      file_.Find(kTokensKey) == nullptr) {
    return false;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view model,
                          file_.String("tokenizer.ggml.model"));
  if (model == "none" || model == "no_vocab") return false;
  if (model == "gpt2") {
    data_.type = TokenizerType::kByteLevelBpe;
    data_.add_space_prefix = false;
  } else if (model == "llama") {
    data_.type = TokenizerType::kSentencePiece;
    data_.add_space_prefix = true;
  } else {
    return file_.KeyError(
        "tokenizer.ggml.model",
        absl::StrCat("is ", Quoted(model), ", expected gpt2, llama or none"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view pre,
                          file_.StringOr("tokenizer.ggml.pre", ""));
  data_.pre = SanitizeUtf8(pre);
  return true;
}

absl::Status TokenizerReader::ReadTokens() {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens,
                          file_.Strings(kTokensKey));
  if (tokens.empty()) return file_.KeyError(kTokensKey, "is empty");
  // The rows of the embedding; a tensor's rows fit int32_t by ModelConfig.
  const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
  if (embedding != nullptr &&
      static_cast<uint64_t>(embedding->View().n) != tokens.size()) {
    return file_.KeyError(kTokensKey,
                          absl::StrCat("has ", tokens.size(),
                                       " tokens, expected the rows of tensor "
                                       "\"token_embd.weight\", ",
                                       embedding->View().n));
  }
  data_.tokens.assign(tokens.begin(), tokens.end());
  return absl::OkStatus();
}

absl::Status TokenizerReader::CheckLength(std::string_view key,
                                          size_t length) const {
  if (length == data_.tokens.size()) return absl::OkStatus();
  return file_.KeyError(
      key, absl::StrCat("has ", length, " elements, expected one a token, ",
                        data_.tokens.size()));
}

absl::Status TokenizerReader::ReadKinds() {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  data_.kinds.assign(data_.tokens.size(), TokenKind::kNormal);
  if (file_.Find(kKey) == nullptr) return absl::OkStatus();
  // By the numbers of the file; 0 is "undefined".
  constexpr std::array kKinds = {TokenKind::kNormal,      TokenKind::kNormal,
                                 TokenKind::kUnknown,     TokenKind::kControl,
                                 TokenKind::kUserDefined, TokenKind::kUnused,
                                 TokenKind::kByte};
  NIBBLE_ASSIGN_OR_RETURN(
      const std::vector<int64_t> types,
      file_.Integers(kKey, {0, static_cast<int64_t>(kKinds.size()) - 1}));
  NIBBLE_RETURN_IF_ERROR(CheckLength(kKey, types.size()));
  for (size_t i = 0; i < types.size(); ++i) data_.kinds[i] = kKinds[types[i]];
  return absl::OkStatus();
}

absl::Status TokenizerReader::ReadScores() {
  if (data_.type != TokenizerType::kSentencePiece) return absl::OkStatus();
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  NIBBLE_ASSIGN_OR_RETURN(data_.scores, file_.Floats(kKey));
  return CheckLength(kKey, data_.scores.size());
}

absl::Status TokenizerReader::ReadMerges() {
  if (data_.type != TokenizerType::kByteLevelBpe) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string_view> merges,
                          file_.Strings("tokenizer.ggml.merges"));
  data_.merges.assign(merges.begin(), merges.end());
  return absl::OkStatus();
}

absl::Status TokenizerReader::ReadId(std::string_view key,
                                     std::optional<int32_t>& id) const {
  if (file_.Find(key) == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(
      const int64_t value,
      file_.Integer(key, {0, static_cast<int64_t>(data_.tokens.size()) - 1}));
  id = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status TokenizerReader::ReadSpecialIds() {
  if (data_.type == TokenizerType::kSentencePiece && data_.tokens.size() >= 3) {
    // SentencePiece's own defaults.
    data_.unknown = 0;
    data_.bos = 1;
    data_.eos = 2;
  }
  NIBBLE_RETURN_IF_ERROR(ReadId("tokenizer.ggml.bos_token_id", data_.bos));
  NIBBLE_RETURN_IF_ERROR(ReadId("tokenizer.ggml.eos_token_id", data_.eos));
  NIBBLE_RETURN_IF_ERROR(ReadId("tokenizer.ggml.eot_token_id", data_.eot));
  NIBBLE_RETURN_IF_ERROR(
      ReadId("tokenizer.ggml.unknown_token_id", data_.unknown));
  // Fine-tunes are known to name a padding token they never added; nothing
  // here pads.
  const absl::Status padding =
      ReadId("tokenizer.ggml.padding_token_id", data_.padding);
  if (!padding.ok()) {
    Log(LogLevel::kWarning, "padding token ignored")
        .With("reason", std::string(padding.message()));
  }
  return absl::OkStatus();
}

absl::Status TokenizerReader::ReadFlags() {
  const bool bos_by_default = data_.type == TokenizerType::kSentencePiece ||
                              std::find(kPreWithBos.begin(), kPreWithBos.end(),
                                        data_.pre) != kPreWithBos.end();
  NIBBLE_ASSIGN_OR_RETURN(
      data_.add_bos,
      file_.BoolOr("tokenizer.ggml.add_bos_token", bos_by_default));
  NIBBLE_ASSIGN_OR_RETURN(data_.add_eos,
                          file_.BoolOr("tokenizer.ggml.add_eos_token", false));
  NIBBLE_ASSIGN_OR_RETURN(
      data_.add_space_prefix,
      file_.BoolOr("tokenizer.ggml.add_space_prefix", data_.add_space_prefix));
  if (data_.add_bos && !data_.bos) {
    return file_.KeyError("tokenizer.ggml.bos_token_id",
                          "is missing, but texts are to begin with it");
  }
  if (data_.add_eos && !data_.eos) {
    return file_.KeyError("tokenizer.ggml.eos_token_id",
                          "is missing, but texts are to end with it");
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view chat_template,
                          file_.StringOr("tokenizer.chat_template", ""));
  data_.chat_template = SanitizeUtf8(chat_template);
  return absl::OkStatus();
}

void TokenizerReader::CollectEnds() {
  std::vector<int32_t>& ends = data_.end_of_generation;
  for (const std::optional<int32_t>& id : {data_.eos, data_.eot}) {
    if (id) ends.push_back(*id);
  }
  for (size_t i = 0; i < data_.tokens.size(); ++i) {
    if (data_.kinds[i] == TokenKind::kControl &&
        std::find(kEndSpellings.begin(), kEndSpellings.end(),
                  data_.tokens[i]) != kEndSpellings.end()) {
      ends.push_back(static_cast<int32_t>(i));
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

absl::StatusOr<TokenizerData> TokenizerReader::Read() {
  NIBBLE_ASSIGN_OR_RETURN(const bool has_vocabulary, ReadType());
  if (!has_vocabulary) return TokenizerData();
  NIBBLE_RETURN_IF_ERROR(ReadTokens());
  NIBBLE_RETURN_IF_ERROR(ReadKinds());
  NIBBLE_RETURN_IF_ERROR(ReadScores());
  NIBBLE_RETURN_IF_ERROR(ReadMerges());
  NIBBLE_RETURN_IF_ERROR(ReadSpecialIds());
  NIBBLE_RETURN_IF_ERROR(ReadFlags());
  std::optional<int32_t> end_of_message;
  NIBBLE_RETURN_IF_ERROR(ReadId("tokenizer.ggml.eom_token_id", end_of_message));
  if (end_of_message) data_.end_of_generation.push_back(*end_of_message);
  CollectEnds();
  return std::move(data_);
}

}  // namespace

absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufFile& file) {
  return TokenizerReader(file).Read();
}

}  // namespace nibble::model
