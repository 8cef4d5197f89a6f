#include "server/address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nibble::server {
namespace {

constexpr std::string_view kUnix = "unix:";
// Connections that wait to be accepted; the kernel caps it at somaxconn.
constexpr int kBacklog = 1024;

std::string ErrnoText(int error) {
  return std::generic_category().message(error);
}

absl::Status BindError(const std::string& name, int error) {
  const std::string text =
      absl::StrCat("cannot listen on ", name, ": ", ErrnoText(error));
  if (error == EADDRINUSE) return absl::AlreadyExistsError(text);
  if (error == EACCES) return absl::PermissionDeniedError(text);
  return absl::FailedPreconditionError(text);
}

std::string NameOf(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(in6.sin6_port));
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(storage);
  inet_ntop(AF_INET, &in4.sin_addr, text, sizeof(text));
  return absl::StrCat(text, ":", ntohs(in4.sin_port));
}

absl::StatusOr<BoundSocket> ListenTcp(const addrinfo& info,
                                      const std::string& text) {
  BoundSocket bound;
  bound.is_ipv6 = info.ai_family == AF_INET6;
  bound.fd = UniqueFd(
      socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!bound.fd.valid()) return BindError(text, errno);
  const int fd = bound.fd.get();
  // Past connections in TIME_WAIT do not keep the port; a listener does.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bound.is_ipv6) {
    // [::] serves IPv4 as well; any other address is itself alone.
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(info.ai_addr);
    const int only = IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) ? 0 : 1;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (bind(fd, info.ai_addr, info.ai_addrlen) != 0 ||
      listen(fd, kBacklog) != 0) {
    return BindError(text, errno);
  }
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return BindError(text, errno);
  }
  bound.name = NameOf(storage);
  return bound;
}

absl::StatusOr<std::vector<BoundSocket>> ListenHost(const Address& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(),
                  &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot listen on ", address.text, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 freeaddrinfo);
  std::vector<BoundSocket> sockets;
  absl::Status last = absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", address.text, ": no address"));
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    auto bound = ListenTcp(*info, address.text);
    if (bound.ok()) {
      sockets.push_back(*std::move(bound));
    } else if (absl::IsAlreadyExists(bound.status())) {
      return bound.status();
    } else {
      last = bound.status();  // e.g. "localhost" where IPv6 is off
    }
  }
  if (sockets.empty()) return last;
  return sockets;
}

// Whether somebody answers on the socket file.
bool IsServed(const sockaddr_un& name) {
  const UniqueFd probe(
      socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&name),
              sizeof(name)) == 0) {
    return true;
  }
  return errno == EAGAIN;  // its backlog is full: served, and busy
}

bool IsSocketFile(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

absl::StatusOr<std::vector<BoundSocket>> ListenUnix(const Address& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address.path.data(), address.path.size());
  BoundSocket bound;
  bound.name = address.text;
  bound.fd =
      UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!bound.fd.valid()) return BindError(address.text, errno);
  const auto* generic = reinterpret_cast<const sockaddr*>(&name);
  if (bind(bound.fd.get(), generic, sizeof(name)) != 0) {
    const int error = errno;
    const bool stale =
        error == EADDRINUSE && IsSocketFile(address.path) && !IsServed(name);
    if (!stale) return BindError(address.text, error);
    unlink(address.path.c_str());
    if (bind(bound.fd.get(), generic, sizeof(name)) != 0) {
      return BindError(address.text, errno);
    }
  }
  bound.unix_path = address.path;
  if (listen(bound.fd.get(), kBacklog) != 0) {
    return BindError(address.text, errno);
  }
  std::vector<BoundSocket> sockets;
  sockets.push_back(std::move(bound));
  return sockets;
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

int UniqueFd::Release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void UniqueFd::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<Address> ParseAddress(std::string_view text) {
  const auto wrong = [text](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' ", std::string(why),
                     "; expected HOST:PORT, [IPV6]:PORT or unix:PATH"));
  };
  Address address;
  address.text = std::string(text);
  if (text.substr(0, kUnix.size()) == kUnix) {
    address.path = std::string(text.substr(kUnix.size()));
    if (address.path.empty()) return wrong("has no path");
    if (address.path.size() >= sizeof(sockaddr_un::sun_path)) {
      return wrong(absl::StrCat("has a path of ", address.path.size(),
                                " bytes, more than ",
                                sizeof(sockaddr_un::sun_path) - 1));
    }
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("has no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("has an IPv6 address without brackets");
  }
  if (host.empty()) return wrong("has no host");
  unsigned number = 0;
  const auto [rest, error] =
      std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || rest != port.data() + port.size() ||
      number > 65535) {
    return wrong("has no port from 0 to 65535");
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(number);
  return address;
}

absl::StatusOr<std::vector<BoundSocket>> Listen(const Address& address) {
  return address.is_unix() ? ListenUnix(address) : ListenHost(address);
}

}  // namespace nibble::server
