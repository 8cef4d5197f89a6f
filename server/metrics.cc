#include "server/metrics.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <list>
#include <map>
#include <sstream>
#include <utility>

#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/metrics_text.h"

namespace nibble::server {
namespace {

using engine::FinishReason;
using engine::Rejection;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

constexpr int kNumFinishReasons = static_cast<int>(FinishReason::kError) + 1;

// Seconds. vLLM's sets where dashboards expect them, longer at the low end: a
// small quantized model makes a token in under a millisecond.
const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08,
                                    .1,   .25,  .5,  .75, 1,   2.5, 5,
                                    7.5,  10,   20,  40,  80,  160};
const Buckets kTokenBuckets = {
    .0005, .001, .002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04,
    .06,   .08,  .1,   .2,   .4,   .6,   .8,  1,    2,   4,    6,   8};
const Buckets kRequestBuckets = {.005, .01, .025, .05, .1,  .2,  .3,  .5,  .8,
                                 1,    1.5, 2,    2.5, 5,   10,  15,  20,  30,
                                 40,   50,  60,   120, 240, 480, 960, 1920};
const Buckets kStepBuckets = {.0001, .00025, .0005, .001, .0025, .005,
                              .01,   .025,   .05,   .1,   .25,   .5,
                              1,     2.5,    5,     10,   30};
// Tokens and rows.
const Buckets kRowBuckets = {1,   2,   4,   8,    16,   32,   64,
                             128, 256, 512, 1024, 2048, 4096, 8192};
const Buckets kTokenCountBuckets = {1,     2,     5,     10,     20,    50,
                                    100,   200,   500,   1000,   2000,  5000,
                                    10000, 20000, 50000, 100000, 200000};

// A step by the paths its rows ran on.
constexpr std::array<const char*, 3> kStepPaths = {"narrow", "wide", "mixed"};
// Why the work for tokens was for nothing; recomputed ones come from the
// scheduler at scrape.
constexpr std::array<FinishReason, 3> kWastedBy = {
    FinishReason::kCancelled, FinishReason::kDeadline, FinishReason::kError};

double Seconds(engine::Clock::duration duration) {
  // Never negative: a negative sample would break the sum for good.
  return std::max(0.0, std::chrono::duration<double>(duration).count());
}

std::string Label(FinishReason reason) {
  return std::string(engine::Name(reason));
}

// The finish reasons vLLM knows.
const char* VllmReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
    case FinishReason::kStopString:
    case FinishReason::kStopToken:
      return "stop";
    case FinishReason::kLength:
    case FinishReason::kContextFull:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
      return "abort";
    case FinishReason::kError:
      break;
  }
  return "error";
}

// The families of all models. Adding a series to one takes a lock and a hash,
// so every series is made when its model is.
struct Families {
  explicit Families(prometheus::Registry& registry);

  Family<Counter>& received;
  Family<Counter>& rejected;
  Family<Counter>& finished;
  Family<Counter>& success;
  Family<Counter>& prompt_tokens;
  Family<Counter>& generation_tokens;
  Family<Counter>& wasted;
  Family<Counter>& quantize_seconds;
  Family<Histogram>& first_token;
  Family<Histogram>& inter_token;
  Family<Histogram>& per_token;
  Family<Histogram>& e2e;
  Family<Histogram>& queue;
  Family<Histogram>& prefill;
  Family<Histogram>& decode;
  Family<Histogram>& request_prompt;
  Family<Histogram>& request_generation;
  Family<Histogram>& request_max;
  Family<Histogram>& step_tokens;
  Family<Histogram>& step_seconds;
  Family<Histogram>& gemm_rows;
};

