#include "tests/server/test_server.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "server/parse_request.h"

namespace nibble::server::testing {

TemporaryDirectory::TemporaryDirectory() {
  std::string name =
      (std::filesystem::temp_directory_path() / "nibble-test-XXXXXX").string();
  NIBBLE_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryDirectory::Write(const std::string& name,
                                      const std::string& content) const {
  std::ofstream file(Path(name), std::ios::binary);
  file << content;
  NIBBLE_CHECK(file.flush().good());
  return Path(name);
}

TestServer::TestServer(const Scripts& scripts, const ChangeConfig& change) {
  InitLibraryLogs();
  ServerConfig config;
  config.listen = {"127.0.0.1:0"};
  config.metrics = "127.0.0.1:0";
  config.max_sequences = 8;
  config.drain_timeout = std::chrono::milliseconds(60'000);
  for (const auto& [name, script] : scripts) {
    config.models.push_back(
        {name, "scripted:" + directory_.Write(name + ".json", script)});
  }
  if (change) change(config);
  auto server = Server::Create(config);
  if (!server.ok()) ADD_FAILURE() << server.status();
  NIBBLE_CHECK(server.ok());
  server_ = *std::move(server);
  const absl::Status loaded = server_->LoadModels();
  if (!loaded.ok()) ADD_FAILURE() << loaded;
  NIBBLE_CHECK(loaded.ok());
  channel_ = Connect();
  generation_ = v1::Generation::NewStub(channel_);
  models_ = v1::Models::NewStub(channel_);
  health_ = grpc::health::v1::Health::NewStub(channel_);
}

std::shared_ptr<grpc::Channel> TestServer::Connect(
    grpc::ChannelArguments arguments) const {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server_->addresses().front(),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

double TestServer::Metric(const std::string& series) const {
  for (const Sample& sample : ParseMetrics(server_->RenderMetrics())) {
    if (sample.series == series) return sample.value;
  }
  ADD_FAILURE() << "no series " << series;
  return -1;
}

double TestServer::Sum(const std::string& family,
                       const std::string& label) const {
  double sum = 0;
  bool any = false;
  for (const Sample& sample : ParseMetrics(server_->RenderMetrics())) {
    if (sample.name != family) continue;
    if (sample.series.find(label) == std::string::npos) continue;
    sum += sample.value;
    any = true;
  }
  EXPECT_TRUE(any) << "no series of " << family << " with " << label;
  return sum;
}

namespace {

// Whether `name` is made of letters, digits (not first) and `others`.
bool IsName(const std::string& name, const std::string& others) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0]))) {
    return false;
  }
  return std::all_of(name.begin(), name.end(), [&](unsigned char c) {
    return std::isalnum(c) ||
           others.find(static_cast<char>(c)) != std::string::npos;
  });
}

// The labels of `text`, which stands between braces.
std::map<std::string, std::string> ParseLabels(const std::string& text) {
  std::map<std::string, std::string> labels;
  size_t at = 0;
  while (at < text.size()) {
    const size_t equals = text.find("=\"", at);
    EXPECT_NE(equals, std::string::npos) << text;
    if (equals == std::string::npos) return labels;
    const std::string name = text.substr(at, equals - at);
    EXPECT_TRUE(IsName(name, "_")) << text;
    std::string value;
    for (at = equals + 2; at < text.size() && text[at] != '"'; ++at) {
      if (text[at] == '\\') {
        ++at;
        EXPECT_TRUE(at < text.size() &&
                    std::string("\\\"n").find(text[at]) != std::string::npos)
            << text;
        value += text[at] == 'n' ? '\n' : text[at];
      } else {
        value += text[at];
      }
    }
    EXPECT_LT(at, text.size()) << "unclosed quote: " << text;
    EXPECT_TRUE(labels.emplace(name, value).second) << "label twice: " << text;
    ++at;
    if (at < text.size()) {
      EXPECT_EQ(text[at], ',') << text;
      ++at;
    }
  }
  return labels;
}

// The place of the brace that ends the labels, quotes minded.
size_t EndOfLabels(const std::string& line, size_t begin) {
  bool quoted = false;
  for (size_t i = begin; i < line.size(); ++i) {
    if (line[i] == '\\') {
      ++i;
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == '}' && !quoted) {
      return i;
    }
  }
  return std::string::npos;
}

// The family a sample belongs to, if one of these is declared.
std::string FamilyOf(const std::string& name,
                     const std::map<std::string, std::string>& types) {
  if (types.count(name) > 0) return name;
  for (const std::string suffix : {"_bucket", "_sum", "_count"}) {
    if (name.size() <= suffix.size()) continue;
    const std::string base = name.substr(0, name.size() - suffix.size());
    const bool ends = name.compare(base.size(), suffix.size(), suffix) == 0;
    const auto found = types.find(base);
    if (ends && found != types.end() && found->second == "histogram") {
      return base;
    }
  }
  return "";
}

Sample ParseSample(const std::string& line) {
  Sample sample;
  const size_t name_end = line.find_first_of("{ ");
  EXPECT_NE(name_end, std::string::npos) << line;
  sample.name = line.substr(0, name_end);
  EXPECT_TRUE(IsName(sample.name, "_:")) << line;
  size_t value_begin = name_end;
  if (line[name_end] == '{') {
    const size_t end = EndOfLabels(line, name_end);
    EXPECT_NE(end, std::string::npos) << line;
    sample.labels = ParseLabels(line.substr(name_end + 1, end - name_end - 1));
    value_begin = end + 1;
  }
  EXPECT_EQ(line[value_begin], ' ') << line;
  sample.series = line.substr(0, value_begin);
  const std::string number = line.substr(value_begin + 1);
  size_t used = 0;
  sample.value = std::stod(number, &used);
  EXPECT_EQ(used, number.size()) << "a timestamp, or no number: " << line;
  EXPECT_TRUE(std::isfinite(sample.value)) << line;
  return sample;
}

