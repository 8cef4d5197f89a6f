#include "engine/prompt.h"

#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/errors.h"

namespace nibble::engine {
namespace {

absl::Status CheckSize(std::string_view field, size_t bytes,
                       int64_t max_bytes) {
  if (static_cast<int64_t>(bytes) <= max_bytes) return absl::OkStatus();
  return WithRejection(FieldError(field, absl::StrCat(bytes, " bytes, at most ",
                                                      max_bytes, " are taken")),
                       Rejection::kTooLong);
}

// The tokenizer's complaint, with the field it is about.
absl::Status NameField(std::string_view field, const absl::Status& status) {
  return FieldError(field, std::string(status.message()));
}

absl::StatusOr<PreparedPrompt> PrepareText(const TextPrompt& prompt,
                                           const model::Tokenizer& tokenizer) {
  const bool want_bos = prompt.add_bos.value_or(tokenizer.adds_bos());
  if (want_bos && !tokenizer.bos().has_value()) {
    return FieldError("add_bos", "the vocabulary has no BOS token");
  }
  model::EncodeOptions options;
  options.add_special = prompt.add_bos.value_or(true);
  options.parse_special = prompt.parse_special;
  absl::StatusOr<std::vector<int32_t>> ids =
      tokenizer.Encode(prompt.text, options);
  if (!ids.ok()) return NameField("text", ids.status());
  const std::optional<int32_t> bos = tokenizer.bos();
  if (want_bos && (ids->empty() || ids->front() != *bos)) {
    // The request wants a BOS that the vocabulary does not add by itself.
    ids->insert(ids->begin(), *bos);
  } else if (ids->empty() && bos.has_value() && !prompt.add_bos.has_value()) {
    ids->push_back(*bos);
  }
  if (ids->empty()) {
    return FieldError("text", "the prompt is empty and no BOS is put first");
  }
  return PreparedPrompt{*std::move(ids), prompt.text};
}

absl::StatusOr<PreparedPrompt> PrepareIds(const TokenPrompt& prompt,
                                          const model::Tokenizer& tokenizer) {
  std::vector<int32_t> ids = prompt.ids;
  if (ids.empty()) {
    if (!tokenizer.bos().has_value()) {
      return FieldError("token_ids.ids",
                        "the prompt is empty and the vocabulary has no BOS");
    }
    ids.push_back(*tokenizer.bos());
  }
  std::string text = SanitizeUtf8(tokenizer.Decode(ids));
  return PreparedPrompt{std::move(ids), std::move(text)};
}

absl::StatusOr<PreparedPrompt> PrepareChat(
    const ChatPrompt& prompt, const model::Tokenizer& tokenizer,
    const absl::StatusOr<model::ChatTemplate>& chat_template) {
  NIBBLE_RETURN_IF_ERROR(chat_template.status());
  absl::StatusOr<std::vector<model::PromptPiece>> pieces =
      chat_template->Render(prompt.messages);
  if (!pieces.ok()) return NameField("chat.messages", pieces.status());
  absl::StatusOr<std::vector<int32_t>> ids =
      model::EncodeChat(*pieces, tokenizer, prompt.parse_special);
  if (!ids.ok()) return NameField("chat.messages", ids.status());
  PreparedPrompt prepared{*std::move(ids), {}};
  for (const model::PromptPiece& piece : *pieces) {
    prepared.text.append(piece.text);
  }
  return prepared;
}

size_t PromptBytes(const ChatPrompt& prompt) {
  size_t bytes = 0;
  for (const model::ChatMessage& message : prompt.messages) {
    bytes += message.role.size() + message.content.size();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<PreparedPrompt> PreparePrompt(
    const Prompt& prompt, int64_t max_bytes, const model::Tokenizer& tokenizer,
    const absl::StatusOr<model::ChatTemplate>& chat_template) {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    NIBBLE_RETURN_IF_ERROR(CheckSize("text", text->text.size(), max_bytes));
    return PrepareText(*text, tokenizer);
  }
  if (const auto* tokens = std::get_if<TokenPrompt>(&prompt)) {
    return PrepareIds(*tokens, tokenizer);
  }
  const auto& chat = std::get<ChatPrompt>(prompt);
  NIBBLE_RETURN_IF_ERROR(
      CheckSize("chat.messages", PromptBytes(chat), max_bytes));
  return PrepareChat(chat, tokenizer, chat_template);
}

}  // namespace nibble::engine
