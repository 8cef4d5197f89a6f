// Chat messages to prompt text, by the template a checkpoint carries.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer.h"

namespace nibble::model {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

enum class ChatFormat : uint8_t {
  kChatMl,
  kLlama2,
  kLlama3,
  kMistral,
  kZephyr,
  kGemma,
};

// A piece of a rendered chat. Markup pieces are the template's own, so special
// tokens are recognised in them; content pieces came from a user, so they are
// plain text unless the request says parse_special.
struct PromptPiece {
  std::string text;
  bool is_markup = false;
};

// What differs between templates of one format. Plain values.
struct ChatStyle {
  // kChatMl: written as the system message when there is none.
  std::optional<std::string> default_system;
  // Written once, before everything (kLlama2: before each user message).
  bool writes_bos = false;
  // kLlama3: the dates that version 3.1 and later put before the system text.
  std::optional<std::string> date;
  // kMistral: the spaces of its versions, and where a system message goes.
  std::string before_user = "[INST] ";
  std::string after_user = " [/INST]";
  std::string before_assistant;
  std::string after_eos;
  bool trims_assistant = false;
  enum System { kRefused, kWithFirst, kWithLast } system = kRefused;
};

// The chat format recognised in a checkpoint's template text. Immutable,
// thread-safe, owned by the loaded model.
//
// Recognised are the published templates of ChatML (SmolLM2, Qwen2, Qwen2.5
// and those without a default system message), Llama 2, Llama 3 to 3.3,
// Mistral (7B v0.1 to v0.3, Nemo), Zephyr and Gemma, however they are spelled;
// a template that writes anything else is refused rather than guessed at.
// Tools are never given. Where a template asks for today's date, it gets the
// date it names for when there is no clock, so that prompts are reproducible.
class ChatTemplate final {
 public:
  // FAILED_PRECONDITION when the file has no template or one we do not know:
  // only chat requests fail then, with this message.
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view jinja,
                                                std::string_view bos_text,
                                                std::string_view eos_text);

  // The prompt for `messages`, ending where the assistant is to go on, exactly
  // as the Jinja template would render it with add_generation_prompt (with its
  // default system prompt if it has one, and its BOS if it writes one).
  // INVALID_ARGUMENT when the roles do not fit the template (e.g. two user
  // messages in a row where it refuses them) or there is no message.
  absl::StatusOr<std::vector<PromptPiece>> Render(
      std::span<const ChatMessage> messages) const;

  ChatFormat format() const { return format_; }
  std::string_view format_name() const;

 private:
  ChatTemplate() = default;

  ChatFormat format_ = ChatFormat::kChatMl;
  ChatStyle style_;
  std::string bos_;
  std::string eos_;
};

// The ids of a rendered chat: those of the joined text, with special tokens
// recognised inside markup (and inside content if `parse_special`), never
// across a boundary. It begins with one BOS if the template writes one or the
// vocabulary adds one, also if both do; EOS is not added. INVALID_ARGUMENT as
// Tokenizer::Encode.
absl::StatusOr<std::vector<int32_t>> EncodeChat(
    std::span<const PromptPiece> pieces, const Tokenizer& tokenizer,
    bool parse_special);

}  // namespace nibble::model