// Buckets rise, +Inf is there and equals the count.
void CheckHistograms(const std::vector<Sample>& samples) {
  std::map<std::string, std::pair<double, double>> last;  // bound, count
  std::map<std::string, double> counts;
  for (const Sample& sample : samples) {
    std::string key = sample.name.substr(0, sample.name.rfind('_'));
    for (const auto& [name, value] : sample.labels) {
      if (name != "le") absl::StrAppend(&key, "|", name, "=", value);
    }
    if (sample.labels.count("le") > 0) {
      const double bound = std::stod(sample.labels.at("le"));
      const auto [it, first] =
          last.emplace(key, std::pair(bound, sample.value));
      if (!first) {
        EXPECT_GT(bound, it->second.first) << sample.series;
        EXPECT_GE(sample.value, it->second.second) << sample.series;
        it->second = {bound, sample.value};
      }
    } else if (sample.name.size() > 6 &&
               sample.name.substr(sample.name.size() - 6) == "_count") {
      counts[key] = sample.value;
    }
  }
  for (const auto& [key, bucket] : last) {
    EXPECT_TRUE(std::isinf(bucket.first)) << key;
    EXPECT_EQ(bucket.second, counts.at(key)) << key;
  }
}

}  // namespace

std::vector<Sample> ParseMetrics(const std::string& text) {
  std::vector<Sample> samples;
  std::map<std::string, std::string> types;
  std::set<std::string> helped;
  std::set<std::string> series;
  std::set<std::string> done;  // families that had their group
  std::string current;
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.back(), '\n');
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("# HELP ", 0) == 0) {
      const std::string name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(helped.insert(name).second) << "HELP twice: " << line;
    } else if (line.rfind("# TYPE ", 0) == 0) {
      const size_t end = line.find(' ', 7);
      const std::string type = line.substr(end + 1);
      EXPECT_TRUE(type == "counter" || type == "gauge" || type == "histogram")
          << line;
      EXPECT_TRUE(types.emplace(line.substr(7, end - 7), type).second)
          << "TYPE twice: " << line;
    } else {
      Sample sample = ParseSample(line);
      const std::string family = FamilyOf(sample.name, types);
      EXPECT_FALSE(family.empty()) << "no TYPE before: " << line;
      EXPECT_TRUE(series.insert(sample.series).second) << "twice: " << line;
      if (family != current) {
        EXPECT_TRUE(done.insert(family).second) << "split family: " << line;
        current = family;
      }
      if (types[family] != "gauge") {
        EXPECT_GE(sample.value, 0) << line;
      }
      samples.push_back(std::move(sample));
    }
  }
  CheckHistograms(samples);
  return samples;
}

Details DetailsOf(const grpc::Status& status) {
  Details details;
  google::rpc::Status proto;
  EXPECT_TRUE(proto.ParseFromString(status.error_details()));
  EXPECT_EQ(proto.code(), status.error_code());
  EXPECT_EQ(proto.message(), status.error_message());
  for (const auto& any : proto.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      details.reason = info.reason();
      details.domain = info.domain();
      const auto id = info.metadata().find("request_id");
      if (id != info.metadata().end()) details.request_id = id->second;
    } else if (any.UnpackTo(&bad)) {
      details.field = bad.field_violations(0).field();
      details.description = bad.field_violations(0).description();
    } else if (any.UnpackTo(&retry)) {
      details.retry_seconds =
          static_cast<double>(retry.retry_delay().seconds()) +
          1e-9 * retry.retry_delay().nanos();
    } else {
      ADD_FAILURE() << "unknown detail " << any.type_url();
    }
  }
  return details;
}

v1::GenerateRequest TextRequest(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

std::string Streamed::Text(int index) const {
  std::string text;
  for (const v1::GenerateChunk& chunk : chunks) {
    if (chunk.index() == index) text += chunk.text();
  }
  return text;
}

std::optional<v1::Finish> Streamed::FinishOf(int index) const {
  for (const v1::GenerateChunk& chunk : chunks) {
    if (chunk.index() == index && chunk.has_finish()) return chunk.finish();
  }
  return std::nullopt;
}

Streamed ReadAll(grpc::ClientReader<v1::GenerateChunk>& reader) {
  Streamed streamed;
  v1::GenerateChunk chunk;
  while (reader.Read(&chunk)) streamed.chunks.push_back(chunk);
  streamed.status = reader.Finish();
  return streamed;
}

Streamed Stream(TestServer& server, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return ReadAll(*server.generation().GenerateStream(&context, request));
}

grpc::Status Generate(TestServer& server, const v1::GenerateRequest& request,
                      v1::GenerateResponse* response) {
  grpc::ClientContext context;
  return server.generation().Generate(&context, request, response);
}

bool Eventually(const std::function<bool()>& condition) {
  const auto give_up = engine::Clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (engine::Clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string LettersScript(const std::string& fields) {
  std::string script = R"({"vocabulary":[)";
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    absl::StrAppend(&script, "\"", std::string(1, letter), "\",");
  }
  return absl::StrCat(script, R"({"text":"<eos>","eos":true}],)", fields, "}");
}

std::string AbcScript(int step_us) {
  return LettersScript(absl::StrCat(
      R"("ids":["a","b","c"],"delays":{"step_us":)", step_us, "}"));
}

std::string EndlessScript(int step_us) {
  return LettersScript(
      absl::StrCat(R"("ids":["x"],"then":"repeat","context_length":100000,)",
                   R"("delays":{"step_us":)", step_us, "}"));
}

}  // namespace nibble::server::testing
