// /metrics: a valid text format, everything there from the start, and numbers
// that agree with each other.

#include "server/metrics.h"

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

std::string Model(const std::string& family) {
  return family + "{model_name=\"m\"}";
}

TEST(Metrics, AllIsThereAndZeroBeforeTheFirstRequest) {
  TestServer server(AbcScript());
  const std::vector<Sample> samples =
      ParseMetrics(server.server().RenderMetrics());
  for (const Sample& sample : samples) {
    const bool fact = sample.name.find("_info") != std::string::npos ||
                      sample.name.find("kv_pages") != std::string::npos ||
                      sample.name == "nibble_model_serving" ||
                      sample.name.find("timestamp") != std::string::npos;
    if (!fact) {
      EXPECT_EQ(sample.value, 0) << sample.series;
    }
  }
  for (const std::string name :
       {"nibble_num_requests_running", "nibble_num_requests_waiting",
        "nibble_kv_cache_usage_perc", "nibble_prompt_tokens_total",
        "nibble_generation_tokens_total", "nibble_num_preemptions_total",
        "nibble_prefix_cache_queries_total", "nibble_prefix_cache_hits_total",
        "nibble_time_to_first_token_seconds_count",
        "nibble_inter_token_latency_seconds_count",
        "nibble_request_time_per_output_token_seconds_sum",
        "nibble_e2e_request_latency_seconds_count",
        "nibble_request_queue_time_seconds_count",
        "nibble_request_prefill_time_seconds_count",
        "nibble_request_decode_time_seconds_count",
        "nibble_iteration_tokens_total_count",
        "nibble_request_prompt_tokens_count",
        "nibble_request_generation_tokens_count",
        "nibble_request_params_max_tokens_count"}) {
    EXPECT_EQ(server.Metric(Model(name)), 0) << name;
  }
  for (const std::string reason :
       {"queue_full", "queue_tokens", "queue_time", "deadline", "too_long",
        "never_fits", "invalid", "duplicate_id", "draining"}) {
    EXPECT_EQ(server.Metric(absl::StrCat("nibble_admission_rejections_total{",
                                         "model_name=\"m\",reason=\"", reason,
                                         "\"}")),
              0);
  }
  EXPECT_EQ(server.Sum("nibble_model_serving"), 1);
  EXPECT_GT(server.Metric(Model("nibble_engine_last_step_timestamp_seconds")),
            1.6e9);
}

TEST(Metrics, LabelValuesAreEscaped) {
  TestServer server(LettersScript(
      R"("ids":["a"],"name":"quote \" backslash \\ newline \n ende")"));
  for (const Sample& sample : ParseMetrics(server.server().RenderMetrics())) {
    if (sample.name != "nibble_model_info") continue;
    EXPECT_EQ(sample.labels.at("title"),
              "quote \" backslash \\ newline \n ende");
    return;
  }
  FAIL() << "no nibble_model_info";
}

TEST(Metrics, AScrapeChangesNothing) {
  TestServer server(AbcScript());
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(server, TextRequest("hello"), &response).ok());
  ASSERT_TRUE(Eventually([&] {
    return server.Metric(Model("nibble_num_requests_running")) == 0;
  }));
  const std::string first = server.server().RenderMetrics();
  EXPECT_EQ(server.server().RenderMetrics(), first);
}

TEST(Metrics, ReceivedIsFinishedPlusRejected) {
  TestServer server(AbcScript());
  v1::GenerateResponse response;
  for (int i = 0; i < 10; ++i) {
    v1::GenerateRequest request = TextRequest("hello");
    if (i == 3) request.mutable_sampling()->set_top_p(2);
    if (i == 4) request.set_model("none");
    if (i == 5) request.clear_prompt();
    if (i == 6) request.mutable_stopping()->set_max_new_tokens(1);
    if (i == 7) request.mutable_stopping()->add_stop("b");
    Generate(server, request, &response);
  }
  EXPECT_EQ(server.Sum("nibble_requests_received_total"), 10);
  EXPECT_EQ(server.Sum("nibble_admission_rejections_total"), 3);
  EXPECT_EQ(server.Sum("nibble_request_total"), 7);
  EXPECT_EQ(server.Sum("nibble_request_total", "finish_reason=\"eos\""), 5);
  EXPECT_EQ(server.Sum("nibble_request_total", "finish_reason=\"length\""), 1);
  EXPECT_EQ(server.Sum("nibble_request_total", "finish_reason=\"stop_string\""),
            1);
  EXPECT_EQ(server.Sum("nibble_request_success_total", "\"stop\""), 6);
  EXPECT_EQ(server.Metric(Model("nibble_prompt_tokens_total")), 35);
  // Five whole answers of 4 tokens, one of 1, one stopped at its second.
  EXPECT_EQ(server.Metric(Model("nibble_generation_tokens_total")), 23);
  EXPECT_EQ(server.Metric(Model("nibble_e2e_request_latency_seconds_count")),
            7);
  EXPECT_EQ(server.Metric(Model("nibble_time_to_first_token_seconds_count")),
            7);
  EXPECT_EQ(server.Metric(Model("nibble_inter_token_latency_seconds_count")),
            23 - 7);
  // A request of one token has no time per token.
  EXPECT_EQ(server.Metric(
                Model("nibble_request_time_per_output_token_seconds_count")),
            6);
  EXPECT_EQ(server.Metric(Model("nibble_request_generation_tokens_sum")), 23);
}

