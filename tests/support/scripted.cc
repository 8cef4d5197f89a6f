#include "tests/support/scripted.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/utf8.h"
#include "engine/scripted_model.h"
#include "gtest/gtest.h"

namespace nibble::testing {
namespace {

constexpr std::chrono::seconds kPatience(60);

std::string UniqueId() {
  static std::atomic<int64_t> next = 0;
  return absl::StrCat("test-", next.fetch_add(1));
}

}  // namespace

RecordingSink::~RecordingSink() = default;

void RecordingSink::OnPrompt(engine::PromptInfo prompt) {
  const std::lock_guard lock(mutex_);
  EXPECT_FALSE(prompt_.has_value()) << "a second OnPrompt";
  EXPECT_FALSE(any_delta_) << "OnPrompt after a delta";
  EXPECT_FALSE(result_.has_value()) << "OnPrompt after OnFinish";
  EXPECT_TRUE(IsValidUtf8(prompt.echo));
  prompt_ = std::move(prompt);
}

void RecordingSink::OnDelta(engine::Delta delta) {
  if (on_delta) on_delta(delta);
  {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(prompt_.has_value()) << "a delta before OnPrompt";
    EXPECT_FALSE(result_.has_value()) << "a delta after OnFinish";
    EXPECT_TRUE(IsValidUtf8(delta.text)) << delta.text;
    EXPECT_TRUE(!delta.text.empty() || !delta.tokens.empty() ||
                delta.finish.has_value())
        << "an empty delta";
    RecordedOutput& output = outputs_.at(static_cast<size_t>(delta.index));
    EXPECT_FALSE(output.finish.has_value()) << "a delta after the last one";
    output.text += delta.text;
    output.chunks.push_back(std::move(delta.text));
    for (auto& token : delta.tokens) output.tokens.push_back(std::move(token));
    output.finish = std::move(delta.finish);
    any_delta_ = true;
  }
  changed_.notify_all();
}

void RecordingSink::OnFinish(engine::RequestResult result) {
  const std::lock_guard lock(mutex_);
  EXPECT_FALSE(result_.has_value()) << "a second OnFinish";
  if (result.status.ok()) {
    for (const RecordedOutput& output : outputs_) {
      EXPECT_TRUE(output.finish.has_value()) << "OK without a finish";
    }
  }
  result_ = std::move(result);
  // Under the lock: whoever waits may destroy the sink once it has it.
  changed_.notify_all();
}

const engine::RequestResult& RecordingSink::Wait() {
  std::unique_lock lock(mutex_);
  const bool ended =
      changed_.wait_for(lock, kPatience, [&] { return result_.has_value(); });
  NIBBLE_CHECK(ended);
  return *result_;
}

void RecordingSink::WaitForDelta() {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(
      lock, kPatience, [&] { return any_delta_ || result_.has_value(); });
  NIBBLE_CHECK(came);
}

std::vector<int32_t> RecordingSink::ids(size_t i) const {
  std::vector<int32_t> ids;
  for (const auto& token : outputs_.at(i).tokens) ids.push_back(token.id);
  return ids;
}

void CountingObserver::OnFirstToken(engine::Clock::duration since_arrival) {
  EXPECT_GE(since_arrival.count(), 0);
  ++first_tokens;
}

void CountingObserver::OnInterToken(engine::Clock::duration gap) {
  EXPECT_GE(gap.count(), 0);
  ++inter_tokens;
}

void CountingObserver::OnFinished(const engine::RequestStats& stats) {
  ++finished;
  ++finished_by[static_cast<size_t>(stats.reason)];
  generated_tokens += stats.usage.generated_tokens;
}

void CountingObserver::OnStep(const engine::StepStats& stats) {
  ++steps;
  narrow_rows += stats.narrow_rows;
  wide_rows += stats.wide_rows;
  preempted += stats.preempted;
  // Only the engine thread writes it.
  most_rows = std::max<int64_t>(most_rows, stats.narrow_rows + stats.wide_rows);
  EXPECT_GE(stats.duration, stats.model);
  if (on_step) on_step();
}

std::string TokensScript(const std::vector<std::string>& tokens,
                         std::string_view more) {
  std::string vocabulary;
  std::string ids;
  std::vector<std::string> known;
  for (const std::string& token : tokens) {
    const auto found = std::find(known.begin(), known.end(), token);
    absl::StrAppend(&ids, ids.empty() ? "" : ",", found - known.begin());
    if (found != known.end()) continue;
    known.push_back(token);
    absl::StrAppend(&vocabulary, "{\"bytes\":\"", absl::BytesToHexString(token),
                    "\"},");
  }
  return absl::StrCat("{\"vocabulary\":[", vocabulary,
                      "{\"text\":\"<eos>\",\"eos\":true}],\"ids\":[", ids, "]",
                      more.empty() ? "" : ",", std::string(more), "}");
}

std::unique_ptr<engine::Engine> MakeScriptedEngine(
    std::string_view json, engine::EngineOptions options,
    engine::EngineObserver* observer) {
  engine::LoadOptions load;
  load.max_sequences = options.max_sequences;
  absl::StatusOr<std::unique_ptr<engine::ModelRunner>> runner =
      engine::ParseScriptedModel(json, "test", load);
  if (!runner.ok()) ADD_FAILURE() << runner.status();
  NIBBLE_CHECK(runner.ok());
  if (options.name.empty()) options.name = "scripted";
  absl::StatusOr<std::unique_ptr<engine::Engine>> created =
      engine::Engine::Create(std::move(options), *std::move(runner), observer);
  if (!created.ok()) ADD_FAILURE() << created.status();
  NIBBLE_CHECK(created.ok());
  return *std::move(created);
}

engine::Request TextRequest(std::string_view text) {
  engine::Request request;
  request.id = UniqueId();
  request.prompt = engine::TextPrompt{std::string(text), false, std::nullopt};
  return request;
}

engine::Request IdsRequest(std::vector<int32_t> ids) {
  engine::Request request;
  request.id = UniqueId();
  request.prompt = engine::TokenPrompt{std::move(ids)};
  return request;
}

Answer Ask(engine::Engine& engine, engine::Request request) {
  Answer answer;
  answer.sink = std::make_unique<RecordingSink>(request.n);
  const auto handle = engine.Submit(std::move(request), answer.sink.get());
  answer.status = handle.ok() ? answer.sink->Wait().status : handle.status();
  return answer;
}

EnginePlug::EnginePlug(engine::Engine& engine) {
  sink_.on_delta = [this](const engine::Delta&) {
    held_.count_down();
    released_.wait();
  };
  engine::Request request = IdsRequest({0});
  request.max_new_tokens = 1;
  const auto handle = engine.Submit(std::move(request), &sink_);
  NIBBLE_CHECK(handle.ok());
  held_.wait();
}

void EnginePlug::Release() {
  if (std::exchange(done_, true)) return;
  released_.count_down();
  sink_.Wait();
}

engine::EngineSnapshot WaitIdle(const engine::Engine& engine) {
  const auto give_up = engine::Clock::now() + kPatience;
  while (engine.snapshot().has_work) {
    NIBBLE_CHECK(engine::Clock::now() < give_up);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return engine.snapshot();
}

}  // namespace nibble::testing
