#include "server/response_to_proto.h"

#include <chrono>
#include <utility>

namespace nibble::server {
namespace {

int64_t Microseconds(engine::Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration)
      .count();
}

}  // namespace

v1::FinishReason ToProto(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case engine::FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
    case engine::FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case engine::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kContextFull:
      return v1::FINISH_REASON_CONTEXT_FULL;
    case engine::FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case engine::FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case engine::FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void ToProto(const engine::Usage& usage, v1::Usage& proto) {
  proto.set_prompt_tokens(usage.prompt_tokens);
  proto.set_cached_tokens(usage.cached_tokens);
  proto.set_generated_tokens(usage.generated_tokens);
}

void ToProto(const engine::OutputFinish& finish, v1::Finish& proto) {
  proto.set_reason(ToProto(finish.reason));
  if (const auto* text = std::get_if<std::string>(&finish.matched_stop)) {
    proto.set_stop_string(*text);
  } else if (const auto* id = std::get_if<int32_t>(&finish.matched_stop)) {
    proto.set_stop_token_id(*id);
  }
  ToProto(finish.usage, *proto.mutable_usage());
  v1::Timings& timings = *proto.mutable_timings();
  timings.set_queue_us(Microseconds(finish.timings.queue));
  timings.set_prefill_us(Microseconds(finish.timings.prefill));
  timings.set_decode_us(Microseconds(finish.timings.decode));
  timings.set_first_token_us(Microseconds(finish.timings.first_token));
  timings.set_narrow_rows(finish.timings.narrow_rows);
  timings.set_wide_rows(finish.timings.wide_rows);
  proto.set_seed(finish.seed);
}

void ToProto(engine::OutputToken token, const engine::OutputOptions& asked,
             const model::Tokenizer& tokenizer, v1::Token& proto) {
  proto.set_id(token.id);
  if (asked.token_bytes) proto.set_token_bytes(std::move(token.bytes));
  if (!token.logprob.has_value()) return;
  proto.set_logprob(token.logprob->logprob);
  proto.set_rank(token.logprob->rank);
  for (const kernels::TokenLogprob& top : token.top) {
    v1::TopLogprob& entry = *proto.add_top_logprobs();
    entry.set_id(top.id);
    entry.set_logprob(top.logprob);
    if (asked.token_bytes) {
      entry.set_token_bytes(std::string(tokenizer.TokenBytes(top.id, true)));
    }
  }
}

void ToProto(engine::PromptInfo prompt, const engine::OutputOptions& asked,
             const model::Tokenizer& tokenizer, v1::PromptInfo& proto) {
  proto.set_tokens(prompt.prompt_tokens);
  proto.set_echo_text(std::move(prompt.echo));
  for (engine::OutputToken& token : prompt.tokens) {
    ToProto(std::move(token), asked, tokenizer, *proto.add_prompt_tokens());
  }
}

}  // namespace nibble::server
