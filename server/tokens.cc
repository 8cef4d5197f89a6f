#include "server/tokens.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/errors.h"
#include "engine/prompt.h"
#include "server/request_from_proto.h"

namespace nibble::server {
namespace {

void AddToken(const model::Tokenizer& tokenizer, const model::TokenSpan& span,
              bool details, v1::TokenizeResponse& out) {
  out.add_ids(span.id);
  if (!details) return;
  v1::TokenDetail& detail = *out.add_details();
  detail.set_begin(static_cast<uint32_t>(span.begin));
  detail.set_end(static_cast<uint32_t>(span.end));
  detail.set_token_bytes(std::string(tokenizer.TokenBytes(span.id, true)));
  detail.set_special(tokenizer.IsSpecial(span.id));
}

}  // namespace

absl::Status Tokenize(const engine::Engine& engine, v1::TokenizeRequest proto,
                      v1::TokenizeResponse& out) {
  const model::Tokenizer& tokenizer = engine.tokenizer();
  switch (proto.input_case()) {
    case v1::TokenizeRequest::kText: {
      model::EncodeOptions options;
      options.add_special = !proto.has_add_special() || proto.add_special();
      options.parse_special = proto.parse_special();
      auto spans = tokenizer.EncodeWithSpans(proto.text(), options);
      if (!spans.ok()) {
        return engine::FieldError("text",
                                  std::string(spans.status().message()));
      }
      for (const model::TokenSpan& span : *spans) {
        AddToken(tokenizer, span, proto.details(), out);
      }
      return absl::OkStatus();
    }
    case v1::TokenizeRequest::kChat: {
      NIBBLE_ASSIGN_OR_RETURN(
          const engine::PreparedPrompt prompt,
          engine::PreparePrompt(ChatFromProto(std::move(*proto.mutable_chat()),
                                              proto.parse_special()),
                                engine.options().max_prompt_bytes, tokenizer,
                                engine.chat_template()));
      for (const int32_t id : prompt.ids) {
        AddToken(tokenizer, {id, 0, 0}, proto.details(), out);
      }
      return absl::OkStatus();
    }
    case v1::TokenizeRequest::INPUT_NOT_SET:
      break;
  }
  return engine::FieldError("input", "neither text nor chat is set");
}

absl::Status Detokenize(const engine::Engine& engine,
                        const v1::DetokenizeRequest& proto,
                        v1::DetokenizeResponse& out) {
  const model::Tokenizer& tokenizer = engine.tokenizer();
  for (int i = 0; i < proto.ids_size(); ++i) {
    const int32_t id = proto.ids(i);
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return engine::FieldError(
          absl::StrCat("ids[", i, "]"),
          absl::StrCat(id, " is outside the vocabulary, [0, ",
                       tokenizer.vocab_size(), ")"));
    }
  }
  const std::vector<int32_t> ids(proto.ids().begin(), proto.ids().end());
  out.set_text_bytes(tokenizer.Decode(ids, proto.special()));
  out.set_text(SanitizeUtf8(out.text_bytes()));
  return absl::OkStatus();
}

}  // namespace nibble::server
