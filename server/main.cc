// nibble-server: flags, signals, exit codes. The rest is server/server.h.

#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>

#include "base/log.h"
#include "server/config.h"
#include "server/parse_request.h"
#include "server/server.h"

namespace nibble::server {
namespace {

constexpr int kFailed = 1;

// A connection is a descriptor; take as many as the system gives.
void RaiseFileLimit(int max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  // Besides connections: files of models, threads' wake-ups, HTTP.
  constexpr rlim_t kOthers = 256;
  if (limit.rlim_cur < static_cast<rlim_t>(max_connections) + kOthers) {
    Log(LogLevel::kWarning, "fewer descriptors than --max-connections")
        .With("descriptors", static_cast<uint64_t>(limit.rlim_cur))
        .With("max_connections", max_connections);
  }
}

// Blocked in every thread, so that only the waiter below sees them.
sigset_t BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return set;
}

// What the signal thread may touch. Shared: the thread ends with the process
// only, because nothing interrupts sigwait.
struct SignalState {
  std::mutex mutex;
  Server* server = nullptr;  // guarded by mutex; null before and after serving
};

// The first signal drains, every later one cancels. While models are being
// loaded nothing is worth waiting for.
void WaitForSignals(sigset_t set, const std::shared_ptr<SignalState>& state) {
  bool draining = false;
  while (true) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    Log(LogLevel::kInfo, "signal").With("number", number);
    const std::lock_guard lock(state->mutex);
    if (state->server == nullptr) {
      if (!draining) std::_Exit(EXIT_SUCCESS);
    } else if (!draining) {
      draining = true;
      state->server->Drain();
    } else {
      state->server->CancelAll();
    }
  }
}

int Run(ServerConfig config) {
  InitLog(config.log_level, config.log_format);
  InitLibraryLogs();
  const sigset_t signals = BlockSignals();
  RaiseFileLimit(config.max_connections);
  auto server = Server::Create(std::move(config));
  if (!server.ok()) {
    Log(LogLevel::kError, "cannot start")
        .With("error", std::string(server.status().message()));
    return kFailed;
  }
  const auto state = std::make_shared<SignalState>();
  std::thread([signals, state] { WaitForSignals(signals, state); }).detach();
  const absl::Status status = (*server)->LoadModels();
  if (!status.ok()) {
    Log(LogLevel::kError, "cannot start")
        .With("error", std::string(status.message()));
    return kFailed;
  }
  {
    const std::lock_guard lock(state->mutex);
    state->server = server->get();
  }
  (*server)->WaitDrained();
  Log(LogLevel::kInfo, "stopped").With("exit_code", 0);
  const std::lock_guard lock(state->mutex);
  state->server = nullptr;
  return 0;
}

}  // namespace
}  // namespace nibble::server

int main(int argc, char** argv) {
  auto parsed = nibble::server::ParseConfig(argc, argv);
  if (const auto* exit = std::get_if<nibble::server::ConfigExit>(&parsed)) {
    std::fputs(exit->text.c_str(), exit->code == 0 ? stdout : stderr);
    return exit->code;
  }
  return nibble::server::Run(
      std::get<nibble::server::ServerConfig>(std::move(parsed)));
}
