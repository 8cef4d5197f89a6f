#include "tools/client/client.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace nibble::client {
namespace {

std::string_view CodeName(grpc::StatusCode code) {
  static constexpr std::string_view kNames[] = {
      "OK",
      "CANCELLED",
      "UNKNOWN",
      "INVALID_ARGUMENT",
      "DEADLINE_EXCEEDED",
      "NOT_FOUND",
      "ALREADY_EXISTS",
      "PERMISSION_DENIED",
      "RESOURCE_EXHAUSTED",
      "FAILED_PRECONDITION",
      "ABORTED",
      "OUT_OF_RANGE",
      "UNIMPLEMENTED",
      "INTERNAL",
      "UNAVAILABLE",
      "DATA_LOSS",
      "UNAUTHENTICATED",
  };
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

int ExitCodeFor(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::OK:
      return kOk;
    case grpc::StatusCode::UNAVAILABLE:
      return kUnreachable;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return kRefused;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return kOverloaded;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return kDeadline;
    default:
      return kFailed;
  }
}

// What the details add to the message, one line each.
void PrintDetails(const grpc::Status& status) {
  google::rpc::Status rich;
  if (!rich.ParseFromString(status.error_details())) return;
  for (const google::protobuf::Any& detail : rich.details()) {
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&bad_request)) {
      for (const auto& violation : bad_request.field_violations()) {
        std::cerr << "  field: " << violation.field() << '\n';
      }
    } else if (detail.UnpackTo(&retry)) {
      const double seconds =
          static_cast<double>(retry.retry_delay().seconds()) +
          retry.retry_delay().nanos() * 1e-9;
      std::cerr << "  retry after: " << seconds << " s\n";
    }
  }
}

// Written by the signal handler alone; read by its watcher.
std::atomic<int> g_interrupts{0};

void OnInterrupt(int /*signal*/) {
  if (g_interrupts.fetch_add(1) > 0) _exit(kInterrupted);
}

}  // namespace

void Connection::AddTo(CLI::App& command) {
  command
      .add_option("--target", target,
                  "Server, HOST:PORT or unix:PATH [" + target + "]")
      ->envname("NIBBLE_TARGET");
  command
      .add_option("--timeout", timeout_seconds,
                  "Deadline of the call in seconds; 0: none [0]")
      ->check(CLI::NonNegativeNumber);
  command.add_flag("--json", json, "Print JSON, one object a line");
}

std::shared_ptr<grpc::Channel> Connection::Channel() const {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(),
                                   arguments);
}

void Connection::Prepare(grpc::ClientContext& context) const {
  if (timeout_seconds <= 0) return;
  context.set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::microseconds(static_cast<int64_t>(timeout_seconds * 1e6)));
}

int Report(const grpc::Status& status, const Connection& connection) {
  if (status.ok()) return kOk;
  if (CancelOnInterrupt::interrupted()) return kInterrupted;
  std::cerr << "nibble: " << CodeName(status.error_code()) << ": "
            << status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    std::cerr << " (server " << connection.target << ")";
  }
  std::cerr << '\n';
  PrintDetails(status);
  return ExitCodeFor(status.error_code());
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    std::cerr << "nibble: cannot print as JSON: " << status.ToString() << '\n';
    return;
  }
  std::cout << json << std::endl;
}

absl::StatusOr<std::string> ReadInput(const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  text << file.rdbuf();
  if (file.bad()) return absl::UnknownError(absl::StrCat("cannot read ", path));
  return text.str();
}

void PrintText(const std::string& text) {
  static const bool to_terminal = isatty(STDOUT_FILENO) != 0;
  if (!to_terminal) {
    std::cout << text << std::flush;
    return;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string safe;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      safe += "\\x";
      safe += kHex[byte >> 4];
      safe += kHex[byte & 15];
    } else {
      safe += c;
    }
  }
  std::cout << safe << std::flush;
}

CancelOnInterrupt::CancelOnInterrupt(grpc::ClientContext& context)
    : old_handler_(std::signal(SIGINT, OnInterrupt)) {
  watcher_ = std::thread([this, &context] {
    while (!stop_) {
      if (g_interrupts > 0) {
        context.TryCancel();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

CancelOnInterrupt::~CancelOnInterrupt() {
  stop_ = true;
  watcher_.join();
  std::signal(SIGINT, old_handler_);
}

bool CancelOnInterrupt::interrupted() { return g_interrupts > 0; }

}  // namespace nibble::client
