// Chat messages to prompt pieces, format by format.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/chat_template.h"

namespace nibble::model {

// What a format needs to render. Borrows from the ChatTemplate.
struct ChatRules {
  ChatFormat format;
  const ChatStyle& style;
  std::string_view bos;
  std::string_view eos;
};

// See ChatTemplate::Render.
absl::StatusOr<std::vector<PromptPiece>> RenderChat(
    const ChatRules& rules, std::span<const ChatMessage> messages);

}  // namespace nibble::model
