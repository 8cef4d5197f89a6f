#include "model/chat_template.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/jinja_text.h"
#include "tests/model/golden_tokens.h"

namespace nibble::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Join(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

std::vector<ChatMessage> Messages(const nlohmann::json& list) {
  std::vector<ChatMessage> messages;
  for (const auto& message : list) {
    messages.push_back({message["role"], message["content"]});
  }
  return messages;
}

nlohmann::json GoldenTemplate(const std::string& name) {
  const auto golden = ReadGolden("chat.json");
  for (const auto& entry : golden["templates"]) {
    if (entry["name"] == name) return entry;
  }
  ADD_FAILURE() << name;
  return {};
}

absl::StatusOr<ChatTemplate> Recognise(const nlohmann::json& entry) {
  return ChatTemplate::Recognise(entry["template"].get<std::string>(),
                                 entry["bos"].get<std::string>(),
                                 entry["eos"].get<std::string>());
}

ChatTemplate Known(const std::string& name) {
  return *Recognise(GoldenTemplate(name));
}

TEST(ChatTemplateGoldenTest, RendersWhatJinjaRenders) {
  const auto golden = ReadGolden("chat.json");
  ASSERT_GE(golden["templates"].size(), 18u);
  int refused = 0;
  for (const auto& entry : golden["templates"]) {
    const std::string name = entry["name"];
    SCOPED_TRACE(name);
    const auto chat = Recognise(entry);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(chat->format_name(), entry["format"].get<std::string>());
    for (size_t i = 0; i < golden["conversations"].size(); ++i) {
      const auto& expected = entry["rendered"][i];
      const auto pieces = chat->Render(Messages(golden["conversations"][i]));
      if (expected.is_string()) {
        ASSERT_TRUE(pieces.ok()) << i << ": " << pieces.status();
        EXPECT_EQ(Join(*pieces), expected.get<std::string>()) << i;
      } else {
        // Jinja raised an error, or would have left a message out in silence.
        EXPECT_EQ(pieces.status().code(), absl::StatusCode::kInvalidArgument)
            << i;
        ++refused;
      }
    }
  }
  EXPECT_GE(refused, 20);
}

TEST(ChatTemplateTest, TellsMarkupFromContent) {
  const auto pieces =
      Known("qwen2").Render(std::vector<ChatMessage>{{"user", "<|im_end|>"}});
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_EQ(pieces->size(), 3u);
  EXPECT_TRUE((*pieces)[0].is_markup);
  EXPECT_EQ((*pieces)[1].text, "<|im_end|>");
  EXPECT_FALSE((*pieces)[1].is_markup);
  EXPECT_TRUE((*pieces)[2].is_markup);
  const auto golden = ReadGolden("chat.json");
  for (const auto& entry : golden["templates"]) {
    const auto rendered =
        Recognise(entry)->Render(std::vector<ChatMessage>{{"user", "needle"}});
    for (const PromptPiece& piece : *rendered) {
      EXPECT_EQ(piece.is_markup, piece.text.find("needle") == std::string::npos)
          << entry["name"];
    }
  }
}

TEST(ChatTemplateTest, NamesTheMessageThatDoesNotFit) {
  const auto error = [](const std::string& name,
                        const std::vector<ChatMessage>& messages) {
    const auto pieces = Known(name).Render(messages);
    EXPECT_EQ(pieces.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(pieces.status().message());
  };
  EXPECT_THAT(error("smollm2", {}), HasSubstr("at least one"));
  EXPECT_THAT(error("smollm2", {{"user", "a"}, {"tool", "b"}}),
              HasSubstr("messages[1]: role: \"tool\""));
  EXPECT_THAT(error("llama2", {{"user", "a"}, {"user", "b"}}),
              HasSubstr("messages[1]"));
  EXPECT_THAT(error("llama2", {{"system", "a"}}),
              HasSubstr("needs a user message"));
  EXPECT_THAT(error("mistral-v0.2", {{"system", "a"}, {"user", "b"}}),
              HasSubstr("messages[0]"));
}

TEST(ChatTemplateTest, RefusesATemplateItDoesNotKnow) {
  const std::string smollm2 = GoldenTemplate("smollm2")["template"];
  const std::string llama3 = GoldenTemplate("llama3")["template"];
  const auto with = [](std::string text, const std::string& from,
                       const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string unknown[] = {
      "",
      "{{ messages }}",
      "{% for message in messages %}{{ message['content'] }}{% endfor %}",
      // Close to a known one, but it writes something else.
      smollm2 + "extra",
      with(smollm2, "message['content']", "message['content'] | trim"),
      with(smollm2, "'<|im_end|>' + '\n'}}", "'<|im_end|>' }}"),
      with(smollm2, "loop.first and", "loop.last and"),
      with(smollm2, "{% endfor %}", "{% endfor %}{{ eos_token }}"),
      with(llama3, " | trim", ""),
      with(llama3, "{{ content }}", "{{ content }}{{ 'x' }}"),
      with(GoldenTemplate("qwen2.5")["template"], "{%- for message in",
           "{{ '<think>' }}{%- for message in"),
      with(GoldenTemplate("llama2")["template"], "{% else %}",
           "{% elif true == true %}{% set system_message = 'x' %}{% else %}"),
      with(GoldenTemplate("zephyr")["template"], "+ eos_token", ""),
      with(GoldenTemplate("gemma2")["template"], "| trim", ""),
      "{% for message in messages %}{{ '<|im_start|>",  // not closed
      std::string("{{\0}}", 5),
  };
  for (const std::string& jinja : unknown) {
    const auto chat = ChatTemplate::Recognise(jinja, "<s>", "</s>");
    EXPECT_EQ(chat.status().code(), absl::StatusCode::kFailedPrecondition)
        << jinja;
    EXPECT_THAT(std::string(chat.status().message()),
                HasSubstr("chat template"));
  }
}

TEST(ChatTemplateTest, SpellingDoesNotMatter) {
  const auto chat = ChatTemplate::Recognise(
      "{#- a comment -#}\n"
      "{%- for message in messages -%}\n"
      "  {{- \"<|im_start|>\" + message.role + \"\\n\" + message.content +\n"
      "      \"<|im_end|>\\n\" -}}\n"
      "{%- endfor -%}\n"
      "{%- if add_generation_prompt -%}\n"
      "  {{- \"<|im_start|>\" + 'assistant\\n' -}}\n"
      "{%- endif -%}\n",
      "", "");
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(Join(*chat->Render(std::vector<ChatMessage>{{"user", "x"}})),
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
}

TEST(JinjaTextTest, FollowsTheWhiteSpaceRulesOfTheEnvironment) {
  EXPECT_EQ(ReadJinja("a\n  {% x %}\n b {{ y }}\n").canonical,
            "a\n{%x%} b {{y}}");
  EXPECT_EQ(ReadJinja("a \n {%- x -%} \n b").canonical, "a{%x%}b");
  EXPECT_EQ(ReadJinja("a  {% x %} b").canonical, "a  {%x%} b");
  EXPECT_EQ(ReadJinja(" {%+ x %}\n\nb\n\n").canonical, " {%x%}\nb\n");
  EXPECT_EQ(ReadJinja("{# c #}\n {{- '}}' + \"'\" -}} ").canonical,
            "{{'}}''}}");
  EXPECT_THAT(ReadJinja("{{ a . role_x + b.role }}t{{'x\\n'}}").outputs,
              ElementsAre("a.role_x+b['role']", "'x\n'"));
}

// Bytes as tokens 0 to 255, then <s>, </s>, <|im_start|>, <|im_end|>, "\n\n".
TokenizerData ByteVocabulary() {
  TokenizerData data;
  data.type = TokenizerType::kLongestMatch;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(std::string(1, static_cast<char>(byte)));
  }
  data.kinds.assign(256, TokenKind::kNormal);
  for (const char* text : {"<s>", "</s>", "<|im_start|>", "<|im_end|>"}) {
    data.tokens.push_back(text);
    data.kinds.push_back(TokenKind::kControl);
  }
  data.tokens.push_back("\n\n");
  data.kinds.push_back(TokenKind::kNormal);
  data.bos = 256;
  data.eos = 257;
  return data;
}

std::vector<int32_t> Encode(const std::vector<PromptPiece>& pieces,
                            const Tokenizer& tokenizer,
                            bool parse_special = false) {
  const auto ids = EncodeChat(pieces, tokenizer, parse_special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

TEST(EncodeChatTest, SpecialTokensComeFromMarkupAlone) {
  const auto tokenizer = *Tokenizer::Create(ByteVocabulary());
  const std::vector<PromptPiece> pieces = {
      {"<|im_start|>", true}, {"</s>", false}, {"<|im_end|>", true}};
  EXPECT_THAT(Encode(pieces, *tokenizer),
              ElementsAre(258, '<', '/', 's', '>', 259));
  EXPECT_THAT(Encode(pieces, *tokenizer, /*parse_special=*/true),
              ElementsAre(258, 257, 259));
}

TEST(EncodeChatTest, NoSpecialTokenSpansABoundary) {
  const auto tokenizer = *Tokenizer::Create(ByteVocabulary());
  for (const bool parse_special : {false, true}) {
    EXPECT_THAT(Encode({{"<", true}, {"/s", false}, {">", true}}, *tokenizer,
                       parse_special),
                ElementsAre('<', '/', 's', '>'));
    EXPECT_THAT(
        Encode({{"</", false}, {"s>", true}}, *tokenizer, parse_special),
        ElementsAre('<', '/', 's', '>'));
  }
}

TEST(EncodeChatTest, PlainTextIsTokenizedAcrossBoundaries) {
  const auto tokenizer = *Tokenizer::Create(ByteVocabulary());
  EXPECT_THAT(Encode({{"a\n", true}, {"\nb", false}}, *tokenizer),
              ElementsAre('a', 260, 'b'));
}

TEST(EncodeChatTest, ThereIsOneBosHoweverItComes) {
  const std::vector<ChatMessage> messages = {{"user", "x"}};
  for (const bool adds_bos : {false, true}) {
    TokenizerData data = ByteVocabulary();
    data.add_bos = adds_bos;
    data.add_eos = true;
    const auto tokenizer = *Tokenizer::Create(std::move(data));
    for (const std::string name : {"chatml", "chatml-bos"}) {
      const auto pieces = Known(name).Render(messages);
      const std::vector<int32_t> ids = Encode(*pieces, *tokenizer);
      const bool wanted = adds_bos || name == "chatml-bos";
      EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), wanted ? 1 : 0);
      EXPECT_EQ(ids.front(), wanted ? 256 : 258);
      EXPECT_NE(ids.back(), 257);
    }
  }
}

TEST(EncodeChatTest, RefusesContentThatIsNotUtf8) {
  const auto tokenizer = *Tokenizer::Create(ByteVocabulary());
  EXPECT_EQ(
      EncodeChat(std::vector<PromptPiece>{{"\xFF", false}}, *tokenizer, false)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::model
