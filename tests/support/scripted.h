// Engines on scripted models, and sinks and observers that check what they
// hear: for every test that needs an engine and no weights.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/load.h"

namespace nibble::testing {

// Records one request and checks the contract of a TokenSink while it does:
// OnPrompt first and once, deltas of outputs that have not ended, valid UTF-8,
// no empty delta, exactly one OnFinish, last. Owned by the test; Wait and what
// follows it belong to the test's thread, the rest to the engine's.
class RecordingSink final : public engine::TokenSink {
 public:
  struct RecordedOutput {
    std::string text;
    std::vector<std::string> chunks;  // texts of its deltas
    std::vector<engine::OutputToken> tokens;
    std::optional<engine::OutputFinish> finish;
  };

  explicit RecordingSink(int32_t outputs = 1)
      : outputs_(static_cast<size_t>(outputs)) {}
  ~RecordingSink() override;

  void OnPrompt(engine::PromptInfo prompt) override;
  void OnDelta(engine::Delta delta) override;
  void OnFinish(engine::RequestResult result) override;

  // Called with each delta, on the engine thread. Set before Submit.
  std::function<void(const engine::Delta&)> on_delta;

  // Blocks until OnFinish; fails the test after a minute.
  const engine::RequestResult& Wait();
  // Blocks until the first delta or the end.
  void WaitForDelta();

  // After Wait:
  const engine::PromptInfo& prompt() const { return prompt_.value(); }
  bool has_prompt() const { return prompt_.has_value(); }
  const RecordedOutput& output(size_t i = 0) const { return outputs_.at(i); }
  const std::string& text(size_t i = 0) const { return outputs_.at(i).text; }
  engine::FinishReason reason(size_t i = 0) const {
    return outputs_.at(i).finish.value().reason;
  }
  std::vector<int32_t> ids(size_t i = 0) const;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<engine::PromptInfo> prompt_;
  std::vector<RecordedOutput> outputs_;
  std::optional<engine::RequestResult> result_;
  bool any_delta_ = false;
};

// Counts what an engine reports. Thread-safe.
class CountingObserver final : public engine::EngineObserver {
 public:
  void OnReceived() override { ++received; }
  void OnRejected(engine::Rejection reason) override {
    ++rejected;
    ++rejected_by[static_cast<size_t>(reason)];
  }
  void OnFirstToken(engine::Clock::duration since_arrival) override;
  void OnInterToken(engine::Clock::duration gap) override;
  void OnFinished(const engine::RequestStats& stats) override;
  void OnStep(const engine::StepStats& stats) override;

  // Called after each step, on the engine thread. Set before the first Submit.
  std::function<void()> on_step;

  int64_t Rejected(engine::Rejection reason) const {
    return rejected_by[static_cast<size_t>(reason)];
  }

  std::atomic<int64_t> received = 0;
  std::atomic<int64_t> rejected = 0;
  std::atomic<int64_t> rejected_by[engine::kNumRejections] = {};
  std::atomic<int64_t> finished = 0;
  std::atomic<int64_t> finished_by[8] = {};
  int64_t Finished(engine::FinishReason reason) const {
    return finished_by[static_cast<size_t>(reason)];
  }

  std::atomic<int64_t> first_tokens = 0;
  std::atomic<int64_t> inter_tokens = 0;
  std::atomic<int64_t> steps = 0;
  std::atomic<int64_t> narrow_rows = 0;
  std::atomic<int64_t> wide_rows = 0;
  std::atomic<int64_t> most_rows = 0;  // of one step
  std::atomic<int64_t> preempted = 0;
  std::atomic<int64_t> generated_tokens = 0;
};

// A script that gives these tokens (any bytes, repetitions allowed), then EOS;
// `more` holds further fields, e.g. R"("context_length": 64)".
std::string TokensScript(const std::vector<std::string>& tokens,
                         std::string_view more = "");

// An engine on a scripted model; a file or options that are wrong fail the
// test at once.
std::unique_ptr<engine::Engine> MakeScriptedEngine(
    std::string_view json, engine::EngineOptions options = {},
    engine::EngineObserver* observer = nullptr);

// A greedy request, its id made unique.
engine::Request TextRequest(std::string_view text);
engine::Request IdsRequest(std::vector<int32_t> ids);

// A request's whole life on an engine that is to answer it.
struct Answer {
  std::unique_ptr<RecordingSink> sink;
  absl::Status status;  // of Submit, or of the end
  const std::string& text(size_t i = 0) const { return sink->text(i); }
};
Answer Ask(engine::Engine& engine, engine::Request request);

// Holds the engine thread between two steps, so that what is submitted
// meanwhile is seen at once, whatever the machine's load. Destroy it before
// the engine.
class EnginePlug final {
 public:
  // Returns once the thread is held.
  explicit EnginePlug(engine::Engine& engine);
  ~EnginePlug() { Release(); }
  void Release();

 private:
  RecordingSink sink_;
  std::latch held_{1};
  std::latch released_{1};
  bool done_ = false;
};

// Waits until the engine has no work; fails the test after a minute.
engine::EngineSnapshot WaitIdle(const engine::Engine& engine);

}  // namespace nibble::testing
