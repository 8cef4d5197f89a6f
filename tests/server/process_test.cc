// The program nibble-server: what it prints, its exit codes, its signals.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/server/test_server.h"

extern char** environ;

namespace nibble::server::testing {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A running nibble-server, killed when it goes out of scope.
class Process final {
 public:
  explicit Process(std::vector<std::string> flags) {
    log_ = directory_.Path("log");
    flags.insert(flags.begin(), NIBBLE_SERVER_PROGRAM);
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log_.c_str(),
                                     O_CREAT | O_WRONLY | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    NIBBLE_CHECK_EQ(
        posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ),
        0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
  }

  void Signal(int number) { kill(pid_, number); }
  // The exit code, or minus the signal that ended it.
  int Wait() {
    int status = 0;
    NIBBLE_CHECK_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string log() const { return ReadFile(log_); }

 private:
  TemporaryDirectory directory_;
  std::string log_;
  pid_t pid_ = 0;
};

// Flags for a model, on free ports that go to `port_file`.
std::vector<std::string> Flags(const TemporaryDirectory& directory,
                               const std::string& script) {
  return {"--model=m=scripted:" + directory.Write("m.json", script),
          "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0",
          "--port-file=" + directory.Path("ports")};
}

std::unique_ptr<v1::Generation::Stub> ConnectWhenReady(
    const TemporaryDirectory& directory) {
  const std::string file = directory.Path("ports");
  EXPECT_TRUE(Eventually([&] { return !ReadFile(file).empty(); }));
  std::istringstream lines(ReadFile(file));
  std::string address;
  std::getline(lines, address);
  return v1::Generation::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

TEST(Process, ExitCodesSayWhatWasWrong) {
  EXPECT_EQ(Process({"--help"}).Wait(), 0);
  EXPECT_EQ(Process({"--version"}).Wait(), 0);
  Process wrong({"--model=m=x", "--threads=no"});
  EXPECT_EQ(wrong.Wait(), 2);
  EXPECT_NE(wrong.log().find("--threads"), std::string::npos);
  Process broken(
      {"--model=m=/nowhere.gguf", "--listen=127.0.0.1:0", "--metrics=off"});
  EXPECT_EQ(broken.Wait(), 1);
  EXPECT_NE(broken.log().find("/nowhere.gguf"), std::string::npos);
  const auto taken = Listen(ParseAddress("127.0.0.1:0").value());
  ASSERT_TRUE(taken.ok());
  Process busy({"--model=m=/nowhere.gguf", "--listen=" + (*taken)[0].name,
                "--metrics=off"});
  EXPECT_EQ(busy.Wait(), 1);
  EXPECT_NE(busy.log().find((*taken)[0].name), std::string::npos);
}

TEST(Process, SigtermLetsAStreamFinish) {
  TemporaryDirectory directory;
  Process process(Flags(directory, EndlessScript(2000)));
  const auto stub = ConnectWhenReady(directory);
  v1::GenerateRequest request = TextRequest("secret");
  request.mutable_stopping()->set_max_new_tokens(300);
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  std::string text = chunk.text();
  process.Signal(SIGTERM);
  const Streamed rest = ReadAll(*reader);
  EXPECT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(text + rest.Text(), std::string(300, 'x'));
  EXPECT_EQ(process.Wait(), 0);
  const std::string log = process.log();
  for (const std::string message :
       {"listening", "model loaded", "request finished", "draining",
        "reason=length", "generated_tokens=300"}) {
    EXPECT_NE(log.find(message), std::string::npos) << message;
  }
  EXPECT_EQ(log.find("secret"), std::string::npos);
}

TEST(Process, ASecondSignalCancels) {
  TemporaryDirectory directory;
  Process process(Flags(directory, EndlessScript(2000)));
  const auto stub = ConnectWhenReady(directory);
  v1::GenerateRequest request = TextRequest("a");
  request.mutable_stopping()->set_max_new_tokens(90'000);
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, request);
  v1::GenerateChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  process.Signal(SIGINT);
  ASSERT_TRUE(Eventually(
      [&] { return process.log().find("draining") != std::string::npos; }));
  process.Signal(SIGTERM);
  EXPECT_EQ(ReadAll(*reader).status.error_code(), grpc::CANCELLED);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(Process, WritesJsonLogs) {
  TemporaryDirectory directory;
  std::vector<std::string> flags = Flags(directory, AbcScript());
  flags.push_back("--log-format=json");
  Process process(flags);
  ConnectWhenReady(directory);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  std::istringstream lines(process.log());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(line.front(), '{') << line;
    EXPECT_EQ(line.back(), '}') << line;
    EXPECT_NE(line.find("\"message\":"), std::string::npos) << line;
  }
  EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace nibble::server::testing
