// Streams that end in other ways than by the last token: cancelled, expired,
// not read.

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/raw_http2.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

const char kRunning[] = R"(nibble_num_requests_running{model_name="m"})";
const char kKvUsage[] = R"(nibble_kv_cache_usage_perc{model_name="m"})";

std::string Finished(const std::string& reason) {
  return "nibble_request_total{finish_reason=\"" + reason +
         "\",model_name=\"m\"}";
}

bool IsIdle(const TestServer& server) {
  return server.Metric(kRunning) == 0 && server.Metric(kKvUsage) == 0 &&
         server.Metric(R"(nibble_num_requests_waiting{model_name="m"})") == 0;
}

// A client that reads nothing and whose connection takes little meanwhile.
grpc::ChannelArguments SmallWindow() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  return arguments;
}

// Says a token of 8 KiB for ever.
std::string LargeTokenScript(int step_us) {
  return absl::StrCat(R"({"vocabulary":[")", std::string(8192, 'x'),
                      R"("],"ids":[0],"then":"repeat",)",
                      R"("context_length":1000000,"delays":{"step_us":)",
                      step_us, "}}");
}

TEST(Streams, CancelledOnesLeaveNothingBehind) {
  TestServer server(EndlessScript(200),
                    [](ServerConfig& config) { config.max_queue = 1000; });
  constexpr int kStreams = 100;
  for (int i = 0; i < kStreams; ++i) {
    grpc::ClientContext context;
    auto reader =
        server.generation().GenerateStream(&context, TextRequest("a"));
    v1::GenerateChunk chunk;
    ASSERT_TRUE(reader->Read(&chunk));
    context.TryCancel();
    EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  EXPECT_EQ(server.Metric(Finished("cancelled")), kStreams);
  EXPECT_EQ(server.Metric(R"(nibble_requests_received_total{model_name="m"})"),
            kStreams);
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_stopping()->set_max_new_tokens(2);
  EXPECT_EQ(Stream(server, request).Text(), "xx");
}

TEST(Streams, UnaryCallsAreCancelledToo) {
  TestServer server(EndlessScript(200));
  grpc::ClientContext context;
  v1::GenerateResponse response;
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_stopping()->set_max_new_tokens(90'000);
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([&] { return server.Metric(kRunning) == 1; }));
    context.TryCancel();
  });
  EXPECT_EQ(
      server.generation().Generate(&context, request, &response).error_code(),
      grpc::CANCELLED);
  canceller.join();
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  EXPECT_EQ(server.Metric(Finished("cancelled")), 1);
}

