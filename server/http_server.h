// The small HTTP server of /metrics and the health pages.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/address.h"

namespace nibble::server {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

struct HttpOptions {
  // Connections at once; one more closes the one that was silent longest.
  size_t max_connections = 128;
  size_t max_header_bytes = 8192;
  // For one whole request, the wait for it included, and for one response.
  std::chrono::milliseconds timeout{30'000};
};

// Answers GET and HEAD on one thread of its own. The handler is called by that
// thread, with the path without its query; std::nullopt is 404.
class HttpServer final {
 public:
  using Handler =
      std::function<std::optional<HttpResponse>(std::string_view path)>;

  // Serves the sockets (TCP only) until it is destroyed.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      std::vector<BoundSocket> sockets, Handler handler,
      const HttpOptions& options);
  ~HttpServer();

  // The bound addresses.
  const std::vector<std::string>& names() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
