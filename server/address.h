// Where a server listens: HOST:PORT, [IPV6]:PORT or unix:PATH.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::server {

// A parsed address. Plain value.
struct Address {
  std::string text;  // as it was given
  std::string host;  // without brackets; empty for a unix socket
  uint16_t port = 0;
  std::string path;  // of a unix socket
  bool is_unix() const { return !path.empty(); }
};

// INVALID_ARGUMENT says what is wrong with `text`.
absl::StatusOr<Address> ParseAddress(std::string_view text);

// An owned file descriptor. Move-only.
class UniqueFd final {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Close(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Close();

 private:
  int fd_ = -1;
};

// A listening socket, non-blocking, with the address it really has.
struct BoundSocket {
  UniqueFd fd;
  std::string name;  // "127.0.0.1:8700", "[::1]:8700", "unix:/run/nibble"
  bool is_ipv6 = false;
  std::string unix_path;  // to be unlinked when the socket closes
};

// Listens on every address that `address` resolves to. Never shares a port
// with another process: a busy one is ALREADY_EXISTS. The file of a unix
// socket that nobody serves any more is taken over.
absl::StatusOr<std::vector<BoundSocket>> Listen(const Address& address);

}  // namespace nibble::server
