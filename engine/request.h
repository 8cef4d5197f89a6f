// What a caller asks of an engine, and what it gets back. Plain values: no
// protobuf, no gRPC.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "kernels/sampling.h"
#include "model/chat_template.h"

namespace nibble::engine {

using Clock = std::chrono::steady_clock;

// Names a request from Submit on; given to no other request ever.
using RequestHandle = uint64_t;

struct TextPrompt {
  std::string text;
  bool parse_special = false;   // "<|im_end|>" in the text is a token
  std::optional<bool> add_bos;  // absent: as the vocabulary says
};
struct TokenPrompt {
  std::vector<int32_t> ids;  // taken as they are, no BOS added
};
struct ChatPrompt {
  std::vector<model::ChatMessage> messages;
  bool parse_special = false;  // in the messages' contents
};
using Prompt = std::variant<TextPrompt, TokenPrompt, ChatPrompt>;

struct StopRules {
  std::vector<std::string> strings;  // matched on text, none empty, UTF-8
  std::vector<int32_t> token_ids;    // beside the model's own end tokens
  bool include_stop = false;         // leave a matched string in the text
  bool ignore_eos = false;           // the model's end tokens do not stop
  // No end or stop token is chosen before so many tokens, and their text is
  // not searched for stop strings.
  int32_t min_new_tokens = 0;
};

struct OutputOptions {
  int32_t logprobs = -1;         // >= 0: chosen token's and so many best ones'
  int32_t prompt_logprobs = -1;  // >= 0: the same for each prompt token
  bool echo = false;             // the prompt's text before the generated text
  bool token_ids = false;
  bool token_bytes = false;
};

// One request. Built by the server (or a tool), moved into Engine::Submit.
struct Request {
  std::string id;  // unique among live ones; never empty
  Prompt prompt;
  kernels::SamplingParams sampling;
  int32_t n = 1;  // outputs; output i samples with seed + i
  // Absent: as many as the context has room for, at most
  // EngineOptions::default_max_new_tokens.
  std::optional<int32_t> max_new_tokens;
  StopRules stop;
  OutputOptions output;
  int32_t priority = 0;
  std::string cache_salt;  // pages are shared only under an equal salt
  Clock::time_point arrival = Clock::now();
  Clock::time_point deadline = Clock::time_point::max();
  // Longest wait before the first step, else RESOURCE_EXHAUSTED.
  Clock::duration max_queue = Clock::duration::max();
};

enum class FinishReason : uint8_t {
  kEos,          // the model's own end token
  kStopString,   // StopRules::strings
  kStopToken,    // StopRules::token_ids
  kLength,       // max_new_tokens
  kContextFull,  // no room left in the context
  kCancelled,
  kDeadline,
  kError,
};

// "eos", "stop_string", ...: metric labels and logs.
std::string_view Name(FinishReason reason);

// Tokens. `generated` counts every sampled id, the one that stopped included.
struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, from the prefix cache
  int32_t generated_tokens = 0;
};

// Where one output's time went, and which rows ran on which path.
struct Timings {
  Clock::duration queue{};        // arrival to first scheduled row
  Clock::duration prefill{};      // first scheduled row to first token
  Clock::duration decode{};       // first token to last
  Clock::duration first_token{};  // arrival to first token
  int64_t narrow_rows = 0;        // rows computed on the decode path
  int64_t wide_rows = 0;          // rows computed on the prompt path
};

struct OutputFinish {
  FinishReason reason = FinishReason::kError;
  std::variant<std::monostate, std::string, int32_t> matched_stop;
  Usage usage;
  Timings timings;
  uint64_t seed = 0;  // the one this output sampled with
};

// One token as the response shows it.
struct OutputToken {
  int32_t id = 0;
  std::string bytes;  // what it adds to the text, raw: may be part of a
                      // character; nothing for a special token
  // Set when logprobs were asked for (prompt: absent for the first token).
  std::optional<kernels::TokenLogprob> logprob;
  std::vector<kernels::TokenLogprob> top;
};

// What an engine tells about the prompt, before the first delta.
struct PromptInfo {
  int32_t prompt_tokens = 0;
  std::string echo;                 // the prompt's text, if asked for
  std::vector<OutputToken> tokens;  // if prompt_logprobs or token_ids and echo
};

// What came in one step for one output. Joined texts are the answer: with
// `echo` the first one begins with the prompt's text. A text may be empty
// while a character or a possible stop is held back. `tokens` is filled when
// ids, bytes or logprobs were asked for, with every sampled token: those whose
// text is held back or cut off by a stop, and the one that stopped, included.
struct Delta {
  int32_t index = 0;  // output, [0, n)
  std::string text;   // valid UTF-8
  std::vector<OutputToken> tokens;
  std::optional<OutputFinish> finish;  // the output's last delta
};

// How a whole request ended.
struct RequestResult {
  // OK when every output has had its finish; else why not (CANCELLED,
  // DEADLINE_EXCEEDED, INTERNAL for non-finite logits, UNAVAILABLE).
  absl::Status status;
  Usage usage;  // summed over outputs, the prompt counted once
};

}  // namespace nibble::engine
