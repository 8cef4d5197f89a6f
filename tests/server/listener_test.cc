#include "server/listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/server/sockets.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

TEST(Address, IsParsed) {
  auto address = ParseAddress("127.0.0.1:8700");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->host, "127.0.0.1");
  EXPECT_EQ(address->port, 8700);
  address = ParseAddress("[::1]:0");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->host, "::1");
  address = ParseAddress("unix:/run/x");
  ASSERT_TRUE(address.ok());
  EXPECT_TRUE(address->is_unix());
  for (const std::string wrong :
       {"", "8700", ":8700", "localhost", "localhost:", "localhost:x",
        "localhost:65536", "localhost:-1", "::1:80", "unix:", "[]:1"}) {
    const auto refused = ParseAddress(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_NE(refused.status().message().find("'" + wrong + "'"),
              absl::string_view::npos);
  }
  EXPECT_FALSE(ParseAddress("unix:" + std::string(200, 'x')).ok());
}

std::vector<BoundSocket> ListenOn(const std::string& text) {
  auto sockets = Listen(ParseAddress(text).value());
  if (!sockets.ok()) ADD_FAILURE() << sockets.status();
  NIBBLE_CHECK(sockets.ok());
  return *std::move(sockets);
}

TEST(Listen, ABusyPortIsAnError) {
  const std::vector<BoundSocket> first = ListenOn("127.0.0.1:0");
  const auto second = Listen(ParseAddress(first[0].name).value());
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_NE(second.status().message().find(first[0].name),
            absl::string_view::npos);
}

TEST(Listen, ABusyPortStopsAServer) {
  const std::vector<BoundSocket> busy = ListenOn("127.0.0.1:0");
  ServerConfig config;
  config.models = {{"m", "scripted:/nowhere"}};
  config.listen = {busy[0].name};
  config.metrics = "off";
  EXPECT_TRUE(absl::IsAlreadyExists(Server::Create(config).status()));
  config.listen = {"127.0.0.1:0"};
  config.metrics = busy[0].name;
  EXPECT_TRUE(absl::IsAlreadyExists(Server::Create(config).status()));
}

TEST(Listen, AStaleUnixSocketIsTakenOverALiveOneAndAFileAreNot) {
  TemporaryDirectory directory;
  const std::string name = "unix:" + directory.Path("socket");
  {
    std::vector<BoundSocket> live = ListenOn(name);
    EXPECT_TRUE(
        absl::IsAlreadyExists(Listen(ParseAddress(name).value()).status()));
  }
  // Closed without unlink, as by a crash.
  EXPECT_TRUE(std::filesystem::exists(directory.Path("socket")));
  Listener listener(ListenOn(name), 10);
  listener.Stop();
  EXPECT_FALSE(std::filesystem::exists(directory.Path("socket")));
  directory.Write("file", "mine");
  EXPECT_FALSE(
      Listen(ParseAddress("unix:" + directory.Path("file")).value()).ok());
  EXPECT_TRUE(std::filesystem::exists(directory.Path("file")));
}

// Keeps what a Listener accepts.
class Keeper final {
 public:
  Listener::Handler Handler() {
    return [this](UniqueFd fd, int) {
      const std::lock_guard lock(mutex_);
      kept_.push_back(std::move(fd));
    };
  }
  size_t size() {
    const std::lock_guard lock(mutex_);
    return kept_.size();
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<UniqueFd> kept_;
};

TEST(Listener, ConnectionsOverTheLimitAreClosedAndLaterOnesFindRoom) {
  Keeper keeper;
  Listener listener(ListenOn("127.0.0.1:0"), 3);
  listener.Start(keeper.Handler());
  const std::string name = listener.names().front();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(ConnectTo(name));
  EXPECT_TRUE(Eventually([&] { return keeper.size() == 3; }));
  const UniqueFd refused = ConnectTo(name);
  EXPECT_TRUE(IsClosed(refused));
  EXPECT_EQ(listener.counts().accepted, 3u);
  EXPECT_EQ(listener.counts().refused, 1u);
  keeper.Close();
  EXPECT_TRUE(Eventually([&] {
    clients.push_back(ConnectTo(name));
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    return keeper.size() > 0;
  }));
}

TEST(Listener, AcceptsAgainAfterDescriptorsRanOut) {
  Keeper keeper;
  Listener listener(ListenOn("127.0.0.1:0"), 1000);
  listener.Start(keeper.Handler());
  UniqueFd client = ConnectTo(listener.names().front());
  EXPECT_TRUE(Eventually([&] { return keeper.size() == 1; }));

  // The client's socket exists before the last descriptor goes.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  UniqueFd second(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::vector<UniqueFd> hoard;
  rlimit tight = old;
  tight.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  while (true) {
    UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) break;
    hoard.push_back(std::move(fd));
  }
  const auto address = ParseAddress(listener.names().front()).value();
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(address.port);
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      connect(second.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)),
      0);  // by the kernel; nobody accepts it yet
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(keeper.size(), 1u);
  hoard.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_TRUE(Eventually([&] { return keeper.size() == 2; }));
}

TEST(Server, ALimitOnConnectionsHoldsForGrpc) {
  TestServer server(AbcScript(),
                    [](ServerConfig& config) { config.max_connections = 2; });
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(server, TextRequest("a"), &response).ok());
  const auto second = v1::Generation::NewStub(server.Connect());
  grpc::ClientContext second_context;
  ASSERT_TRUE(
      second->Generate(&second_context, TextRequest("a"), &response).ok());
  {
    const UniqueFd third = ConnectTo(server.server().addresses().front());
    EXPECT_TRUE(IsClosed(third));
  }
  EXPECT_EQ(server.Metric("nibble_connections_accepted_total"), 2);
  EXPECT_EQ(server.Metric("nibble_connections_refused_total"), 1);
}

}  // namespace
}  // namespace nibble::server::testing
