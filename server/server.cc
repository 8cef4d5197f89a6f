#include "server/server.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "server/version.h"

namespace nibble::server {
namespace {

// How often health, stalled clients and the drain are looked at.
constexpr std::chrono::milliseconds kTick{50};
// A connection that says nothing for so long never becomes one.
constexpr std::chrono::milliseconds kHandshakeTimeout{20'000};
// What cancelled calls get to end by themselves.
constexpr std::chrono::milliseconds kCancelGrace{2'000};
// What open health watches get after the last generation call has ended.
constexpr std::chrono::milliseconds kShutdownGrace{500};

int Milliseconds(std::chrono::milliseconds duration) {
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  return static_cast<int>(std::min<int64_t>(duration.count(), kMax));
}

void SetConnectionLimits(const ServerConfig& config,
                         grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(config.max_message_bytes);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             config.max_streams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(kHandshakeTimeout));
  if (config.keepalive_time.count() > 0) {
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                               Milliseconds(config.keepalive_time));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                               Milliseconds(config.keepalive_timeout));
    // A stream may be silent for minutes while its prompt is computed.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      Milliseconds(config.keepalive_min_interval));
  if (config.max_connection_age.count() > 0) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               Milliseconds(config.max_connection_age));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               Milliseconds(config.max_connection_age_grace));
  }
}

absl::StatusOr<std::vector<BoundSocket>> ListenAll(
    const std::vector<std::string>& texts) {
  std::vector<BoundSocket> all;
  for (const std::string& text : texts) {
    NIBBLE_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
    NIBBLE_ASSIGN_OR_RETURN(std::vector<BoundSocket> sockets, Listen(address));
    for (BoundSocket& socket : sockets) all.push_back(std::move(socket));
  }
  return all;
}

}  // namespace

Server::Server(ServerConfig config)
    : config_(std::move(config)),
      metrics_(config_.vllm_metrics),
      registry_(config_, metrics_) {
  context_.registry = &registry_;
  context_.metrics = &metrics_;
  context_.calls = &calls_;
  context_.write_stall_timeout = config_.write_stall_timeout;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Create(ServerConfig config) {
  std::unique_ptr<Server> server(new Server(std::move(config)));
  NIBBLE_ASSIGN_OR_RETURN(std::vector<BoundSocket> sockets,
                          ListenAll(server->config_.listen));
  server->listener_ = std::make_unique<Listener>(
      std::move(sockets), server->config_.max_connections);
  server->StartGrpc();
  NIBBLE_RETURN_IF_ERROR(server->StartHttp());
  server->monitor_ = std::thread([raw = server.get()] { raw->Monitor(); });
  Log(LogLevel::kInfo, "listening")
      .With("version", kVersion)
      .With("grpc", absl::StrJoin(server->addresses(), ","))
      .With("metrics", server->metrics_address());
  return server;
}

void Server::StartGrpc() {
  // Both settings are the process's: reflection needs Health's descriptor,
  // which lies in a library that nothing else refers to.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::health::v1::HealthCheckRequest::descriptor();
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();

  grpc::ServerBuilder builder;
  SetConnectionLimits(config_, builder);
  builder.RegisterService(&generation_);
  builder.RegisterService(&models_);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  grpc_ = builder.BuildAndStart();
  // Nothing is bound by gRPC, so nothing can fail but the process.
  NIBBLE_CHECK(grpc_ != nullptr);
  health_ = std::make_unique<Health>(registry_, config_.stall_timeout,
                                     grpc_->GetHealthCheckService());
  listener_->Start([this](UniqueFd connection, int listener_fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
        parameters;
    parameters.listener_fd = listener_fd;
    parameters.fd = connection.Release();
    acceptor_->HandleNewConnection(&parameters);
  });
}

absl::Status Server::StartHttp() {
  if (config_.metrics == "off") return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const Address address, ParseAddress(config_.metrics));
  NIBBLE_ASSIGN_OR_RETURN(std::vector<BoundSocket> sockets, Listen(address));
  NIBBLE_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(
                 std::move(sockets),
                 [this](std::string_view path) { return AnswerHttp(path); },
                 HttpOptions()));
  return absl::OkStatus();
}

Server::~Server() {
  Drain();
  CancelAll();
  // Calls end, and with them the engines' sinks, before anything goes away.
  WaitDrained();
  if (monitor_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    monitor_.join();
  }
  if (listener_ != nullptr) listener_->Stop();
  if (grpc_ != nullptr) {
    grpc_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    grpc_->Wait();
  }
  http_.reset();
}