TEST(Metrics, FirstTokenTimeIsThePrefillsAtLeast) {
  TestServer server(LettersScript(
      R"("ids":["a","b"],"delays":{"prefill_us_per_token":10000})"));
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(server, TextRequest("hello"), &response).ok());
  EXPECT_GE(server.Metric(Model("nibble_time_to_first_token_seconds_sum")),
            0.05);
  EXPECT_GE(server.Metric(Model("nibble_request_prefill_time_seconds_sum")),
            0.05);
  EXPECT_EQ(server.Sum("nibble_step_duration_seconds_count", "\"wide\""), 1);
  EXPECT_EQ(server.Sum("nibble_step_duration_seconds_count", "\"narrow\""), 2);
  EXPECT_EQ(server.Sum("nibble_gemm_rows_sum", "\"wide\""), 5);
  EXPECT_EQ(server.Sum("nibble_gemm_rows_sum", "\"narrow\""), 2);
}

TEST(Metrics, CancelledWorkIsWasted) {
  TestServer server(EndlessScript(500));
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, TextRequest("a"));
  v1::GenerateChunk chunk;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&chunk));
  context.TryCancel();
  ReadAll(*reader);
  EXPECT_TRUE(Eventually([&] {
    return server.Sum("nibble_tokens_wasted_total", "\"cancelled\"") >= 3;
  }));
  EXPECT_EQ(server.Sum("nibble_tokens_wasted_total"),
            server.Metric(Model("nibble_generation_tokens_total")));
}

TEST(Metrics, ThePrefixCacheIsCounted) {
  TestServer server(LettersScript(R"("ids":["a"],"page_size":4)"));
  v1::GenerateResponse response;
  const v1::GenerateRequest request = TextRequest("abcdefghij");
  ASSERT_TRUE(Generate(server, request, &response).ok());
  ASSERT_TRUE(Generate(server, request, &response).ok());
  EXPECT_EQ(response.usage().cached_tokens(), 8);
  EXPECT_EQ(server.Metric(Model("nibble_prefix_cache_queries_total")), 20);
  EXPECT_EQ(server.Metric(Model("nibble_prefix_cache_hits_total")), 8);
  EXPECT_GT(server.Sum("nibble_kv_pages", "cached"), 0);
}

TEST(Metrics, VllmsNamesAreThereIfAskedFor) {
  TestServer plain(AbcScript());
  EXPECT_EQ(plain.server().RenderMetrics().find("vllm:"), std::string::npos);
  TestServer server(AbcScript(),
                    [](ServerConfig& config) { config.vllm_metrics = true; });
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(server, TextRequest("hello"), &response).ok());
  EXPECT_EQ(server.Metric("vllm:prompt_tokens_total"
                          R"({model_name="m",engine="0"})"),
            5);
  EXPECT_EQ(server.Sum("vllm:request_success_total", "\"stop\""), 1);
  EXPECT_EQ(server.Sum("vllm:num_requests_waiting"), 0);
  EXPECT_EQ(server.Sum("vllm:time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(server.Sum("vllm:cache_config_info"), 1);
}

TEST(Metrics, FastAndSlowRequestsFallIntoFiniteBuckets) {
  Metrics metrics(false);
  engine::EngineObserver* observer = metrics.AddModel("m");
  const auto count = [&](const std::string& bound) {
    for (const Sample& sample : ParseMetrics(metrics.Render({}))) {
      if (sample.name == "nibble_e2e_request_latency_seconds_bucket" &&
          sample.labels.at("le") == bound) {
        return sample.value;
      }
    }
    ADD_FAILURE() << "no bucket " << bound;
    return -1.0;
  };
  engine::RequestStats stats;
  stats.total = std::chrono::milliseconds(2);
  observer->OnFinished(stats);
  stats.total = std::chrono::seconds(100);
  observer->OnFinished(stats);
  EXPECT_EQ(count("0.005"), 1);
  EXPECT_EQ(count("60"), 1);
  EXPECT_EQ(count("120"), 2);
  // A clock that steps back, or a bug, never breaks a sum.
  stats.total = std::chrono::seconds(-5);
  observer->OnFinished(stats);
  EXPECT_EQ(count("0.005"), 2);
}

}  // namespace
}  // namespace nibble::server::testing
