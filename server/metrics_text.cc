#include "server/metrics_text.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "server/version.h"

namespace nibble::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily MakeFamily(std::string name, std::string help, MetricType type) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  return family;
}

ClientMetric MakeMetric(double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  metric.counter.value = value;
  return metric;
}

// Steady time as Unix time. The offset is taken once: two scrapes of an idle
// engine give the same number.
double UnixSeconds(engine::Clock::time_point when) {
  static const auto offset =
      std::chrono::duration<double>(
          std::chrono::system_clock::now().time_since_epoch()) -
      std::chrono::duration<double>(engine::Clock::now().time_since_epoch());
  return (std::chrono::duration<double>(when.time_since_epoch()) + offset)
      .count();
}

double KvUsage(const scheduler::SchedulerStats& stats) {
  return stats.pages_total == 0
             ? 0.0
             : static_cast<double>(stats.pages_used) / stats.pages_total;
}

// A number a model: its family, and how it comes from the model's state.
struct ModelNumber {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const ModelGauges& model);
};

const ModelNumber kModelNumbers[] = {
    {"nibble_num_requests_running", "Requests being computed",
     MetricType::Gauge,
     [](const ModelGauges& m) -> double {
       return m.snapshot.requests_running;
     }},
    {"nibble_num_requests_waiting", "Requests accepted and not yet begun",
     MetricType::Gauge,
     [](const ModelGauges& m) -> double {
       return m.snapshot.requests_waiting;
     }},
    {"nibble_kv_cache_usage_perc",
     "Share of the KV pages in use, 0 to 1; cached ones are not in use",
     MetricType::Gauge,
     [](const ModelGauges& m) { return KvUsage(m.snapshot.scheduler); }},
    {"nibble_num_preemptions_total",
     "Sequences that lost their pages to others and were computed again",
     MetricType::Counter,
     [](const ModelGauges& m) -> double {
       return static_cast<double>(m.snapshot.scheduler.preemptions);
     }},
    {"nibble_prefix_cache_queries_total",
     "Prompt tokens looked up in the prefix cache", MetricType::Counter,
     [](const ModelGauges& m) -> double {
       return static_cast<double>(m.snapshot.scheduler.prefix_query_tokens);
     }},
    {"nibble_prefix_cache_hits_total",
     "Prompt tokens found in the prefix cache", MetricType::Counter,
     [](const ModelGauges& m) -> double {
       return static_cast<double>(m.snapshot.scheduler.prefix_hit_tokens);
     }},
    {"nibble_tokens_recomputed_total",
     "Tokens computed again after a preemption", MetricType::Counter,
     [](const ModelGauges& m) -> double {
       return static_cast<double>(m.snapshot.scheduler.recomputed_tokens);
     }},
    {"nibble_engine_last_step_timestamp_seconds",
     "Unix time of the end of the last step, or of the start; 0 when not "
     "loaded",
     MetricType::Gauge,
     [](const ModelGauges& m) -> double {
       return m.info == nullptr ? 0.0 : UnixSeconds(m.snapshot.last_step);
     }},
    {"nibble_model_serving",
     "1 if the model takes requests, 0 if it is loading, draining, stalled or "
     "failed",
     MetricType::Gauge,
     [](const ModelGauges& m) -> double { return m.serving; }},
};

MetricFamily KvPages(const ServerGauges& gauges) {
  MetricFamily family =
      MakeFamily("nibble_kv_pages", "KV pages by state: used, cached, empty",
                 MetricType::Gauge);
  for (const ModelGauges& model : gauges.models) {
    const scheduler::SchedulerStats& stats = model.snapshot.scheduler;
    const std::pair<const char*, int32_t> states[] = {
        {"used", stats.pages_used},
        {"cached", stats.pages_cached},
        {"empty", stats.pages_total - stats.pages_used - stats.pages_cached}};
    for (const auto& [state, pages] : states) {
      family.metric.push_back(
          MakeMetric(pages, {{"model_name", model.name}, {"state", state}}));
    }
  }
  return family;
}