absl::Status Server::LoadModels() {
  absl::Status last;
  int loaded = 0;
  for (const auto& model : registry_.models()) {
    const absl::Status status = model->Load(config_);
    if (status.ok()) {
      ++loaded;
    } else {
      last = status;
    }
  }
  if (loaded == 0) {
    return absl::Status(
        last.code(), absl::StrCat("no model could be loaded; the last error: ",
                                  last.message()));
  }
  {
    // A drain that began meanwhile did not see these engines.
    const std::lock_guard lock(mutex_);
    if (draining_) registry_.Drain();
  }
  health_->Update(engine::Clock::now());
  NIBBLE_RETURN_IF_ERROR(WritePortFile());
  Log(LogLevel::kInfo, "serving")
      .With("models", loaded)
      .With("failed", static_cast<int>(registry_.models().size()) - loaded);
  return absl::OkStatus();
}

absl::Status Server::WritePortFile() const {
  if (config_.port_file.empty()) return absl::OkStatus();
  // Whole or not at all: scripts poll for the file.
  const std::string temporary = config_.port_file + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    for (const std::string& name : addresses()) file << name << '\n';
    if (http_ != nullptr) file << metrics_address() << '\n';
    if (!file.flush()) {
      return absl::FailedPreconditionError(
          absl::StrCat("--port-file: cannot write ", temporary));
    }
  }
  if (std::rename(temporary.c_str(), config_.port_file.c_str()) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--port-file: cannot write ", config_.port_file));
  }
  return absl::OkStatus();
}

void Server::Drain() {
  {
    const std::lock_guard lock(mutex_);
    if (draining_) return;
    draining_ = true;
    drain_deadline_ = engine::Clock::now() + config_.drain_timeout;
  }
  Log(LogLevel::kInfo, "draining").With("calls", calls_.size());
  if (health_ != nullptr) health_->Drain();
  registry_.Drain();
  changed_.notify_all();
}

void Server::CancelAll() {
  {
    const std::lock_guard lock(mutex_);
    drain_deadline_ = std::min(drain_deadline_, engine::Clock::now());
  }
  registry_.CancelAll();
}

void Server::WaitDrained() {
  std::unique_lock lock(mutex_);
  if (!monitor_.joinable()) return;
  changed_.wait(lock, [this] { return drained_; });
}

void Server::Monitor() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    Tick(engine::Clock::now());
    lock.lock();
    changed_.wait_for(lock, kTick);
  }
}

void Server::Tick(engine::Clock::time_point now) {
  health_->Update(now);
  calls_.CheckStalls(now);
  TickDrain(now);
}

void Server::TickDrain(engine::Clock::time_point now) {
  // Drain refuses new requests, so the count only falls.
  const size_t calls = calls_.size();
  bool cancel = false;
  {
    const std::lock_guard lock(mutex_);
    if (!draining_ || drained_) return;
    // What was cancelled and stays is a client that does not read: Shutdown
    // resets it.
    drained_ = calls == 0 || now >= drain_deadline_ + kCancelGrace;
    cancel = !drained_ && !timed_out_ && now >= drain_deadline_;
    timed_out_ |= cancel;
  }
  if (cancel) {
    Log(LogLevel::kWarning, "cancelling what still runs").With("calls", calls);
    registry_.CancelAll();
  }
  changed_.notify_all();
}

std::string Server::metrics_address() const {
  return http_ == nullptr ? "" : http_->names().front();
}

std::string Server::RenderMetrics() const {
  ServerGauges gauges;
  for (const auto& model : registry_.models()) {
    ModelGauges& entry = gauges.models.emplace_back();
    entry.name = model->name();
    if (const engine::Engine* engine = model->engine()) {
      entry.info = &engine->info();
      entry.snapshot = engine->snapshot();
      entry.serving = model->serving() && !entry.snapshot.draining;
    }
  }
  const ListenerCounts counts = listener_->counts();
  gauges.connections_accepted = counts.accepted;
  gauges.connections_refused = counts.refused;
  gauges.draining = health_->draining();
  return metrics_.Render(gauges);
}

std::optional<HttpResponse> Server::AnswerHttp(std::string_view path) const {
  HttpResponse response;
  if (path == "/metrics") {
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = RenderMetrics();
  } else if (path == "/healthz") {
    const bool serving = health_->serving();
    response.status = serving ? 200 : 503;
    response.body = serving ? "serving\n" : "not serving\n";
  } else if (path == "/livez") {
    response.body = "alive\n";
  } else {
    return std::nullopt;
  }
  return response;
}

}  // namespace nibble::server
