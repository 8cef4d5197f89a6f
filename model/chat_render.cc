#include "model/chat_render.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nibble::model {
namespace {

using Messages = std::span<const ChatMessage>;

// The text so far; neighbours of one kind are joined.
class Prompt final {
 public:
  Prompt& Markup(std::string_view text) { return Add(text, true); }
  Prompt& Content(std::string_view text) { return Add(text, false); }
  std::vector<PromptPiece> Take() { return std::move(pieces_); }

 private:
  Prompt& Add(std::string_view text, bool is_markup) {
    if (text.empty()) return *this;
    if (pieces_.empty() || pieces_.back().is_markup != is_markup) {
      pieces_.push_back({"", is_markup});
    }
    pieces_.back().text += text;
    return *this;
  }

  std::vector<PromptPiece> pieces_;
};

// What Python's str.strip (and so Jinja's trim) takes for white space.
bool IsPythonSpace(uint32_t code_point) {
  return (code_point >= 0x09 && code_point <= 0x0D) ||
         (code_point >= 0x1C && code_point <= 0x20) || code_point == 0x85 ||
         code_point == 0xA0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200A) ||
         code_point == 0x2028 || code_point == 0x2029 || code_point == 0x202F ||
         code_point == 0x205F || code_point == 0x3000;
}

std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8(text);
    if (!IsPythonSpace(unit.code_point)) break;
    text.remove_prefix(unit.length);
  }
  return text;
}

std::string_view StripRight(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && text.size() - last < 4 &&
           (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) {
      --last;
    }
    const Utf8Unit unit = NextUtf8(text.substr(last));
    if (last + unit.length != text.size() || !IsPythonSpace(unit.code_point)) {
      break;
    }
    text.remove_suffix(unit.length);
  }
  return text;
}

std::string_view Strip(std::string_view text) {
  return StripLeft(StripRight(text));
}

absl::Status Misfit(size_t index, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("messages[", index, "]: ", what));
}

absl::Status CheckRoles(Messages messages) {
  if (messages.empty()) {
    return absl::InvalidArgumentError("messages: at least one is needed");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return Misfit(i, absl::StrCat("role: \"", role,
                                    "\" is not system, user or assistant"));
    }
  }
  return absl::OkStatus();
}

// user, assistant, user, ... from messages[first] on.
absl::Status CheckAlternation(Messages messages, size_t first) {
  if (first == messages.size()) {
    return Misfit(first - 1, "the chat template needs a user message after it");
  }
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string_view expected =
        (i - first) % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      return Misfit(
          i, absl::StrCat("role: the chat template wants user and assistant "
                          "in turn, here \"",
                          std::string(expected), "\", not \"", messages[i].role,
                          "\""));
    }
  }
  return absl::OkStatus();
}

bool HasSystem(Messages messages) { return messages[0].role == "system"; }

void RenderChatMl(const ChatRules& rules, Messages messages, Prompt& prompt) {
  if (rules.style.default_system.has_value() && !HasSystem(messages)) {
    prompt.Markup("<|im_start|>system\n")
        .Markup(*rules.style.default_system)
        .Markup("<|im_end|>\n");
  }
  for (const ChatMessage& message : messages) {
    prompt.Markup("<|im_start|>")
        .Markup(message.role)
        .Markup("\n")
        .Content(message.content)
        .Markup("<|im_end|>\n");
  }
  prompt.Markup("<|im_start|>assistant\n");
}

absl::Status RenderLlama2(const ChatRules& rules, Messages messages,
                          Prompt& prompt) {
  const size_t first = HasSystem(messages) ? 1 : 0;
  NIBBLE_RETURN_IF_ERROR(CheckAlternation(messages, first));
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string_view content = messages[i].content;
    if (messages[i].role == "assistant") {
      prompt.Markup(" ").Content(Strip(content)).Markup(" ").Markup(rules.eos);
      continue;
    }
    prompt.Markup(rules.bos).Markup("[INST] ");
    if (i == first && first == 1) {
      // The template strips the system and user texts as one string.
      const std::string_view user = StripRight(content);
      prompt.Markup("<<SYS>>\n")
          .Content(messages[0].content)
          .Markup(user.empty() ? "\n<</SYS>>" : "\n<</SYS>>\n\n")
          .Content(user);
    } else {
      prompt.Content(Strip(content));
    }
    prompt.Markup(" [/INST]");
  }
  return absl::OkStatus();
}

