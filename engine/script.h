// The file of a scripted model, read and checked: docs/scripted-model.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer_data.h"

namespace nibble::engine {

// Which prompts a script answers; what is absent matches all.
struct ScriptCondition {
  std::optional<std::string> prompt_begins;    // of its text, special tokens
  std::optional<std::string> prompt_contains;  // spelled out
  std::optional<int32_t> prompt_tokens;        // its exact length

  bool always() const {
    return !prompt_begins && !prompt_contains && !prompt_tokens;
  }
};

// What a model answers to one kind of prompt. Plain values, checked.
struct Script {
  enum class Kind : uint8_t { kIds, kLogits, kHash };
  enum class Then : uint8_t { kEos, kRepeat };

  ScriptCondition when;
  Kind kind = Kind::kIds;
  Then then = Then::kEos;                  // after the last id or row
  std::vector<int32_t> ids;                // kIds: by generated position
  std::vector<std::vector<float>> logits;  // kLogits: [steps][vocab]
  uint64_t hash_seed = 0;                  // kHash
  int32_t hash_eos_period = 0;  // kHash: EOS once in so many; 0: never
};

struct ScriptDelays {
  std::chrono::microseconds step{};
  std::chrono::microseconds prefill_per_token{};
  int64_t block_at_step = 0;  // counted from 1; 0: never
  std::chrono::milliseconds block{};
};

// A whole file. Plain values, checked.
struct ScriptFile {
  std::string name;
  int32_t context_length = 0;     // tokens
  int32_t pages = 0;              // 0: not said
  int32_t page_size = 0;          // 0: not said
  int32_t max_batch_rows = 0;     // 0: not said
  float default_logit = -100.0f;  // of tokens a script does not name
  model::TokenizerData tokenizer;
  std::vector<Script> scripts;  // the first that matches answers
  ScriptDelays delays;
};

// INVALID_ARGUMENT "ORIGIN: FIELD: PROBLEM"; `origin` names the file.
absl::StatusOr<ScriptFile> ParseScriptFile(std::string_view json,
                                           std::string_view origin);

}  // namespace nibble::engine
