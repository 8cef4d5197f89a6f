// The accept loop of the gRPC ports. gRPC's own stops for ever at the first
// EMFILE, shares busy ports and has no limit on connections.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "server/address.h"

namespace nibble::server {

// What became of connections so far.
struct ListenerCounts {
  uint64_t accepted = 0;
  uint64_t refused = 0;  // over the limit, closed at once
};

// Owns the listening sockets and one thread that accepts on them; made and
// stopped by the server. counts() may be called from any thread.
class Listener final {
 public:
  // Takes over an accepted, non-blocking socket. Called by the thread.
  using Handler = std::function<void(UniqueFd connection, int listener_fd)>;

  Listener(std::vector<BoundSocket> sockets, int max_connections);
  ~Listener();  // Stop()
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  void Start(Handler handler);
  // Closes the sockets and joins the thread; accepted connections stay.
  void Stop();

  // The bound addresses, in the order given.
  std::vector<std::string> names() const;
  ListenerCounts counts() const;

 private:
  void Run();
  void AcceptAll(const BoundSocket& socket);
  bool AtLimit();
  void ForgetClosed();

  std::vector<BoundSocket> sockets_;
  const size_t max_connections_;
  Handler handler_;
  UniqueFd wake_;  // an eventfd: readable once Stop was called
  std::atomic<uint64_t> accepted_{0};
  std::atomic<uint64_t> refused_{0};
  // Thread only: connections handed over, as descriptor -> inode. A pair that
  // no longer matches was closed by gRPC, whoever has the number now.
  std::unordered_map<int, uint64_t> open_;
  int64_t last_sweep_ms_ = 0;
  int64_t last_complaint_ms_ = 0;
  bool out_of_files_ = false;
  std::thread thread_;
};

}  // namespace nibble::server
