// Health, stalls, and the end of a server.

#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse::ServingStatus Check(TestServer& server,
                                         const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      server.health().Check(&context, request, &response);
  return status.ok() ? response.status() : HealthCheckResponse::SERVICE_UNKNOWN;
}

// An open health Watch; its last status in a thread of its own.
class Watcher final {
 public:
  Watcher(TestServer& server, const std::string& service)
      : stub_(grpc::health::v1::Health::NewStub(server.Connect())) {
    HealthCheckRequest request;
    request.set_service(service);
    reader_ = stub_->Watch(&context_, request);
    thread_ = std::thread([this] {
      HealthCheckResponse response;
      while (reader_->Read(&response)) status_ = response.status();
      reader_->Finish();
    });
  }
  ~Watcher() {
    context_.TryCancel();
    thread_.join();
  }
  int status() const { return status_; }

 private:
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
  std::atomic<int> status_{-1};
  std::thread thread_;
};

TEST(Health, SpeaksForTheServerItsServicesAndEachModel) {
  TestServer server(Scripts{{"one", AbcScript()}, {"two", AbcScript()}},
                    [](ServerConfig& config) {
                      config.models.push_back({"broken", "/nowhere.gguf"});
                    });
  for (const std::string service :
       {"", "one", "two", "nibble.v1.Generation", "nibble.v1.Models"}) {
    EXPECT_EQ(Check(server, service), HealthCheckResponse::SERVING) << service;
  }
  EXPECT_EQ(Check(server, "broken"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server, "three"), HealthCheckResponse::SERVICE_UNKNOWN);
}

TEST(Health, AModelThatStallsIsNotServingUntilItGoesOn) {
  TestServer server(
      Scripts{
          {"slow", LettersScript(R"("ids":["a","b","c","d"],"delays":)"
                                 R"({"block_at_step":{"step":2,"ms":1500}})")},
          {"m", AbcScript()}},
      [](ServerConfig& config) {
        config.stall_timeout = std::chrono::milliseconds(200);
      });
  Watcher watcher(server, "slow");
  ASSERT_TRUE(Eventually(
      [&] { return watcher.status() == HealthCheckResponse::SERVING; }));
  // Long idleness is no stall.
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(Check(server, "slow"), HealthCheckResponse::SERVING);
  v1::GenerateRequest request = TextRequest("a");
  request.set_model("slow");
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, request);
  EXPECT_TRUE(Eventually(
      [&] { return watcher.status() == HealthCheckResponse::NOT_SERVING; }));
  EXPECT_EQ(Check(server, "slow"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server, ""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(server, "m"), HealthCheckResponse::SERVING);
  v1::GetModelRequest get;
  get.set_model("slow");
  v1::Model model;
  grpc::ClientContext get_context;
  ASSERT_TRUE(server.models().GetModel(&get_context, get, &model).ok());
  EXPECT_EQ(model.state(), v1::MODEL_STATE_STALLED);
  const Streamed streamed = ReadAll(*reader);
  EXPECT_TRUE(streamed.status.ok());
  EXPECT_EQ(streamed.Text(), "abcd");
  EXPECT_TRUE(Eventually(
      [&] { return watcher.status() == HealthCheckResponse::SERVING; }));
  EXPECT_EQ(Check(server, ""), HealthCheckResponse::SERVING);
}

TEST(Drain, RunningRequestsFinishNewOnesAreRefusedAndWatchesHearOfIt) {
  TestServer server(EndlessScript(2000));
  Watcher whole(server, "");
  Watcher model(server, "m");
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_stopping()->set_max_new_tokens(300);
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  std::string text = chunk.text();
  server.server().Drain();
  EXPECT_TRUE(Eventually(
      [&] { return whole.status() == HealthCheckResponse::NOT_SERVING; }));
  EXPECT_TRUE(Eventually(
      [&] { return model.status() == HealthCheckResponse::NOT_SERVING; }));
  // A new connection is answered still, with a reason.
  const auto stub = v1::Generation::NewStub(server.Connect());
  grpc::ClientContext refused;
  v1::GenerateResponse response;
  const grpc::Status status =
      stub->Generate(&refused, TextRequest("a"), &response);
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DRAINING");
  EXPECT_EQ(server.Metric("nibble_draining"), 1);
  const Streamed rest = ReadAll(*reader);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(text + rest.Text(), std::string(300, 'x'));
  server.server().WaitDrained();
}

TEST(Drain, CancelAllEndsWhatRuns) {
  TestServer server(EndlessScript(1000));
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_stopping()->set_max_new_tokens(90'000);
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  server.server().Drain();
  server.server().CancelAll();
  const grpc::Status status = ReadAll(*reader).status;
  EXPECT_EQ(status.error_code(), grpc::CANCELLED);
  EXPECT_FALSE(status.error_message().empty());
  server.server().WaitDrained();
}

TEST(Drain, TheTimeoutEndsWhatRuns) {
  TestServer server(EndlessScript(1000), [](ServerConfig& config) {
    config.drain_timeout = std::chrono::milliseconds(200);
  });
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_stopping()->set_max_new_tokens(90'000);
  grpc::ClientContext context;
  auto reader = server.generation().GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  server.server().Drain();
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::CANCELLED);
  server.server().WaitDrained();
}

}  // namespace
}  // namespace nibble::server::testing