// Facts as labels of a gauge that is always 1; only of loaded models.
MetricFamily CacheInfo(const ServerGauges& gauges) {
  MetricFamily family =
      MakeFamily("nibble_cache_config_info",
                 "The KV cache: tokens a page, pages", MetricType::Gauge);
  for (const ModelGauges& model : gauges.models) {
    if (model.info == nullptr) continue;
    family.metric.push_back(
        MakeMetric(1, {{"model_name", model.name},
                       {"block_size", std::to_string(model.info->page_size)},
                       {"num_gpu_blocks", std::to_string(model.info->pages)},
                       {"bytes", std::to_string(model.info->kv_bytes)}}));
  }
  return family;
}

MetricFamily ModelInfo(const ServerGauges& gauges) {
  MetricFamily family =
      MakeFamily("nibble_model_info", "What is served", MetricType::Gauge);
  for (const ModelGauges& model : gauges.models) {
    if (model.info == nullptr) continue;
    const engine::RunnerInfo& info = *model.info;
    family.metric.push_back(
        MakeMetric(1, {{"model_name", model.name},
                       {"title", SanitizeUtf8(info.name)},
                       {"architecture", SanitizeUtf8(info.architecture)},
                       {"format", info.file_type},
                       {"backend", info.backend},
                       {"device", SanitizeUtf8(info.device)}}));
  }
  return family;
}

MetricFamily Single(const char* name, const char* help, MetricType type,
                    double value) {
  MetricFamily family = MakeFamily(name, help, type);
  family.metric.push_back(MakeMetric(value, {}));
  return family;
}

// Families that mean what vLLM's of the same suffix mean.
constexpr std::array<std::string_view, 22> kVllmSuffixes = {
    "num_requests_running",         "num_requests_waiting",
    "kv_cache_usage_perc",          "prompt_tokens_total",
    "generation_tokens_total",      "num_preemptions_total",
    "prefix_cache_queries_total",   "prefix_cache_hits_total",
    "request_success_total",        "time_to_first_token_seconds",
    "inter_token_latency_seconds",  "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",  "request_queue_time_seconds",
    "request_prefill_time_seconds", "request_decode_time_seconds",
    "iteration_tokens_total",       "request_prompt_tokens",
    "request_generation_tokens",    "request_params_max_tokens",
    "admission_rejections_total",   "cache_config_info",
};

bool VllmHas(std::string_view suffix) {
  return std::find(kVllmSuffixes.begin(), kVllmSuffixes.end(), suffix) !=
         kVllmSuffixes.end();
}

}  // namespace

void AppendGauges(const ServerGauges& gauges,
                  std::vector<MetricFamily>& families) {
  for (const ModelNumber& number : kModelNumbers) {
    MetricFamily family = MakeFamily(number.name, number.help, number.type);
    for (const ModelGauges& model : gauges.models) {
      family.metric.push_back(
          MakeMetric(number.value(model), {{"model_name", model.name}}));
    }
    families.push_back(std::move(family));
  }
  families.push_back(KvPages(gauges));
  families.push_back(CacheInfo(gauges));
  families.push_back(ModelInfo(gauges));
  families.push_back(Single("nibble_connections_accepted_total",
                            "gRPC connections accepted", MetricType::Counter,
                            static_cast<double>(gauges.connections_accepted)));
  families.push_back(Single("nibble_connections_refused_total",
                            "gRPC connections over --max-connections",
                            MetricType::Counter,
                            static_cast<double>(gauges.connections_refused)));
  families.push_back(Single("nibble_draining",
                            "1 once the server takes no new requests",
                            MetricType::Gauge, gauges.draining ? 1 : 0));
  MetricFamily build =
      MakeFamily("nibble_build_info", "The server's build", MetricType::Gauge);
  build.metric.push_back(MakeMetric(1, {{"version", std::string(kVersion)}}));
  families.push_back(std::move(build));
}

void AppendVllmNames(std::vector<MetricFamily>& families) {
  constexpr std::string_view kPrefix = "nibble_";
  const size_t count = families.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string suffix = families[i].name.substr(kPrefix.size());
    if (!VllmHas(suffix)) continue;
    MetricFamily copy = families[i];
    copy.name = "vllm:" + suffix;
    for (ClientMetric& metric : copy.metric) {
      metric.label.push_back({"engine", "0"});
    }
    families.push_back(std::move(copy));
  }
}

}  // namespace nibble::server
