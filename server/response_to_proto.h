// Engine values as the wire shows them.
#pragma once

#include "engine/engine.h"
#include "engine/request.h"
#include "nibble/v1/nibble.pb.h"

namespace nibble::server {

v1::FinishReason ToProto(engine::FinishReason reason);
void ToProto(const engine::Usage& usage, v1::Usage& proto);
void ToProto(const engine::OutputFinish& finish, v1::Finish& proto);
void ToProto(engine::PromptInfo prompt, const engine::OutputOptions& asked,
             const model::Tokenizer& tokenizer, v1::PromptInfo& proto);

// Sets only what `asked` says. The bytes of top tokens come from `tokenizer`.
void ToProto(engine::OutputToken token, const engine::OutputOptions& asked,
             const model::Tokenizer& tokenizer, v1::Token& proto);

}  // namespace nibble::server
