#include "engine/validate.h"

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/errors.h"

namespace nibble::engine {
namespace {

// As the proto documents them.
constexpr size_t kMaxIdBytes = 128;
constexpr size_t kMaxSaltBytes = 256;
constexpr size_t kMaxLogitBiases = 1024;
constexpr int32_t kMaxPriority = 100;
constexpr float kMaxTemperature = 100.0f;
constexpr float kMaxPenalty = 2.0f;
constexpr float kMaxRepetitionPenalty = 10.0f;
// Each is compared with every token while min_new_tokens bans them.
constexpr size_t kMaxStopTokens = 1024;

std::string Print(float value) { return absl::StrCat(value); }
std::string Print(int32_t value) { return absl::StrCat(value); }

// `problem` with the value before it: "1.5 is outside (0, 1]".
template <typename T>
absl::Status Outside(std::string_view field, T value, std::string_view range) {
  return FieldError(field, Print(value) + " is outside " + std::string(range));
}

// Ranges are written so that a NaN is outside of all of them.
template <typename T>
absl::Status CheckClosed(std::string_view field, T value, T low, T high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Outside(field, value, absl::StrCat("[", low, ", ", high, "]"));
}

absl::Status CheckHalfOpen(std::string_view field, float value, float high) {
  if (value > 0.0f && value <= high) return absl::OkStatus();
  return Outside(field, value, absl::StrCat("(0, ", high, "]"));
}

absl::Status CheckToken(const std::string& field, int32_t id,
                        int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return Outside(field, id,
                 absl::StrCat("the vocabulary, [0, ", vocab_size, ")"));
}

absl::Status CheckPrompt(const Prompt& prompt, int32_t vocab_size) {
  if (const auto* tokens = std::get_if<TokenPrompt>(&prompt)) {
    for (size_t i = 0; i < tokens->ids.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(CheckToken(absl::StrCat("token_ids.ids[", i, "]"),
                                        tokens->ids[i], vocab_size));
    }
  } else if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) {
    if (chat->messages.empty()) {
      return FieldError("chat.messages", "there is no message");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogitBias(const kernels::SamplingParams& sampling,
                            int32_t vocab_size) {
  const auto& biases = sampling.logit_bias;
  if (biases.size() > kMaxLogitBiases) {
    return FieldError("sampling.logit_bias",
                      absl::StrCat(biases.size(), " entries, at most ",
                                   kMaxLogitBiases, " are taken"));
  }
  absl::flat_hash_set<int32_t> seen;
  for (const auto& [id, bias] : biases) {
    const std::string field = absl::StrCat("sampling.logit_bias[", id, "]");
    NIBBLE_RETURN_IF_ERROR(CheckToken(field, id, vocab_size));
    if (!seen.insert(id).second) {
      return FieldError(field, "the id is given twice");
    }
    if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
      return FieldError(
          field, absl::StrCat(bias, " is neither a finite number nor -inf"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const Request& request, const EngineOptions& options,
                           int32_t vocab_size) {
  const kernels::SamplingParams& s = request.sampling;
  NIBBLE_RETURN_IF_ERROR(CheckClosed("sampling.temperature", s.temperature,
                                     0.0f, kMaxTemperature));
  if (s.top_k < 0) return Outside("sampling.top_k", s.top_k, "[0, 2^31)");
  NIBBLE_RETURN_IF_ERROR(CheckHalfOpen("sampling.top_p", s.top_p, 1.0f));
  NIBBLE_RETURN_IF_ERROR(CheckClosed("sampling.min_p", s.min_p, 0.0f, 1.0f));
  NIBBLE_RETURN_IF_ERROR(
      CheckHalfOpen("sampling.typical_p", s.typical_p, 1.0f));
  NIBBLE_RETURN_IF_ERROR(CheckClosed("sampling.presence_penalty",
                                     s.presence_penalty, -kMaxPenalty,
                                     kMaxPenalty));
  NIBBLE_RETURN_IF_ERROR(CheckClosed("sampling.frequency_penalty",
                                     s.frequency_penalty, -kMaxPenalty,
                                     kMaxPenalty));
  NIBBLE_RETURN_IF_ERROR(CheckHalfOpen("sampling.repetition_penalty",
                                       s.repetition_penalty,
                                       kMaxRepetitionPenalty));
  NIBBLE_RETURN_IF_ERROR(CheckLogitBias(s, vocab_size));
  return CheckClosed("sampling.n", request.n, 1, options.max_outputs);
}

absl::Status CheckStopStrings(const std::vector<std::string>& strings,
                              const EngineOptions& options) {
  if (strings.size() > static_cast<size_t>(options.max_stop_strings)) {
    return FieldError("stopping.stop",
                      absl::StrCat(strings.size(), " strings, at most ",
                                   options.max_stop_strings, " are taken"));
  }
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string field = absl::StrCat("stopping.stop[", i, "]");
    if (strings[i].empty()) return FieldError(field, "the string is empty");
    if (strings[i].size() > static_cast<size_t>(options.max_stop_bytes)) {
      return FieldError(field,
                        absl::StrCat(strings[i].size(), " bytes, at most ",
                                     options.max_stop_bytes, " are taken"));
    }
    if (!IsValidUtf8(strings[i])) {
      return FieldError(field, "the string is not valid UTF-8");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStopping(const Request& request, const EngineOptions& options,
                           int32_t vocab_size) {
  const StopRules& stop = request.stop;
  if (request.max_new_tokens.value_or(0) < 0) {
    return Outside("stopping.max_new_tokens", *request.max_new_tokens,
                   "[0, 2^31)");
  }
  NIBBLE_RETURN_IF_ERROR(CheckStopStrings(stop.strings, options));
  if (stop.token_ids.size() > kMaxStopTokens) {
    return FieldError("stopping.stop_token_ids",
                      absl::StrCat(stop.token_ids.size(), " ids, at most ",
                                   kMaxStopTokens, " are taken"));
  }
  for (size_t i = 0; i < stop.token_ids.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(
        CheckToken(absl::StrCat("stopping.stop_token_ids[", i, "]"),
                   stop.token_ids[i], vocab_size));
  }
  if (stop.min_new_tokens < 0) {
    return Outside("stopping.min_new_tokens", stop.min_new_tokens, "[0, 2^31)");
  }
  if (request.max_new_tokens.has_value() &&
      stop.min_new_tokens > *request.max_new_tokens) {
    return FieldError(
        "stopping.min_new_tokens",
        absl::StrCat(stop.min_new_tokens, " is more than max_new_tokens, ",
                     *request.max_new_tokens));
  }
  return absl::OkStatus();
}

absl::Status CheckOutput(const OutputOptions& output,
                         const EngineOptions& options) {
  // -1 asks for none; a server never passes another negative number on.
  if (output.logprobs != -1) {
    NIBBLE_RETURN_IF_ERROR(CheckClosed("response.top_logprobs", output.logprobs,
                                       0, options.max_logprobs));
  }
  if (output.prompt_logprobs != -1) {
    NIBBLE_RETURN_IF_ERROR(CheckClosed("response.prompt_logprobs",
                                       output.prompt_logprobs, 0,
                                       options.max_logprobs));
  }
  return absl::OkStatus();
}

absl::Status CheckId(const std::string& id) {
  if (id.empty()) return FieldError("request_id", "it is empty");
  if (id.size() > kMaxIdBytes) {
    return FieldError("request_id", absl::StrCat(id.size(), " bytes, at most ",
                                                 kMaxIdBytes, " are taken"));
  }
  for (const char c : id) {
    if (c < 0x20 || c > 0x7E) {
      return FieldError("request_id", "it is not printable ASCII");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAdmission(const Request& request) {
  NIBBLE_RETURN_IF_ERROR(CheckId(request.id));
  NIBBLE_RETURN_IF_ERROR(
      CheckClosed("priority", request.priority, -kMaxPriority, kMaxPriority));
  if (request.max_queue < Clock::duration::zero()) {
    return FieldError("max_queue_ms", "it is negative");
  }
  if (request.cache_salt.size() > kMaxSaltBytes) {
    return FieldError("cache_salt", absl::StrCat(request.cache_salt.size(),
                                                 " bytes, at most ",
                                                 kMaxSaltBytes, " are taken"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRequest(const Request& request,
                             const EngineOptions& options, int32_t vocab_size) {
  NIBBLE_RETURN_IF_ERROR(CheckPrompt(request.prompt, vocab_size));
  NIBBLE_RETURN_IF_ERROR(CheckSampling(request, options, vocab_size));
  NIBBLE_RETURN_IF_ERROR(CheckStopping(request, options, vocab_size));
  NIBBLE_RETURN_IF_ERROR(CheckOutput(request.output, options));
  return CheckAdmission(request);
}

}  // namespace nibble::engine
