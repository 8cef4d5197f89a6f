// Chat messages to prompt text, by the template a checkpoint carries.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

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

// The chat format recognised in a checkpoint's template text. Immutable,
// thread-safe, owned by the loaded model.
class ChatTemplate final {
 public:
  // FAILED_PRECONDITION when the file has no template or one we do not know:
  // only chat requests fail then, with this message.
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view jinja,
                                                std::string_view bos_text,
                                                std::string_view eos_text);

  // The prompt for `messages`, ending where the assistant is to go on, exactly
  // as the Jinja template would render it (with its default system prompt if
  // it has one, and its BOS if it writes one). INVALID_ARGUMENT when the
  // roles do not fit the template (e.g. two user messages in a row where it
  // refuses them) or there is no message.
  absl::StatusOr<std::vector<PromptPiece>> Render(
      std::span<const ChatMessage> messages) const;

  ChatFormat format() const { return format_; }
  std::string_view format_name() const;

 private:
  ChatTemplate() = default;
  ChatFormat format_ = ChatFormat::kChatMl;
  // Written only when the file's template holds it.
  std::string default_system_;
  std::string bos_;
  std::string eos_;
};

}  // namespace nibble::model
