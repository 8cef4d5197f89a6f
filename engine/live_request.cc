#include "engine/live_request.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nibble::engine {

Output::Output(const LiveRequest& request, int32_t index)
    : request_(&request),
      index_(index),
      sampling_(request.request.sampling),
      text_(request.request.stop.strings, request.request.stop.include_stop) {
  sampling_.seed += static_cast<uint64_t>(index);
  usage_.prompt_tokens = request.prompt_tokens();
}

std::span<const int32_t> Output::Banned() const {
  if (usage_.generated_tokens >= request_->request.stop.min_new_tokens) {
    return {};
  }
  return request_->end_tokens;
}

void Output::CountRows(int32_t rows, bool generated, int32_t cached_tokens,
                       Clock::time_point now) {
  if (!scheduled_) {
    scheduled_ = true;
    scheduled_at_ = now;
    timings_.queue = now - request_->request.arrival;
    usage_.cached_tokens = cached_tokens;
  }
  (generated ? timings_.narrow_rows : timings_.wide_rows) += rows;
}

Output::Taken Output::Take(const kernels::SampleResult& result,
                           const model::Tokenizer& tokenizer,
                           Clock::time_point now) {
  NIBBLE_CHECK(!ended_);
  Taken taken;
  taken.delta.index = index_;
  taken.first = usage_.generated_tokens == 0;
  if (taken.first) {
    first_token_at_ = now;
    timings_.first_token = now - request_->request.arrival;
    timings_.prefill = now - scheduled_at_;
    taken.delta.text = request_->prompt_info.echo;
  } else {
    taken.gap = now - last_token_at_;
  }
  last_token_at_ = now;
  timings_.decode = now - first_token_at_;
  ++usage_.generated_tokens;

  if (request_->WantsTokens()) {
    OutputToken token{result.token,
                      std::string(tokenizer.TokenBytes(result.token)),
                      std::nullopt,
                      {}};
    if (request_->request.output.logprobs >= 0) {
      token.logprob = result.chosen;
      token.top = result.top;
    }
    taken.delta.tokens.push_back(std::move(token));
  }

  std::optional<Stop> stop = CheckToken(result.token, tokenizer);
  if (!stop.has_value()) {
    stop = ExtendText(result.token, tokenizer, taken.delta.text);
    const bool full = usage_.generated_tokens == request_->max_new_tokens;
    if (!stop.has_value() && full) {
      stop = FlushText(taken.delta.text);
      if (!stop.has_value()) stop = LengthStop();
    }
  } else if (const std::optional<Stop> matched = FlushText(taken.delta.text)) {
    stop = matched;
  }
  if (stop.has_value()) taken.delta.finish = MakeFinish(*stop);
  return taken;
}

Delta Output::EndWithoutTokens(Clock::time_point now) {
  NIBBLE_CHECK(!ended_);
  if (scheduled_) timings_.prefill = now - scheduled_at_;
  Delta delta;
  delta.index = index_;
  delta.text = request_->prompt_info.echo;
  delta.finish = MakeFinish({FinishReason::kLength});
  return delta;
}

std::optional<Output::Stop> Output::CheckToken(
    int32_t token, const model::Tokenizer& tokenizer) const {
  const StopRules& rules = request_->request.stop;
  if (!rules.ignore_eos && tokenizer.IsEndOfGeneration(token)) {
    return Stop{FinishReason::kEos};
  }
  if (std::find(rules.token_ids.begin(), rules.token_ids.end(), token) !=
      rules.token_ids.end()) {
    return Stop{FinishReason::kStopToken, token};
  }
  return std::nullopt;
}

std::optional<Output::Stop> Output::ExtendText(
    int32_t token, const model::Tokenizer& tokenizer, std::string& text) {
  StopChecker::Piece piece =
      text_.Append(tokenizer.TokenBytes(token), Search());
  text.append(piece.text);
  if (!piece.stop.has_value()) return std::nullopt;
  return Stop{FinishReason::kStopString, static_cast<int32_t>(*piece.stop)};
}

std::optional<Output::Stop> Output::FlushText(std::string& text) {
  StopChecker::Piece piece = text_.Finish(Search());
  text.append(piece.text);
  if (!piece.stop.has_value()) return std::nullopt;
  return Stop{FinishReason::kStopString, static_cast<int32_t>(*piece.stop)};
}

StopSearch Output::Search() const {
  return usage_.generated_tokens > request_->request.stop.min_new_tokens
             ? StopSearch::kOn
             : StopSearch::kOff;
}

Output::Stop Output::LengthStop() const {
  return {request_->limited_by_context ? FinishReason::kContextFull
                                       : FinishReason::kLength};
}

OutputFinish Output::MakeFinish(Stop stop) {
  ended_ = true;
  finish_reason_ = stop.reason;
  OutputFinish finish;
  finish.reason = stop.reason;
  if (stop.reason == FinishReason::kStopString) {
    finish.matched_stop =
        request_->request.stop.strings[static_cast<size_t>(stop.which)];
  } else if (stop.reason == FinishReason::kStopToken) {
    finish.matched_stop = stop.which;
  }
  finish.usage = usage_;
  finish.timings = timings_;
  finish.seed = sampling_.seed;
  return finish;
}

void LiveRequest::Prepare(std::vector<int32_t> ids, std::string text,
                          const model::Tokenizer& tokenizer) {
  prompt = std::move(ids);
  const StopRules& stop = request.stop;
  if (stop.min_new_tokens > 0) {
    end_tokens = stop.token_ids;
    if (!stop.ignore_eos) {
      const auto model_ends = tokenizer.end_of_generation();
      end_tokens.insert(end_tokens.end(), model_ends.begin(), model_ends.end());
    }
  }
  prompt_info.prompt_tokens = prompt_tokens();
  if (request.output.echo) prompt_info.echo = std::move(text);
  const bool echo_ids = request.output.echo && request.output.token_ids;
  if (WantsPromptLogprobs() || echo_ids) {
    prompt_info.tokens.reserve(prompt.size());
    for (const int32_t id : prompt) {
      prompt_info.tokens.push_back(
          {id, std::string(tokenizer.TokenBytes(id)), std::nullopt, {}});
    }
  }
  for (int32_t i = 0; i < request.n; ++i) {
    outputs.push_back(std::make_unique<Output>(*this, i));
  }
}

bool LiveRequest::WantsTokens() const {
  const OutputOptions& output = request.output;
  return output.token_ids || output.token_bytes || output.logprobs >= 0;
}

int32_t LiveRequest::live_outputs() const {
  return static_cast<int32_t>(
      std::count_if(outputs.begin(), outputs.end(),
                    [](const auto& output) { return !output->ended(); }));
}

void LiveRequest::TakePromptLogprob(int32_t position,
                                    const kernels::SampleResult& result) {
  // Computed again after a preemption: already sent, and the same.
  if (prompt_sent) return;
  OutputToken& token = prompt_info.tokens[static_cast<size_t>(position)];
  token.logprob = result.chosen;
  token.top = result.top;
}

Usage LiveRequest::TotalUsage() const {
  Usage total = outputs.front()->usage();
  for (size_t i = 1; i < outputs.size(); ++i) {
    total.generated_tokens += outputs[i]->usage().generated_tokens;
  }
  return total;
}

}  // namespace nibble::engine
