// What the subcommands of `nibble` share: the connection, exit codes, prompts
// and printing.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "nibble/v1/nibble.grpc.pb.h"

namespace nibble::client {

// The exit codes of `nibble`, as its --help lists them.
enum ExitCode : int {
  kOk = 0,
  kFailed = 1,       // the server failed, or gave no answer we understand
  kUsage = 2,        // the command line
  kUnreachable = 3,  // no connection, or the server is draining
  kRefused = 4,      // the request is wrong: a field, a model's name
  kOverloaded = 5,   // queue full: try again later
  kDeadline = 6,     // --timeout passed
  kInterrupted = 130,
};

// Options every subcommand has. Owned by main, filled by CLI11.
struct Connection {
  std::string target = "127.0.0.1:8700";
  double timeout_seconds = 0;  // 0: none
  bool json = false;

  void AddTo(CLI::App& command);
  std::shared_ptr<grpc::Channel> Channel() const;
  // Sets the deadline.
  void Prepare(grpc::ClientContext& context) const;
};

// Prints "nibble: CODE: message" and the details' fields to stderr; returns
// the exit code for the status.
int Report(const grpc::Status& status, const Connection& connection);

// One line of JSON to stdout, field names as in the proto.
void PrintJson(const google::protobuf::Message& message);

// A whole file, or standard input for "-".
absl::StatusOr<std::string> ReadInput(const std::string& path);

// Writes text to stdout at once. On a terminal control characters other than
// newline and tab are shown as escapes, so that a model's text cannot drive
// the terminal.
void PrintText(const std::string& text);

// While it lives Ctrl-C cancels `context` (and a second one kills us).
class CancelOnInterrupt final {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext& context);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;
  static bool interrupted();

 private:
  std::atomic<bool> stop_{false};
  std::thread watcher_;  // the signal handler itself may only count
  void (*old_handler_)(int);
};

// The subcommands: each adds itself to the app and, when chosen, leaves its
// exit code in `*exit_code`.
void AddGenerate(CLI::App& app, Connection& connection, int* exit_code);
void AddChat(CLI::App& app, Connection& connection, int* exit_code);
void AddModels(CLI::App& app, Connection& connection, int* exit_code);
void AddTokenize(CLI::App& app, Connection& connection, int* exit_code);
void AddStatus(CLI::App& app, Connection& connection, int* exit_code);

}  // namespace nibble::client
