#include "model/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "model/chat_recognise.h"
#include "model/chat_render.h"

namespace nibble::model {

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(
    std::string_view jinja, std::string_view bos_text,
    std::string_view eos_text) {
  if (jinja.empty()) {
    return absl::FailedPreconditionError(
        "the model's file has no chat template (tokenizer.chat_template)");
  }
  std::optional<RecognisedChat> known = RecogniseChat(ReadJinja(jinja));
  if (!known.has_value()) {
    return absl::FailedPreconditionError(
        "the chat template of the model's file is none of those known: "
        "ChatML, Llama 2, Llama 3, Mistral, Zephyr, Gemma");
  }
  ChatTemplate result;
  result.format_ = known->format;
  result.style_ = std::move(known->style);
  result.bos_ = bos_text;
  result.eos_ = eos_text;
  return result;
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(
    std::span<const ChatMessage> messages) const {
  return RenderChat({format_, style_, bos_, eos_}, messages);
}

std::string_view ChatTemplate::format_name() const {
  switch (format_) {
    case ChatFormat::kChatMl:
      return "chatml";
    case ChatFormat::kLlama2:
      return "llama2";
    case ChatFormat::kLlama3:
      return "llama3";
    case ChatFormat::kMistral:
      return "mistral";
    case ChatFormat::kZephyr:
      return "zephyr";
    case ChatFormat::kGemma:
      return "gemma";
  }
  NIBBLE_CHECK(false);
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(
    std::span<const PromptPiece> pieces, const Tokenizer& tokenizer,
    bool parse_special) {
  std::vector<TextPiece> texts;
  texts.reserve(pieces.size());
  for (const PromptPiece& piece : pieces) {
    texts.push_back({piece.text, piece.is_markup || parse_special});
  }
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                          tokenizer.EncodePieces(texts));
  if (tokenizer.adds_bos() &&
      (ids.empty() || ids.front() != *tokenizer.bos())) {
    ids.insert(ids.begin(), *tokenizer.bos());
  }
  return ids;
}

}  // namespace nibble::model
