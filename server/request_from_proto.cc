#include "server/request_from_proto.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/errors.h"

namespace nibble::server {
namespace {

constexpr float kDefaultTemperature = 1.0f;

uint64_t RandomSeed() {
  static thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

// Fields that are absent keep the defaults of `params`.
void SetSampling(const v1::Sampling& proto, engine::Request& request) {
  kernels::SamplingParams& params = request.sampling;
  params.temperature =
      proto.has_temperature() ? proto.temperature() : kDefaultTemperature;
  if (proto.has_top_k()) params.top_k = proto.top_k();
  if (proto.has_top_p()) params.top_p = proto.top_p();
  if (proto.has_min_p()) params.min_p = proto.min_p();
  if (proto.has_typical_p()) params.typical_p = proto.typical_p();
  if (proto.has_presence_penalty()) {
    params.presence_penalty = proto.presence_penalty();
  }
  if (proto.has_frequency_penalty()) {
    params.frequency_penalty = proto.frequency_penalty();
  }
  if (proto.has_repetition_penalty()) {
    params.repetition_penalty = proto.repetition_penalty();
  }
  params.seed = proto.has_seed() ? proto.seed() : RandomSeed();
  params.logit_bias.assign(proto.logit_bias().begin(),
                           proto.logit_bias().end());
  // A map has no order; the error for the first wrong id should have one.
  std::sort(params.logit_bias.begin(), params.logit_bias.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  if (proto.has_n()) request.n = proto.n();
}

void SetStopping(v1::Stopping& proto, engine::Request& request) {
  if (proto.has_max_new_tokens()) {
    request.max_new_tokens = proto.max_new_tokens();
  }
  request.stop.strings.assign(
      std::make_move_iterator(proto.mutable_stop()->begin()),
      std::make_move_iterator(proto.mutable_stop()->end()));
  request.stop.token_ids.assign(proto.stop_token_ids().begin(),
                                proto.stop_token_ids().end());
  request.stop.include_stop = proto.include_stop();
  request.stop.ignore_eos = proto.ignore_eos();
  request.stop.min_new_tokens = proto.min_new_tokens();
}

// A negative count would read as "none" in engine::OutputOptions.
absl::Status CheckCount(std::string_view field, int32_t count) {
  if (count >= 0) return absl::OkStatus();
  return engine::FieldError(field, absl::StrCat(count, " is less than 0"));
}

absl::Status SetOutput(const v1::ResponseOptions& proto,
                       engine::Request& request) {
  NIBBLE_RETURN_IF_ERROR(
      CheckCount("response.top_logprobs", proto.top_logprobs()));
  NIBBLE_RETURN_IF_ERROR(
      CheckCount("response.prompt_logprobs", proto.prompt_logprobs()));
  if (proto.top_logprobs() > 0 && !proto.logprobs()) {
    return engine::FieldError("response.top_logprobs",
                              absl::StrCat(proto.top_logprobs(),
                                           " asked for, but logprobs is not "
                                           "set"));
  }
  if (proto.logprobs()) request.output.logprobs = proto.top_logprobs();
  if (proto.has_prompt_logprobs()) {
    request.output.prompt_logprobs = proto.prompt_logprobs();
  }
  request.output.echo = proto.echo();
  request.output.token_ids = proto.token_ids();
  request.output.token_bytes = proto.token_bytes();
  return absl::OkStatus();
}

absl::StatusOr<engine::Prompt> PromptFromProto(v1::GenerateRequest& proto) {
  switch (proto.prompt_case()) {
    case v1::GenerateRequest::kText: {
      engine::TextPrompt text;
      text.text = std::move(*proto.mutable_text());
      text.parse_special = proto.parse_special();
      if (proto.has_add_bos()) text.add_bos = proto.add_bos();
      return engine::Prompt(std::move(text));
    }
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = proto.token_ids().ids();
      return engine::Prompt(engine::TokenPrompt{{ids.begin(), ids.end()}});
    }
    case v1::GenerateRequest::kChat:
      return engine::Prompt(ChatFromProto(std::move(*proto.mutable_chat()),
                                          proto.parse_special()));
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return engine::FieldError("prompt",
                            "none of text, token_ids and chat is set");
}

}  // namespace

engine::ChatPrompt ChatFromProto(v1::Chat proto, bool parse_special) {
  engine::ChatPrompt chat;
  for (v1::ChatMessage& message : *proto.mutable_messages()) {
    chat.messages.push_back({std::move(*message.mutable_role()),
                             std::move(*message.mutable_content())});
  }
  chat.parse_special = parse_special;
  return chat;
}

std::string RequestIdOf(const v1::GenerateRequest& proto) {
  if (!proto.request_id().empty()) return proto.request_id();
  // A random prefix a process and a count: ids of two servers differ too.
  static const uint32_t prefix = std::random_device{}();
  static std::atomic<uint64_t> count{0};
  return absl::StrFormat("nb-%08x-%08x", prefix, ++count);
}

absl::StatusOr<engine::Request> RequestFromProto(v1::GenerateRequest proto) {
  engine::Request request;
  NIBBLE_ASSIGN_OR_RETURN(request.prompt, PromptFromProto(proto));
  SetSampling(proto.sampling(), request);
  SetStopping(*proto.mutable_stopping(), request);
  NIBBLE_RETURN_IF_ERROR(SetOutput(proto.response(), request));
  request.priority = proto.priority();
  if (proto.has_max_queue_ms()) {
    request.max_queue = std::chrono::milliseconds(proto.max_queue_ms());
  }
  request.cache_salt = std::move(*proto.mutable_cache_salt());
  return request;
}

}  // namespace nibble::server