TEST(Streams, CancellingABatchEndsAllOfIt) {
  TestServer server(EndlessScript(200));
  v1::GenerateBatchRequest batch;
  for (int i = 0; i < 20; ++i) *batch.add_requests() = TextRequest("a");
  grpc::ClientContext context;
  auto reader = server.generation().GenerateBatch(&context, batch);
  v1::GenerateBatchChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  context.TryCancel();
  while (reader->Read(&chunk)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  EXPECT_EQ(server.Metric(Finished("cancelled")), 20);
}

TEST(Streams, ADroppedConnectionCancels) {
  TestServer server(EndlessScript(200));
  {
    const auto stub = v1::Generation::NewStub(server.Connect());
    grpc::ClientContext context;
    auto reader = stub->GenerateStream(&context, TextRequest("a"));
    v1::GenerateChunk chunk;
    ASSERT_TRUE(reader->Read(&chunk));
  }
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
}

TEST(Streams, CancelRacesCompletion) {
  TestServer server(AbcScript());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        grpc::ClientContext context;
        auto reader =
            server.generation().GenerateStream(&context, TextRequest("a"));
        std::this_thread::sleep_for(
            std::chrono::microseconds((i * 37 + t * 101) % 1500));
        context.TryCancel();
        const grpc::Status status = ReadAll(*reader).status;
        EXPECT_TRUE(status.ok() || status.error_code() == grpc::CANCELLED)
            << status.error_message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  EXPECT_TRUE(Eventually([&] {
    return server.Sum("nibble_requests_received_total") ==
           server.Sum("nibble_request_total") +
               server.Sum("nibble_admission_rejections_total");
  }));
}

TEST(Streams, TheDeadlineEndsThem) {
  TestServer server(EndlessScript(500));
  for (const bool streamed : {true, false}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(200));
    grpc::Status status;
    v1::GenerateRequest request = TextRequest("a");
    request.mutable_stopping()->set_max_new_tokens(90'000);
    if (streamed) {
      status = ReadAll(*server.generation().GenerateStream(&context, request))
                   .status;
    } else {
      v1::GenerateResponse response;
      status = server.generation().Generate(&context, request, &response);
    }
    EXPECT_EQ(status.error_code(), grpc::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  EXPECT_EQ(server.Metric(Finished("deadline")), 2);
}

TEST(Streams, ASlowReaderGetsEveryByte) {
  // 600 tokens of 8 KiB, 5 MB, far more than the connection holds: they wait
  // merged and come in messages that a default client takes.
  TestServer server(LargeTokenScript(0));
  const auto stub = v1::Generation::NewStub(server.Connect(SmallWindow()));
  v1::GenerateRequest request = TextRequest("x");
  request.clear_prompt();
  request.mutable_token_ids()->add_ids(0);
  request.mutable_stopping()->set_max_new_tokens(600);
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, request);
  EXPECT_TRUE(Eventually([&] {
    return server.Metric(Finished("length")) == 1;  // all made, little read
  }));
  const Streamed streamed = ReadAll(*reader);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.Text(), std::string(600 * 8192, 'x'));
  EXPECT_LT(streamed.chunks.size(), 300u);  // merged
  EXPECT_EQ(streamed.FinishOf()->usage().generated_tokens(), 600);
}

TEST(Streams, OneThatIsNotReadIsCancelledAndSaysWhy) {
  TestServer server(LargeTokenScript(1000), [](ServerConfig& config) {
    config.write_stall_timeout = std::chrono::milliseconds(300);
  });
  const auto stub = v1::Generation::NewStub(server.Connect(SmallWindow()));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(0);
  request.mutable_stopping()->set_max_new_tokens(100'000);
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, request);
  EXPECT_TRUE(Eventually(
      [&] { return server.Metric("nibble_streams_stalled_total") == 1; }));
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  EXPECT_EQ(server.Metric(Finished("cancelled")), 1);
  // Whether it reads before the reset or after, it hears that it is over.
  const Streamed streamed = ReadAll(*reader);
  EXPECT_EQ(streamed.status.error_code(), grpc::CANCELLED);
}

TEST(Streams, WhatIsNeverReadIsReset) {
  TestServer server(AbcScript(), [](ServerConfig& config) {
    config.write_stall_timeout = std::chrono::milliseconds(200);
  });
  v1::GenerateBatchRequest batch;
  *batch.add_requests() = TextRequest("a");
  const std::string address = server.server().addresses().front();
  int calls = 0;
  for (const std::string& method :
       {std::string("Generate"), std::string("GenerateStream"),
        std::string("GenerateBatch")}) {
    const google::protobuf::Message& request =
        method == "GenerateBatch"
            ? static_cast<const google::protobuf::Message&>(batch)
            : batch.requests(0);
    UnreadCall call(address, "nibble.v1.Generation/" + method, request);
    EXPECT_TRUE(call.IsReset()) << method;
    ++calls;
    EXPECT_EQ(server.Metric("nibble_streams_stalled_total"), calls) << method;
  }
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
}

TEST(Streams, WhatIsNeverReadDoesNotHoldUpTheEnd) {
  TestServer server(AbcScript(), [](ServerConfig& config) {
    config.write_stall_timeout = std::chrono::milliseconds(0);
    config.drain_timeout = std::chrono::milliseconds(100);
  });
  const std::string address = server.server().addresses().front();
  UnreadCall unary(address, "nibble.v1.Generation/Generate", TextRequest("a"));
  UnreadCall stream(address, "nibble.v1.Generation/GenerateStream",
                    TextRequest("a"));
  EXPECT_TRUE(Eventually([&] { return server.Metric(Finished("eos")) == 2; }));
  server.server().Drain();
  server.server().WaitDrained();
}

TEST(Streams, OneThatMakesTooMuchIsCancelled) {
  // No stall timeout: what waits is bounded all the same.
  TestServer server(LargeTokenScript(0), [](ServerConfig& config) {
    config.write_stall_timeout = std::chrono::milliseconds(0);
  });
  const auto stub = v1::Generation::NewStub(server.Connect(SmallWindow()));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(0);
  request.mutable_stopping()->set_max_new_tokens(100'000);
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, request);
  EXPECT_TRUE(Eventually(
      [&] { return server.Metric("nibble_streams_stalled_total") == 1; }));
  EXPECT_TRUE(Eventually([&] { return IsIdle(server); }));
  const Streamed streamed = ReadAll(*reader);
  EXPECT_EQ(streamed.status.error_code(), grpc::CANCELLED);
  EXPECT_EQ(DetailsOf(streamed.status).reason, "SLOW_READER");
  EXPECT_NE(streamed.status.error_message().find("too slowly"),
            std::string::npos);
}

}  // namespace
}  // namespace nibble::server::testing
