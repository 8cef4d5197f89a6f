#include "tools/client/request_options.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace nibble::client {
namespace {

absl::Status AddLogitBias(const std::string& text, v1::Sampling& sampling) {
  const std::vector<std::string> parts = absl::StrSplit(text, '=');
  int32_t id;
  float bias;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &id) ||
      !absl::SimpleAtof(parts[1], &bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logit-bias wants ID=VALUE, not \"", text, "\""));
  }
  (*sampling.mutable_logit_bias())[id] = bias;
  return absl::OkStatus();
}

void FillSampling(const RequestOptions& options, v1::Sampling& sampling) {
  if (options.temperature) sampling.set_temperature(*options.temperature);
  if (options.top_k) sampling.set_top_k(*options.top_k);
  if (options.top_p) sampling.set_top_p(*options.top_p);
  if (options.min_p) sampling.set_min_p(*options.min_p);
  if (options.typical_p) sampling.set_typical_p(*options.typical_p);
  if (options.presence_penalty) {
    sampling.set_presence_penalty(*options.presence_penalty);
  }
  if (options.frequency_penalty) {
    sampling.set_frequency_penalty(*options.frequency_penalty);
  }
  if (options.repetition_penalty) {
    sampling.set_repetition_penalty(*options.repetition_penalty);
  }
  if (options.seed) sampling.set_seed(*options.seed);
  if (options.n) sampling.set_n(*options.n);
}

void FillStopping(const RequestOptions& options, v1::Stopping& stopping) {
  if (options.max_new_tokens) {
    stopping.set_max_new_tokens(*options.max_new_tokens);
  }
  if (options.min_new_tokens) {
    stopping.set_min_new_tokens(*options.min_new_tokens);
  }
  for (const std::string& text : options.stop) stopping.add_stop(text);
  for (const int32_t id : options.stop_token_ids) {
    stopping.add_stop_token_ids(id);
  }
  if (options.include_stop) stopping.set_include_stop(true);
  if (options.ignore_eos) stopping.set_ignore_eos(true);
}

void FillResponse(const RequestOptions& options,
                  v1::ResponseOptions& response) {
  if (options.logprobs) {
    response.set_logprobs(true);
    response.set_top_logprobs(*options.logprobs);
  }
  if (options.prompt_logprobs) {
    response.set_prompt_logprobs(*options.prompt_logprobs);
  }
  if (options.echo) response.set_echo(true);
  if (options.token_ids) response.set_token_ids(true);
  if (options.token_bytes) response.set_token_bytes(true);
}

void AddSamplingOptions(RequestOptions& o, CLI::App& command) {
  command.add_option("--temperature", o.temperature,
                     "0: always the most probable token [1]");
  command.add_option("--top-k", o.top_k, "Keep the K most probable; 0: all");
  command.add_option("--top-p", o.top_p, "Nucleus of this probability [1]");
  command.add_option("--min-p", o.min_p,
                     "Drop tokens less likely than this part of the best [0]");
  command.add_option("--typical-p", o.typical_p,
                     "Locally typical sampling [1]");
  command.add_option("--presence-penalty", o.presence_penalty, "-2 to 2 [0]");
  command.add_option("--frequency-penalty", o.frequency_penalty, "-2 to 2 [0]");
  command.add_option("--repetition-penalty", o.repetition_penalty,
                     "Above 0, at most 10 [1]");
  command.add_option("--logit-bias", o.logit_bias,
                     "ID=VALUE, repeatable; VALUE may be -inf");
  command.add_option("--seed", o.seed, "Same seed, same text");
  command.add_option("-n,--outputs", o.n, "Number of outputs, 1 to 16 [1]");
}

}  // namespace

void RequestOptions::AddTo(CLI::App& command) {
  command.add_option("-m,--model", model,
                     "Model name; not needed if the server has one");
  command.add_option("--max-new-tokens", max_new_tokens,
                     "Tokens to generate at most");
  command.add_option("--min-new-tokens", min_new_tokens,
                     "No end before so many tokens [0]");
  AddSamplingOptions(*this, command);
  command.add_option("--stop", stop, "Text that ends the answer, repeatable");
  command.add_option("--stop-token-id", stop_token_ids,
                     "Token id that ends the answer, repeatable");
  command.add_flag("--include-stop", include_stop,
                   "Leave the matched stop text in the answer");
  command.add_flag("--ignore-eos", ignore_eos,
                   "The model's end tokens do not end the answer");
  command.add_flag("--parse-special", parse_special,
                   "Special tokens spelled in the prompt become tokens");
  command.add_option("--logprobs", logprobs,
                     "Log-probabilities with so many alternatives (--json)");
  command.add_option("--prompt-logprobs", prompt_logprobs,
                     "The same for the prompt (--json)");
  command.add_flag("--echo", echo, "The prompt before the answer");
  command.add_flag("--token-ids", token_ids, "Token ids too (--json)");
  command.add_flag("--token-bytes", token_bytes, "Token bytes too (--json)");
  command.add_option("--priority", priority, "-100 to 100, higher first [0]");
  command.add_option("--max-queue-ms", max_queue_ms,
                     "Give up when not started after so many milliseconds");
  command.add_option("--request-id", request_id, "Id for the logs");
  command.add_option("--cache-salt", cache_salt,
                     "Share cached prompts only with requests of this salt");
}

absl::StatusOr<v1::GenerateRequest> RequestOptions::ToProto() const {
  v1::GenerateRequest request;
  request.set_model(model);
  FillSampling(*this, *request.mutable_sampling());
  for (const std::string& text : logit_bias) {
    const absl::Status status = AddLogitBias(text, *request.mutable_sampling());
    if (!status.ok()) return status;
  }
  FillStopping(*this, *request.mutable_stopping());
  FillResponse(*this, *request.mutable_response());
  if (parse_special) request.set_parse_special(true);
  if (priority) request.set_priority(*priority);
  if (max_queue_ms) request.set_max_queue_ms(*max_queue_ms);
  if (!request_id.empty()) request.set_request_id(request_id);
  if (!cache_salt.empty()) request.set_cache_salt(cache_salt);
  return request;
}

}  // namespace nibble::client
