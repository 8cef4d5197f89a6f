#include "model/chat_recognise.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace nibble::model {
namespace {

constexpr std::string_view kAlternation =
    "(message['role']=='user')!=(loop.index0%2==0)";

// Whether everything the template writes is one of `known` or an error.
bool WritesOnly(const JinjaText& text,
                std::initializer_list<std::string_view> known) {
  return std::all_of(
      text.outputs.begin(), text.outputs.end(), [&](const std::string& output) {
        return output.starts_with("raise_exception(") ||
               std::find(known.begin(), known.end(), output) != known.end();
      });
}

bool Writes(const JinjaText& text, std::string_view output) {
  return std::find(text.outputs.begin(), text.outputs.end(), output) !=
         text.outputs.end();
}

// The text between the first `before` and the next `after`.
std::optional<std::string> Between(const JinjaText& text,
                                   std::string_view before,
                                   std::string_view after) {
  const size_t found = text.canonical.find(before);
  if (found == std::string::npos) return std::nullopt;
  const size_t begin = found + before.size();
  const size_t end = text.canonical.find(after, begin);
  if (end == std::string::npos) return std::nullopt;
  return text.canonical.substr(begin, end - begin);
}

// "'...system\n<the default><|im_end|>\n'" as a whole output.
std::optional<std::string> ChatMlDefaultSystem(const JinjaText& text) {
  constexpr std::string_view kBefore = "'<|im_start|>system\n";
  constexpr std::string_view kAfter = "<|im_end|>\n'";
  for (const std::string& output : text.outputs) {
    if (output.starts_with(kBefore) && output.ends_with(kAfter) &&
        output.find("'+") == std::string::npos) {
      return output.substr(kBefore.size(),
                           output.size() - kBefore.size() - kAfter.size());
    }
  }
  return std::nullopt;
}

std::optional<RecognisedChat> RecogniseChatMl(const JinjaText& text) {
  constexpr std::string_view kMessage =
      "'<|im_start|>'+message['role']+'\n'+message['content']+"
      "'<|im_end|>\n'";
  constexpr std::string_view kPrompt = "'<|im_start|>assistant\n'";
  constexpr std::string_view kFirstSystem =
      "'<|im_start|>system\n'+messages[0]['content']+'<|im_end|>\n'";
  if (!text.data.empty() || !Writes(text, kMessage) || !Writes(text, kPrompt)) {
    return std::nullopt;
  }
  RecognisedChat chat{ChatFormat::kChatMl, {}};
  chat.style.default_system = ChatMlDefaultSystem(text);
  chat.style.writes_bos = Writes(text, "bos_token");
  if (text.Contains("{%iftools%}")) {
    // Qwen2.5: what it writes for tools is never reached. Later templates of
    // the family, which think and take tool answers apart, are other formats.
    const bool qwen25 = Writes(text, kFirstSystem) &&
                        chat.style.default_system.has_value() &&
                        !text.Contains("think") && !text.Contains("namespace");
    return qwen25 ? std::optional(chat) : std::nullopt;
  }
  const std::string default_system = "'<|im_start|>system\n" +
                                     chat.style.default_system.value_or("") +
                                     "<|im_end|>\n'";
  if (!WritesOnly(text, {kMessage, kPrompt, "bos_token", default_system}) ||
      text.Contains("raise_exception") ||
      chat.style.default_system.has_value() !=
          text.Contains("{%ifloop.firstandmessages[0]['role']!='system'%}")) {
    return std::nullopt;
  }
  return chat;
}

std::optional<RecognisedChat> RecogniseLlama2(const JinjaText& text) {
  constexpr std::string_view kUser =
      "bos_token+'[INST] '+content.strip()+' [/INST]'";
  constexpr std::string_view kAssistant = "' '+content.strip()+' '+eos_token";
  if (!text.data.empty() || !Writes(text, kUser) || !Writes(text, kAssistant) ||
      !text.Contains("{%setcontent='<<SYS>>\n'+system_message+"
                     "'\n<</SYS>>\n\n'+message['content']%}") ||
      !text.Contains(kAlternation) ||
      // A default system message, switched on.
      text.Contains("true==true") ||
      !WritesOnly(text, {kUser, kAssistant,
                         "'<<SYS>>\n'+content.strip()+'\n<</SYS>>\n\n'"})) {
    return std::nullopt;
  }
  RecognisedChat chat{ChatFormat::kLlama2, {}};
  chat.style.writes_bos = true;
  return chat;
}

std::optional<RecognisedChat> RecogniseLlama3(const JinjaText& text) {
  constexpr std::string_view kMessage =
      "'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+"
      "message['content']|trim+'<|eot_id|>'";
  constexpr std::string_view kPrompt =
      "'<|start_header_id|>assistant<|end_header_id|>\n\n'";
  if (!text.data.empty() || !text.Contains(kMessage) ||
      !Writes(text, kPrompt)) {
    return std::nullopt;
  }
  RecognisedChat chat{ChatFormat::kLlama3, {}};
  chat.style.writes_bos = Writes(text, "bos_token") ||
                          text.Contains("{%setcontent=bos_token+content%}");
  if (Writes(text, "'Cutting Knowledge Date: December 2023\n'") &&
      Writes(text, "'Today Date: '+date_string+'\n\n'") &&
      Writes(text, "system_message") && !text.Contains("think")) {
    chat.style.date = Between(text, "{%setdate_string='", "'%}");
    return chat.style.date.has_value() ? std::optional(chat) : std::nullopt;
  }
  if (!WritesOnly(text, {"content", "bos_token", kMessage, kPrompt})) {
    return std::nullopt;
  }
  return chat;
}

// How a template writes a content.
struct MistralTurn {
  std::string_view output;
  std::string_view before;
  std::string_view after;
  bool trims;
};

// The first of `turns` that the template writes.
const MistralTurn* FindTurn(const JinjaText& text,
                            std::span<const MistralTurn> turns) {
  for (const MistralTurn& turn : turns) {
    if (Writes(text, turn.output)) return &turn;
  }
  return nullptr;
}

constexpr MistralTurn kMistralUserTurns[] = {
    {"'[INST] '+message['content']+' [/INST]'", "[INST] ", " [/INST]", false},
    {"' [INST] '+message['content']+' [/INST]'", " [INST] ", " [/INST]", false},
    {"'[INST] '+message['content']+'[/INST]'", "[INST] ", "[/INST]", false},
    {"'[INST]'+message['content']+'[/INST]'", "[INST]", "[/INST]", false},
};
constexpr MistralTurn kMistralAssistantTurns[] = {
    {"message['content']+eos_token", "", "", false},
    {"message['content']+eos_token+' '", "", " ", false},
    {"' '+message['content']+eos_token", " ", "", false},
    {"' '+message['content']|trim+eos_token", " ", "", true},
};

// Where the template puts a system message that it writes; nothing when we do
// not know.
std::optional<ChatStyle::System> MistralSystemPlace(const JinjaText& text) {
  if (text.Contains("{%ifloop.firstandsystem_messageisdefined%}")) {
    return ChatStyle::kWithFirst;
  }
  if (text.Contains("{%ifloop.lastandsystem_messageisdefined%}")) {
    return ChatStyle::kWithLast;
  }
  return std::nullopt;
}

std::optional<RecognisedChat> RecogniseMistral(const JinjaText& text) {
  const MistralTurn* user = FindTurn(text, kMistralUserTurns);
  const MistralTurn* assistant = FindTurn(text, kMistralAssistantTurns);
  const bool alternates =
      text.Contains(kAlternation) ||
      text.Contains("(message['role']=='user')!=(ns.index%2==0)");
  if (!text.data.empty() || user == nullptr || assistant == nullptr ||
      !alternates || !Writes(text, "bos_token") ||
      text.Contains("SYSTEM_PROMPT") || text.Contains("THINK")) {
    return std::nullopt;
  }
  RecognisedChat chat{ChatFormat::kMistral, {}};
  chat.style.writes_bos = true;
  chat.style.before_user = user->before;
  chat.style.after_user = user->after;
  chat.style.before_assistant = assistant->before;
  chat.style.after_eos = assistant->after;
  chat.style.trims_assistant = assistant->trims;
  std::string with_system = "'";
  with_system.append(user->before)
      .append("'+system_message+'\n\n'+message['content']+'")
      .append(user->after)
      .append("'");
  if (Writes(text, with_system)) {
    const auto place = MistralSystemPlace(text);
    if (!place.has_value()) return std::nullopt;
    chat.style.system = *place;
  }
  // What is written for tools is never reached.
  const bool only_known = text.Contains("[AVAILABLE_TOOLS]") ||
                          WritesOnly(text, {"bos_token", user->output,
                                            assistant->output, with_system});
  return only_known ? std::optional(chat) : std::nullopt;
}

std::optional<RecognisedChat> RecogniseZephyr(const JinjaText& text) {
  constexpr std::string_view kTemplate =
      "{%formessageinmessages%}"
      "{%ifmessage['role']=='user'%}"
      "{{'<|user|>\n'+message['content']+eos_token}}\n"
      "{%elifmessage['role']=='system'%}"
      "{{'<|system|>\n'+message['content']+eos_token}}\n"
      "{%elifmessage['role']=='assistant'%}"
      "{{'<|assistant|>\n'+message['content']+eos_token}}\n"
      "{%endif%}"
      "{%ifloop.lastandadd_generation_prompt%}"
      "{{'<|assistant|>'}}\n"
      "{%endif%}"
      "{%endfor%}";
  if (text.canonical != kTemplate) return std::nullopt;
  return RecognisedChat{ChatFormat::kZephyr, {}};
}

std::optional<RecognisedChat> RecogniseGemma(const JinjaText& text) {
  constexpr std::string_view kMessage =
      "'<start_of_turn>'+role+'\n'+message['content']|trim+"
      "'<end_of_turn>\n'";
  constexpr std::string_view kPrompt = "'<start_of_turn>model\n'";
  if (!text.data.empty() || !Writes(text, kMessage) || !Writes(text, kPrompt) ||
      !text.Contains(kAlternation) ||
      !text.Contains("{%ifmessages[0]['role']=='system'%}"
                     "{{raise_exception(") ||
      !WritesOnly(text, {kMessage, kPrompt, "bos_token"})) {
    return std::nullopt;
  }
  RecognisedChat chat{ChatFormat::kGemma, {}};
  chat.style.writes_bos = Writes(text, "bos_token");
  return chat;
}

}  // namespace

std::optional<RecognisedChat> RecogniseChat(const JinjaText& text) {
  for (const auto recognise :
       {RecogniseChatMl, RecogniseLlama2, RecogniseLlama3, RecogniseMistral,
        RecogniseZephyr, RecogniseGemma}) {
    std::optional<RecognisedChat> chat = recognise(text);
    if (chat.has_value()) return chat;
  }
  return std::nullopt;
}

}  // namespace nibble::model
