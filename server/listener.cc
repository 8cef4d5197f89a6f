#include "server/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace nibble::server {
namespace {

// How long to leave connections in the backlog when descriptors ran out.
constexpr int kOutOfFilesWaitMs = 50;
// A sweep is one fstat a connection; refused ones in between cost none.
constexpr int64_t kSweepIntervalMs = 10;
constexpr int64_t kComplaintIntervalMs = 10'000;
// Accepted from one socket before the others, and Stop, are looked at.
constexpr int kMaxAccepts = 64;

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The inode of an open socket, or 0.
uint64_t InodeOf(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

}  // namespace

Listener::Listener(std::vector<BoundSocket> sockets, int max_connections)
    : sockets_(std::move(sockets)),
      max_connections_(static_cast<size_t>(max_connections)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  NIBBLE_CHECK(wake_.valid());
  last_complaint_ms_ = -kComplaintIntervalMs;
}

Listener::~Listener() { Stop(); }

void Listener::Start(Handler handler) {
  handler_ = std::move(handler);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    NIBBLE_CHECK_EQ(write(wake_.get(), &one, sizeof(one)),
                    static_cast<ssize_t>(sizeof(one)));
    thread_.join();
  }
  for (BoundSocket& socket : sockets_) {
    socket.fd.Close();
    if (!socket.unix_path.empty()) unlink(socket.unix_path.c_str());
    socket.unix_path.clear();
  }
}

std::vector<std::string> Listener::names() const {
  std::vector<std::string> names;
  for (const BoundSocket& socket : sockets_) names.push_back(socket.name);
  return names;
}

ListenerCounts Listener::counts() const {
  return {accepted_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed)};
}

void Listener::Run() {
  std::vector<pollfd> polls;
  for (const BoundSocket& socket : sockets_) {
    polls.push_back({socket.fd.get(), POLLIN, 0});
  }
  polls.push_back({wake_.get(), POLLIN, 0});
  while (true) {
    if (out_of_files_) {
      // The sockets stay readable: wait for time or Stop alone.
      poll(&polls.back(), 1, kOutOfFilesWaitMs);
      out_of_files_ = false;
    } else {
      poll(polls.data(), polls.size(), -1);
    }
    if (polls.back().revents != 0) return;
    for (const BoundSocket& socket : sockets_) AcceptAll(socket);
  }
}

void Listener::AcceptAll(const BoundSocket& socket) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    UniqueFd connection(accept4(socket.fd.get(), nullptr, nullptr,
                                SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      const int error = errno;
      out_of_files_ = true;
      if (NowMs() - last_complaint_ms_ >= kComplaintIntervalMs) {
        last_complaint_ms_ = NowMs();
        Log(LogLevel::kWarning, "cannot accept connections")
            .With("address", socket.name)
            .With("error", std::generic_category().message(error));
      }
      return;
    }
    if (AtLimit()) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (socket.unix_path.empty()) {
      const int on = 1;
      setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    accepted_.fetch_add(1, std::memory_order_relaxed);
    open_[connection.get()] = InodeOf(connection.get());
    handler_(std::move(connection), socket.fd.get());
  }
}

bool Listener::AtLimit() {
  if (open_.size() < max_connections_) return false;
  if (NowMs() - last_sweep_ms_ >= kSweepIntervalMs) {
    ForgetClosed();
    last_sweep_ms_ = NowMs();
  }
  if (open_.size() < max_connections_) return false;
  if (NowMs() - last_complaint_ms_ >= kComplaintIntervalMs) {
    last_complaint_ms_ = NowMs();
    Log(LogLevel::kWarning, "connection refused: too many")
        .With("limit", max_connections_);
  }
  return true;
}

void Listener::ForgetClosed() {
  for (auto it = open_.begin(); it != open_.end();) {
    if (InodeOf(it->first) != it->second) {
      it = open_.erase(it);
    } else {
      ++it;
    }
  }
}

}  // namespace nibble::server
