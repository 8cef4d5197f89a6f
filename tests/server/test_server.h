// A whole server in the test's process, on scripted models, and what its
// clients need.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "nibble/v1/nibble.grpc.pb.h"
#include "server/config.h"
#include "server/server.h"

namespace nibble::server::testing {

// Deletes itself and what is in it. Owned by a test.
class TemporaryDirectory final {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  // The path of a file of that name, with that content.
  std::string Write(const std::string& name, const std::string& content) const;
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

using Scripts = std::vector<std::pair<std::string, std::string>>;
using ChangeConfig = std::function<void(ServerConfig&)>;

// Serves each script under its name on free ports. Owned by a test; a server
// that does not start fails it at once.
class TestServer final {
 public:
  explicit TestServer(const Scripts& scripts, const ChangeConfig& change = {});
  // One model, "m".
  explicit TestServer(const std::string& script,
                      const ChangeConfig& change = {})
      : TestServer(Scripts{{"m", script}}, change) {}

  Server& server() { return *server_; }
  // A connection of its own.
  std::shared_ptr<grpc::Channel> Connect(
      grpc::ChannelArguments arguments = {}) const;

  v1::Generation::Stub& generation() { return *generation_; }
  v1::Models::Stub& models() { return *models_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

  // The value of a series, as it stands in the text format.
  double Metric(const std::string& series) const;
  // The sum over the series of a family whose labels hold `label`.
  double Sum(const std::string& family, const std::string& label = "") const;

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Generation::Stub> generation_;
  std::unique_ptr<v1::Models::Stub> models_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// One sample line of the text format.
struct Sample {
  std::string name;    // without labels
  std::string series;  // with labels, as written
  std::map<std::string, std::string> labels;
  double value = 0;
};

// Parses the text format strictly; what is not allowed fails the test.
std::vector<Sample> ParseMetrics(const std::string& text);

// What the details of a status say.
struct Details {
  std::string reason;
  std::string domain;
  std::string request_id;
  std::string field;
  std::string description;
  std::optional<double> retry_seconds;
};
Details DetailsOf(const grpc::Status& status);

// A greedy request for a text.
v1::GenerateRequest TextRequest(const std::string& text);

// All of a stream.
struct Streamed {
  grpc::Status status;
  std::vector<v1::GenerateChunk> chunks;
  // Of output `index`.
  std::string Text(int index = 0) const;
  std::optional<v1::Finish> FinishOf(int index = 0) const;
};
Streamed Stream(TestServer& server, const v1::GenerateRequest& request);
// Reads what is left of a stream that was begun.
Streamed ReadAll(grpc::ClientReader<v1::GenerateChunk>& reader);

grpc::Status Generate(TestServer& server, const v1::GenerateRequest& request,
                      v1::GenerateResponse* response);

// Waits for a minute at most until it holds; returns whether it does.
bool Eventually(const std::function<bool()>& condition);

// A script: the tokens "a" to "z" and "<eos>", then `fields`.
std::string LettersScript(const std::string& fields);
// One that says "abc", a token in `step_us` microseconds.
std::string AbcScript(int step_us = 0);
// One that says "x" for ever.
std::string EndlessScript(int step_us);

}  // namespace nibble::server::testing