void RenderLlama3(const ChatRules& rules, Messages messages, Prompt& prompt) {
  if (rules.style.date.has_value()) {
    prompt
        .Markup(
            "<|start_header_id|>system<|end_header_id|>\n\n"
            "Cutting Knowledge Date: December 2023\nToday Date: ")
        .Markup(*rules.style.date)
        .Markup("\n\n");
    if (HasSystem(messages)) {
      prompt.Content(Strip(messages[0].content));
      messages = messages.subspan(1);
    }
    prompt.Markup("<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    prompt.Markup("<|start_header_id|>")
        .Markup(message.role)
        .Markup("<|end_header_id|>\n\n")
        .Content(Strip(message.content))
        .Markup("<|eot_id|>");
  }
  prompt.Markup("<|start_header_id|>assistant<|end_header_id|>\n\n");
}

absl::Status RenderMistral(const ChatRules& rules, Messages messages,
                           Prompt& prompt) {
  const ChatStyle& style = rules.style;
  const bool has_system =
      style.system != ChatStyle::kRefused && HasSystem(messages);
  const size_t first = has_system ? 1 : 0;
  NIBBLE_RETURN_IF_ERROR(CheckAlternation(messages, first));
  const size_t with_system =
      style.system == ChatStyle::kWithFirst ? first : messages.size() - 1;
  for (size_t i = first; i < messages.size(); ++i) {
    const std::string_view content = messages[i].content;
    if (messages[i].role == "assistant") {
      prompt.Markup(style.before_assistant)
          .Content(style.trims_assistant ? Strip(content) : content)
          .Markup(rules.eos)
          .Markup(style.after_eos);
      continue;
    }
    prompt.Markup(style.before_user);
    if (has_system && i == with_system) {
      prompt.Content(messages[0].content).Markup("\n\n");
    }
    prompt.Content(content).Markup(style.after_user);
  }
  return absl::OkStatus();
}

void RenderZephyr(const ChatRules& rules, Messages messages, Prompt& prompt) {
  for (const ChatMessage& message : messages) {
    prompt.Markup("<|")
        .Markup(message.role)
        .Markup("|>\n")
        .Content(message.content)
        .Markup(rules.eos)
        .Markup("\n");
  }
  prompt.Markup("<|assistant|>\n");
}

absl::Status RenderGemma(Messages messages, Prompt& prompt) {
  NIBBLE_RETURN_IF_ERROR(CheckAlternation(messages, 0));
  for (const ChatMessage& message : messages) {
    prompt.Markup("<start_of_turn>")
        .Markup(message.role == "assistant" ? "model" : "user")
        .Markup("\n")
        .Content(Strip(message.content))
        .Markup("<end_of_turn>\n");
  }
  prompt.Markup("<start_of_turn>model\n");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<PromptPiece>> RenderChat(const ChatRules& rules,
                                                    Messages messages) {
  NIBBLE_RETURN_IF_ERROR(CheckRoles(messages));
  Prompt prompt;
  if (rules.style.writes_bos && rules.format != ChatFormat::kLlama2) {
    prompt.Markup(rules.bos);
  }
  absl::Status status;
  switch (rules.format) {
    case ChatFormat::kChatMl:
      RenderChatMl(rules, messages, prompt);
      break;
    case ChatFormat::kLlama2:
      status = RenderLlama2(rules, messages, prompt);
      break;
    case ChatFormat::kLlama3:
      RenderLlama3(rules, messages, prompt);
      break;
    case ChatFormat::kMistral:
      status = RenderMistral(rules, messages, prompt);
      break;
    case ChatFormat::kZephyr:
      RenderZephyr(rules, messages, prompt);
      break;
    case ChatFormat::kGemma:
      status = RenderGemma(messages, prompt);
      break;
  }
  if (!status.ok()) return status;
  return prompt.Take();
}

}  // namespace nibble::model
