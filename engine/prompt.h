// A request's prompt as token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace nibble::engine {

struct PreparedPrompt {
  std::vector<int32_t> ids;  // at least one
  // As a reader knows it: the text given, the chat as rendered, or the ids
  // spelled out. Valid UTF-8.
  std::string text;
};

// Tokenizes, after checking the prompt's size against `max_bytes`. An empty
// prompt is BOS alone if the vocabulary has one, else INVALID_ARGUMENT. A chat
// without a known template fails as `chat_template` does. Thread-safe.
absl::StatusOr<PreparedPrompt> PreparePrompt(
    const Prompt& prompt, int64_t max_bytes, const model::Tokenizer& tokenizer,
    const absl::StatusOr<model::ChatTemplate>& chat_template);

}  // namespace nibble::engine
