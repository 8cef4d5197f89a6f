#include "server/http_server.h"

#include <array>
#include <list>
#include <thread>
#include <utility>

// Beast 1.74 uses std::exchange without including <utility>: keep it above.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "base/log.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// How long to leave connections in the backlog when descriptors ran out.
constexpr std::chrono::milliseconds kAcceptRetry{50};

// How long, and how much, a refused client may go on sending.
constexpr std::chrono::milliseconds kLinger{1000};
constexpr size_t kMaxDrainedBytes = 1 << 20;

class Session;

// What sessions share. HTTP thread only.
struct Shared {
  HttpServer::Handler handler;
  HttpOptions options;
  std::list<Session*> sessions;  // open ones, silent longest first
};

http::response<http::string_body> Answer(
    const Shared& shared, const http::request<http::empty_body>& request) {
  http::response<http::string_body> response(http::status::ok,
                                             request.version());
  response.set(http::field::server, "nibble");
  response.keep_alive(request.keep_alive());
  const bool is_head = request.method() == http::verb::head;
  if (!is_head && request.method() != http::verb::get) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
    response.body() = "only GET and HEAD are served\n";
  } else {
    const std::string target(request.target());
    auto made =
        shared.handler(std::string_view(target).substr(0, target.find('?')));
    if (made.has_value()) {
      response.result(made->status);
      response.set(http::field::content_type, made->content_type);
      response.body() = std::move(made->body);
    } else {
      response.result(http::status::not_found);
      response.body() = "not found; try /metrics, /healthz or /livez\n";
    }
  }
  response.prepare_payload();
  if (is_head) response.body().clear();
  return response;
}

// One connection, kept alive by its pending operation. HTTP thread only.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared)
      : stream_(std::move(socket)), shared_(shared) {
    place_ = shared_.sessions.insert(shared_.sessions.end(), this);
  }
  ~Session() { shared_.sessions.erase(place_); }

  void Read() {
    shared_.sessions.splice(shared_.sessions.end(), shared_.sessions, place_);
    parser_.emplace();
    parser_->header_limit(
        static_cast<std::uint32_t>(shared_.options.max_header_bytes));
    parser_->body_limit(0);  // nothing we serve takes a body
    stream_.expires_after(shared_.options.timeout);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, size_t) {
                       self->OnRead(error);
                     });
  }

  void Close() {
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  void OnRead(error_code error) {
    if (error == http::error::header_limit) {
      return Refuse(http::status::request_header_fields_too_large);
    }
    if (error == http::error::body_limit) {
      return Refuse(http::status::payload_too_large);
    }
    if (error == http::error::end_of_stream) return Shutdown();
    static const auto& kHttpErrors =
        http::make_error_code(http::error::bad_method).category();
    if (error.category() == kHttpErrors &&
        error != http::error::partial_message) {
      return Refuse(http::status::bad_request);
    }
    if (error) return;  // timed out or reset: the last reference closes it
    response_ = Answer(shared_, parser_->get());
    Write();
  }

  void Refuse(http::status status) {
    response_ = http::response<http::string_body>(status, 11);
    response_.keep_alive(false);
    response_.body() = std::string(http::obsolete_reason(status)) + "\n";
    response_.prepare_payload();
    Write();
  }

  void Write() {
    stream_.expires_after(shared_.options.timeout);
    serializer_.emplace(response_);
    http::async_write(stream_, *serializer_,
                      [self = shared_from_this()](error_code error, size_t) {
                        self->OnWrite(error);
                      });
  }

  void OnWrite(error_code error) {
    if (error) return;
    if (response_.need_eof() || !response_.keep_alive()) return Shutdown();
    Read();
  }

  // Ends our side and reads on for a moment: closing over unread bytes would
  // reset the connection before the client has our last response.
  void Shutdown() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLinger);
    Drain();
  }

  void Drain() {
    stream_.async_read_some(
        asio::buffer(drained_),
        [self = shared_from_this()](error_code error, size_t bytes) {
          self->drained_bytes_ += bytes;
          if (!error && self->drained_bytes_ < kMaxDrainedBytes) self->Drain();
        });
  }

  beast::tcp_stream stream_;
  Shared& shared_;
  std::list<Session*>::iterator place_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::array<char, 4096> drained_;
  size_t drained_bytes_ = 0;
};

// Accepts on one socket for as long as the server lives. HTTP thread only.
class Acceptor final {
 public:
  Acceptor(asio::io_context& io, Shared& shared)
      : acceptor_(io), retry_(io), shared_(shared) {}

  error_code Take(BoundSocket socket) {
    error_code error;
    acceptor_.assign(socket.is_ipv6 ? tcp::v6() : tcp::v4(), socket.fd.get(),
                     error);
    if (!error) socket.fd.Release();  // the acceptor closes it
    return error;
  }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        // Out of descriptors, most likely: leave the rest in the backlog.
        retry_.expires_after(kAcceptRetry);
        retry_.async_wait([this](error_code stopped) {
          if (!stopped) Accept();
        });
        return;
      }
      if (shared_.sessions.size() >= shared_.options.max_connections) {
        shared_.sessions.front()->Close();
      }
      std::make_shared<Session>(std::move(socket), shared_)->Read();
      Accept();
    });
  }

 private:
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  Shared& shared_;
};

}  // namespace

struct HttpServer::Impl {
  Shared shared;  // outlives the sessions that `io` owns
  asio::io_context io{1};
  std::list<Acceptor> acceptors;
  std::vector<std::string> names;
  std::thread thread;

  void Run() {
    // Beast and the handler throw only when memory ends; one request is then
    // lost, not the process.
    while (!io.stopped()) {
      try {
        io.run();
      } catch (const std::exception& error) {
        Log(LogLevel::kError, "http request failed")
            .With("error", error.what());
      }
    }
  }
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->io.stop();
  impl_->thread.join();
}

const std::vector<std::string>& HttpServer::names() const {
  return impl_->names;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    std::vector<BoundSocket> sockets, Handler handler,
    const HttpOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->shared.handler = std::move(handler);
  impl->shared.options = options;
  for (BoundSocket& socket : sockets) {
    impl->names.push_back(socket.name);
    impl->acceptors.emplace_back(impl->io, impl->shared);
    const error_code error = impl->acceptors.back().Take(std::move(socket));
    if (error) {
      return absl::InternalError("cannot serve " + impl->names.back() + ": " +
                                 error.message());
    }
    impl->acceptors.back().Accept();
  }
  impl->thread = std::thread([raw = impl.get()] { raw->Run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace nibble::server
