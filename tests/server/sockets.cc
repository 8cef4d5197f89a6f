#include "tests/server/sockets.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/check.h"
#include "gtest/gtest.h"

namespace nibble::server::testing {

UniqueFd ConnectTo(const std::string& address) {
  const auto parsed = ParseAddress(address);
  NIBBLE_CHECK(parsed.ok());
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  NIBBLE_CHECK_EQ(
      getaddrinfo(parsed->host.c_str(), std::to_string(parsed->port).c_str(),
                  &hints, &found),
      0);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), found->ai_addr, found->ai_addrlen), 0) << address;
  freeaddrinfo(found);
  const timeval limit{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return fd;
}

bool SendAll(const UniqueFd& fd, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

std::string ReadToEnd(const UniqueFd& fd) {
  std::string all;
  char buffer[4096];
  while (true) {
    const ssize_t count = recv(fd.get(), buffer, sizeof(buffer), 0);
    if (count <= 0) return all;
    all.append(buffer, static_cast<size_t>(count));
  }
}

bool IsClosed(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t count = recv(fd.get(), &byte, 1, 0);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

}  // namespace nibble::server::testing
