#include "server/http_server.h"

#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/server/sockets.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

std::unique_ptr<HttpServer> StartHttp(const HttpOptions& options,
                                      const std::string& host = "127.0.0.1") {
  auto address = ParseAddress(host + ":0");
  NIBBLE_CHECK(address.ok());
  auto sockets = Listen(*address);
  NIBBLE_CHECK(sockets.ok());
  auto server = HttpServer::Start(
      *std::move(sockets),
      [](std::string_view path) -> std::optional<HttpResponse> {
        if (path != "/page") return std::nullopt;
        return HttpResponse{200, "text/plain", "the page\n"};
      },
      options);
  NIBBLE_CHECK(server.ok());
  return *std::move(server);
}

// One request on a connection of its own.
std::string Fetch(const HttpServer& server, const std::string& request) {
  const UniqueFd fd = ConnectTo(server.names().front());
  SendAll(fd, request);
  return ReadToEnd(fd);
}

std::string Get(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
}

TEST(HttpServer, AnswersGetAndHead) {
  const auto server = StartHttp({});
  const std::string page = Fetch(*server, Get("/page"));
  EXPECT_EQ(page.rfind("HTTP/1.1 200 OK\r\n", 0), 0u) << page;
  EXPECT_NE(page.find("Content-Length: 9\r\n"), std::string::npos);
  EXPECT_NE(page.find("\r\n\r\nthe page\n"), std::string::npos);
  EXPECT_EQ(Fetch(*server, Get("/page?a=b")), page);
  const std::string head = Fetch(*server, "HEAD /page HTTP/1.0\r\n\r\n");
  EXPECT_EQ(head.rfind("HTTP/1.0 200 OK\r\n", 0), 0u) << head;
  EXPECT_EQ(head.find("the page"), std::string::npos);
  EXPECT_NE(head.find("Content-Length: 9\r\n"), std::string::npos);
}

TEST(HttpServer, KeepsAConnectionForSeveralRequests) {
  const auto server = StartHttp({});
  const UniqueFd fd = ConnectTo(server->names().front());
  // Both at once: the second waits in the buffer.
  ASSERT_TRUE(SendAll(fd, "GET /page HTTP/1.1\r\n\r\n" + Get("/page")));
  const std::string all = ReadToEnd(fd);
  const size_t first = all.find("the page");
  ASSERT_NE(first, std::string::npos);
  EXPECT_NE(all.find("the page", first + 1), std::string::npos);
}

TEST(HttpServer, RefusesOtherPathsMethodsAndBodies) {
  const auto server = StartHttp({});
  EXPECT_EQ(Fetch(*server, Get("/")).rfind("HTTP/1.1 404", 0), 0u);
  const std::string post = Fetch(*server,
                                 "POST /page HTTP/1.1\r\nConnection: close\r\n"
                                 "Content-Length: 0\r\n\r\n");
  EXPECT_EQ(post.rfind("HTTP/1.1 405", 0), 0u) << post;
  EXPECT_NE(post.find("Allow: GET, HEAD"), std::string::npos);
  const std::string body =
      Fetch(*server, "GET /page HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_EQ(body.rfind("HTTP/1.1 413", 0), 0u) << body;
}

TEST(HttpServer, GarbageAndBigHeadersAreRefused) {
  const auto server = StartHttp({});
  for (const std::string& garbage :
       {std::string("hello\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01", 6), std::string(100, '\0'),
        std::string("GET /page\r\n\r\n"),
        std::string("GET /page HTTP/9.9\r\n\r\n"),
        std::string("GET /page HTTP/1.1\r\nno colon\r\n\r\n")}) {
    const std::string answer = Fetch(*server, garbage);
    EXPECT_EQ(answer.rfind("HTTP/1.1 400", 0), 0u) << answer;
  }
  const std::string big =
      Fetch(*server, "GET /page HTTP/1.1\r\nX: " + std::string(20'000, 'x') +
                         "\r\n\r\n");
  EXPECT_EQ(big.rfind("HTTP/1.1 431", 0), 0u) << big;
  EXPECT_NE(Fetch(*server, Get("/page")).find("the page"), std::string::npos);
}

TEST(HttpServer, SlowClientsAreCutOff) {
  HttpOptions options;
  options.timeout = std::chrono::milliseconds(300);
  const auto server = StartHttp(options);
  const UniqueFd silent = ConnectTo(server->names().front());
  const UniqueFd slow = ConnectTo(server->names().front());
  EXPECT_TRUE(SendAll(slow, "GET /pa"));
  EXPECT_TRUE(IsClosed(silent));
  EXPECT_TRUE(IsClosed(slow));
}

TEST(HttpServer, ManyConnectionsNeverKeepAScrapeOut) {
  HttpOptions options;
  options.max_connections = 8;
  const auto server = StartHttp(options);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(ConnectTo(server->names().front()));
  }
  EXPECT_NE(Fetch(*server, Get("/page")).find("the page"), std::string::npos);
  EXPECT_TRUE(IsClosed(silent.front()));  // the one that was silent longest
}

TEST(HttpServer, EndsWithConnectionsOpen) {
  auto server = StartHttp({});
  const UniqueFd fd = ConnectTo(server->names().front());
  SendAll(fd, "GET /pa");
  server.reset();
  EXPECT_TRUE(IsClosed(fd));
}

TEST(HttpServer, ServesIpv6) {
  const auto server = StartHttp({}, "[::1]");
  EXPECT_EQ(server->names().front().rfind("[::1]:", 0), 0u);
  EXPECT_NE(Fetch(*server, Get("/page")).find("the page"), std::string::npos);
}

TEST(HttpServer, ShowsTheServersPages) {
  TestServer server(AbcScript());
  const auto fetch = [&](const std::string& path) {
    const UniqueFd fd = ConnectTo(server.server().metrics_address());
    SendAll(fd, Get(path));
    return ReadToEnd(fd);
  };
  const std::string metrics = fetch("/metrics");
  EXPECT_NE(metrics.find("Content-Type: text/plain; version=0.0.4"),
            std::string::npos);
  EXPECT_EQ(metrics.substr(metrics.find("\r\n\r\n") + 4),
            server.server().RenderMetrics());
  EXPECT_EQ(fetch("/healthz").rfind("HTTP/1.1 200", 0), 0u);
  EXPECT_EQ(fetch("/livez").rfind("HTTP/1.1 200", 0), 0u);
  server.server().Drain();
  EXPECT_EQ(fetch("/healthz").rfind("HTTP/1.1 503", 0), 0u);
  EXPECT_EQ(fetch("/livez").rfind("HTTP/1.1 200", 0), 0u);
}

}  // namespace
}  // namespace nibble::server::testing
