// The command-line options that become a GenerateRequest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "nibble/v1/nibble.pb.h"

namespace nibble::client {

// Options of `generate` and `chat`; absent ones leave the server's defaults.
// Owned by the subcommand, filled by CLI11.
struct RequestOptions {
  std::string model;
  std::optional<int32_t> max_new_tokens, min_new_tokens, n, top_k, priority;
  std::optional<float> temperature, top_p, min_p, typical_p;
  std::optional<float> presence_penalty, frequency_penalty;
  std::optional<float> repetition_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID=VALUE"
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  std::optional<int32_t> logprobs, prompt_logprobs;
  std::optional<uint32_t> max_queue_ms;
  std::string request_id;
  std::string cache_salt;
  bool include_stop = false;
  bool ignore_eos = false;
  bool parse_special = false;
  bool echo = false;
  bool token_ids = false;
  bool token_bytes = false;

  void AddTo(CLI::App& command);
  // Fills all but the prompt; INVALID_ARGUMENT for a malformed --logit-bias.
  absl::StatusOr<v1::GenerateRequest> ToProto() const;
};

}  // namespace nibble::client