Family<Counter>& AddCounter(prometheus::Registry& registry, const char* name,
                            const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

Family<Histogram>& AddHistogram(prometheus::Registry& registry,
                                const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

Families::Families(prometheus::Registry& r)
    : received(AddCounter(r, "nibble_requests_received_total",
                          "Generation requests that arrived")),
      rejected(AddCounter(r, "nibble_admission_rejections_total",
                          "Requests refused before any work, by reason")),
      finished(AddCounter(r, "nibble_request_total",
                          "Requests that ended after they were accepted, by "
                          "the reason of their last output")),
      success(AddCounter(r, "nibble_request_success_total",
                         "The same under the reasons that vLLM has: stop, "
                         "length, abort, error")),
      prompt_tokens(AddCounter(r, "nibble_prompt_tokens_total",
                               "Prompt tokens of requests that ended")),
      generation_tokens(
          AddCounter(r, "nibble_generation_tokens_total", "Tokens generated")),
      wasted(AddCounter(r, "nibble_tokens_wasted_total",
                        "Tokens generated for requests that were cancelled, "
                        "expired or failed")),
      quantize_seconds(AddCounter(r, "nibble_act_quant_seconds_total",
                                  "Seconds spent quantizing activations, "
                                  "where that is a pass of its own")),
      first_token(AddHistogram(r, "nibble_time_to_first_token_seconds",
                               "Arrival to first token")),
      inter_token(AddHistogram(r, "nibble_inter_token_latency_seconds",
                               "Gaps between tokens of an output, the first "
                               "token's wait not among them")),
      per_token(AddHistogram(r, "nibble_request_time_per_output_token_seconds",
                             "A request's mean gap between tokens")),
      e2e(AddHistogram(r, "nibble_e2e_request_latency_seconds",
                       "Arrival to end")),
      queue(AddHistogram(r, "nibble_request_queue_time_seconds",
                         "Arrival to first step")),
      prefill(AddHistogram(r, "nibble_request_prefill_time_seconds",
                           "First step to first token")),
      decode(AddHistogram(r, "nibble_request_decode_time_seconds",
                          "First token to last")),
      request_prompt(AddHistogram(r, "nibble_request_prompt_tokens",
                                  "Prompt tokens of a request")),
      request_generation(AddHistogram(r, "nibble_request_generation_tokens",
                                      "Tokens generated for a request")),
      request_max(AddHistogram(r, "nibble_request_params_max_tokens",
                               "Most tokens a request could have got")),
      step_tokens(
          AddHistogram(r, "nibble_iteration_tokens_total", "Rows of a step")),
      step_seconds(AddHistogram(r, "nibble_step_duration_seconds",
                                "Schedule to commit of a step, by the paths "
                                "its rows ran on")),
      gemm_rows(AddHistogram(r, "nibble_gemm_rows",
                             "Rows that a step sent down each path of the "
                             "linear layers")) {}

std::string_view Name(Refusal refusal) {
  switch (refusal) {
    case Refusal::kInvalid:
      return engine::Name(Rejection::kInvalid);
    case Refusal::kUnknownModel:
      return "unknown_model";
    case Refusal::kModelNotServing:
      return "model_not_serving";
  }
  return "unknown";
}

// What was received and refused, of one model or of no known one. Thread-safe.
class Admissions final {
 public:
  Admissions(Families& f, const std::string& model)
      : received_(f.received.Add({{"model_name", model}})) {
    const auto add = [&](std::string_view reason) {
      rejected_[reason] = &f.rejected.Add(
          {{"model_name", model}, {"reason", std::string(reason)}});
    };
    for (int i = 0; i < engine::kNumRejections; ++i) {
      add(engine::Name(static_cast<Rejection>(i)));
    }
    add(Name(Refusal::kUnknownModel));
    add(Name(Refusal::kModelNotServing));
  }

  void Receive() { received_.Increment(); }
  void Reject(std::string_view reason) { rejected_.at(reason)->Increment(); }

 private:
  Counter& received_;
  std::map<std::string_view, Counter*> rejected_;
};

// The series of one model. Made by Metrics::AddModel; its methods are called
// by that model's engine and by gRPC threads.
class ModelMetrics final : public engine::EngineObserver {
 public:
  ModelMetrics(Families& f, const std::string& model, Admissions& admissions);

  void OnReceived() override { admissions_.Receive(); }
  void OnRejected(Rejection reason) override {
    admissions_.Reject(engine::Name(reason));
  }
  void OnFirstToken(engine::Clock::duration since_arrival) override {
    first_token_.Observe(Seconds(since_arrival));
  }
  void OnInterToken(engine::Clock::duration gap) override {
    inter_token_.Observe(Seconds(gap));
  }
  void OnFinished(const engine::RequestStats& stats) override;
  void OnStep(const engine::StepStats& stats) override;

 private:
  Admissions& admissions_;
  std::array<Counter*, kNumFinishReasons> finished_{};
  std::array<Counter*, kNumFinishReasons> success_{};
  std::array<Counter*, kNumFinishReasons> wasted_{};  // null: not wasted
  Counter& prompt_tokens_;
  Counter& generation_tokens_;
  Counter& quantize_seconds_;
  Histogram& first_token_;
  Histogram& inter_token_;
  Histogram& per_token_;
  Histogram& e2e_;
  Histogram& queue_;
  Histogram& prefill_;
  Histogram& decode_;
  Histogram& request_prompt_;
  Histogram& request_generation_;
  Histogram& request_max_;
  Histogram& step_tokens_;
  std::array<Histogram*, kStepPaths.size()> step_seconds_{};
  Histogram& narrow_rows_;
  Histogram& wide_rows_;
};

ModelMetrics::ModelMetrics(Families& f, const std::string& model,
                           Admissions& admissions)
    : admissions_(admissions),
      prompt_tokens_(f.prompt_tokens.Add({{"model_name", model}})),
      generation_tokens_(f.generation_tokens.Add({{"model_name", model}})),
      quantize_seconds_(f.quantize_seconds.Add({{"model_name", model}})),
      first_token_(
          f.first_token.Add({{"model_name", model}}, kFirstTokenBuckets)),
      inter_token_(f.inter_token.Add({{"model_name", model}}, kTokenBuckets)),
      per_token_(f.per_token.Add({{"model_name", model}}, kTokenBuckets)),
      e2e_(f.e2e.Add({{"model_name", model}}, kRequestBuckets)),
      queue_(f.queue.Add({{"model_name", model}}, kFirstTokenBuckets)),
      prefill_(f.prefill.Add({{"model_name", model}}, kFirstTokenBuckets)),
      decode_(f.decode.Add({{"model_name", model}}, kRequestBuckets)),
      request_prompt_(
          f.request_prompt.Add({{"model_name", model}}, kTokenCountBuckets)),
      request_generation_(f.request_generation.Add({{"model_name", model}},
                                                   kTokenCountBuckets)),
      request_max_(
          f.request_max.Add({{"model_name", model}}, kTokenCountBuckets)),
      step_tokens_(f.step_tokens.Add({{"model_name", model}}, kRowBuckets)),
      narrow_rows_(f.gemm_rows.Add({{"model_name", model}, {"path", "narrow"}},
                                   kRowBuckets)),
      wide_rows_(f.gemm_rows.Add({{"model_name", model}, {"path", "wide"}},
                                 kRowBuckets)) {
  for (int i = 0; i < kNumFinishReasons; ++i) {
    const auto reason = static_cast<FinishReason>(i);
    finished_[i] = &f.finished.Add(
        {{"model_name", model}, {"finish_reason", Label(reason)}});
    success_[i] = &f.success.Add(
        {{"model_name", model}, {"finished_reason", VllmReason(reason)}});
  }
  for (const FinishReason reason : kWastedBy) {
    wasted_[static_cast<int>(reason)] =
        &f.wasted.Add({{"model_name", model}, {"reason", Label(reason)}});
  }
  for (size_t i = 0; i < kStepPaths.size(); ++i) {
    step_seconds_[i] = &f.step_seconds.Add(
        {{"model_name", model}, {"path", kStepPaths[i]}}, kStepBuckets);
  }
}

void ModelMetrics::OnFinished(const engine::RequestStats& stats) {
  const int reason = static_cast<int>(stats.reason);
  const double generated = stats.usage.generated_tokens;
  finished_[reason]->Increment();
  success_[reason]->Increment();
  if (wasted_[reason] != nullptr) wasted_[reason]->Increment(generated);
  prompt_tokens_.Increment(stats.usage.prompt_tokens);
  e2e_.Observe(Seconds(stats.total));
  queue_.Observe(Seconds(stats.timings.queue));
  prefill_.Observe(Seconds(stats.timings.prefill));
  decode_.Observe(Seconds(stats.timings.decode));
  if (stats.usage.generated_tokens > 1) {
    per_token_.Observe(Seconds(stats.timings.decode) / (generated - 1));
  }
  request_prompt_.Observe(stats.usage.prompt_tokens);
  request_generation_.Observe(generated);
  request_max_.Observe(stats.max_new_tokens);
}

void ModelMetrics::OnStep(const engine::StepStats& stats) {
  step_tokens_.Observe(stats.narrow_rows + stats.wide_rows);
  if (stats.narrow_rows > 0) narrow_rows_.Observe(stats.narrow_rows);
  if (stats.wide_rows > 0) wide_rows_.Observe(stats.wide_rows);
  const int path = stats.wide_rows == 0 ? 0 : stats.narrow_rows == 0 ? 1 : 2;
  step_seconds_[path]->Observe(Seconds(stats.duration));
  quantize_seconds_.Increment(Seconds(stats.quantize));
  generation_tokens_.Increment(stats.sampled_tokens);
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(bool vllm)
      : vllm_names(vllm),
        families(registry),
        stalled_streams(AddCounter(registry, "nibble_streams_stalled_total",
                                   "Streams cancelled because their client "
                                   "did not read")
                            .Add({})) {}

  const bool vllm_names;
  prometheus::Registry registry;
  Families families;
  Counter& stalled_streams;
  std::map<std::string, Admissions, std::less<>> admissions;
  std::list<ModelMetrics> models;
};

Metrics::Metrics(bool vllm_names) : impl_(std::make_unique<Impl>(vllm_names)) {
  const std::string unknown(kUnknownModelLabel);
  impl_->admissions.try_emplace(unknown, impl_->families, unknown);
}

Metrics::~Metrics() = default;

engine::EngineObserver* Metrics::AddModel(const std::string& name) {
  Admissions& admissions =
      impl_->admissions.try_emplace(name, impl_->families, name).first->second;
  return &impl_->models.emplace_back(impl_->families, name, admissions);
}

void Metrics::CountRefusal(std::string_view model, Refusal refusal) {
  Admissions& admissions = impl_->admissions.find(model)->second;
  admissions.Receive();
  admissions.Reject(Name(refusal));
}

void Metrics::CountStalledStream() { impl_->stalled_streams.Increment(); }

std::string Metrics::Render(const ServerGauges& gauges) const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  AppendGauges(gauges, families);
  if (impl_->vllm_names) AppendVllmNames(families);
  // The registry keeps them in no order; a reader likes one.
  for (prometheus::MetricFamily& family : families) {
    std::sort(family.metric.begin(), family.metric.end(),
              [](const auto& a, const auto& b) { return a.label < b.label; });
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace nibble::server
