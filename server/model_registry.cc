#include "server/model_registry.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/errors.h"
#include "engine/load.h"
#include "server/grpc_status.h"

namespace nibble::server {
namespace {

engine::LoadOptions ToLoadOptions(const ServerConfig& config) {
  engine::LoadOptions options;
  options.device = config.device;
  options.threads = config.threads;
  options.kv_pages = config.kv_pages;
  options.page_size = config.page_size;
  options.max_batch_rows = config.max_batch_rows;
  options.max_sequences = config.max_sequences;
  options.max_context = config.max_context;
  return options;
}

engine::EngineOptions ToEngineOptions(const ServerConfig& config,
                                      const std::string& name) {
  engine::EngineOptions options;
  options.name = name;
  options.max_sequences = config.max_sequences;
  options.max_queue = config.max_queue;
  options.max_queue_tokens = config.max_queue_tokens;
  options.max_context = config.max_context;
  options.max_prompt_bytes = config.max_message_bytes;
  options.default_max_new_tokens = config.default_max_new_tokens;
  options.prefix_cache = config.prefix_cache;
  return options;
}

void LogLoaded(const std::string& name, const engine::Engine& engine,
               int64_t milliseconds) {
  const engine::RunnerInfo& info = engine.info();
  Log(LogLevel::kInfo, "model loaded")
      .With("model", name)
      .With("title", info.name)
      .With("architecture", info.architecture)
      .With("format", info.file_type)
      .With("backend", info.backend)
      .With("device", info.device)
      .With("context", engine.max_context())
      .With("kv_pages", info.pages)
      .With("kv_bytes", info.kv_bytes)
      .With("weight_bytes", info.weight_bytes)
      .With("chat_template", engine.chat_template().ok())
      .With("ms", milliseconds)
      .With("plan", absl::StrJoin(info.plan, "; "));
}

}  // namespace

absl::Status ServedModel::Load(const ServerConfig& config) {
  const auto start = std::chrono::steady_clock::now();
  Log(LogLevel::kInfo, "loading model")
      .With("model", name())
      .With("path", path());
  absl::Status status = [&]() -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(auto runner,
                            engine::LoadRunner(path(), ToLoadOptions(config)));
    NIBBLE_ASSIGN_OR_RETURN(
        engine_, engine::Engine::Create(ToEngineOptions(config, name()),
                                        std::move(runner), observer_));
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    Log(LogLevel::kError, "model failed to load")
        .With("model", name())
        .With("path", path())
        .With("error", status.ToString());
    failure_ = status;
    state_.store(State::kFailed, std::memory_order_release);
    return status;
  }
  LogLoaded(name(), *engine_,
            std::chrono::duration_cast<std::chrono::milliseconds>(
                std::chrono::steady_clock::now() - start)
                .count());
  state_.store(State::kLoaded, std::memory_order_release);
  return status;
}

absl::Status ServedModel::WhyNot() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::kLoaded:
      return absl::OkStatus();
    case State::kLoading:
      return WithReason(absl::UnavailableError(absl::StrCat(
                            "model '", name(), "' is being loaded")),
                        "MODEL_LOADING");
    case State::kFailed:
      break;
  }
  return WithReason(
      absl::UnavailableError(absl::StrCat(
          "model '", name(), "' could not be loaded: ", failure_.message())),
      "MODEL_FAILED");
}

bool ServedModel::serving() const {
  return engine() != nullptr && !stalled_.load();
}

v1::ModelState ServedModel::StateToProto() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::kLoading:
      return v1::MODEL_STATE_LOADING;
    case State::kFailed:
      return v1::MODEL_STATE_FAILED;
    case State::kLoaded:
      break;
  }
  if (engine_->snapshot().draining) return v1::MODEL_STATE_DRAINING;
  if (stalled_.load()) return v1::MODEL_STATE_STALLED;
  return v1::MODEL_STATE_SERVING;
}

v1::Model ServedModel::Describe() const {
  v1::Model proto;
  proto.set_model(name());
  proto.set_state(StateToProto());
  if (failed()) proto.set_failure(SanitizeUtf8(failure_.ToString()));
  if (engine() == nullptr) return proto;
  const engine::Engine& engine = *engine_;
  const engine::RunnerInfo& info = engine.info();
  proto.set_title(SanitizeUtf8(info.name));
  proto.set_architecture(SanitizeUtf8(info.architecture));
  proto.set_format(SanitizeUtf8(info.file_type));
  proto.set_backend(SanitizeUtf8(info.backend));
  proto.set_device(SanitizeUtf8(info.device));
  proto.set_parameters(info.parameters);
  proto.set_weight_bytes(info.weight_bytes);
  proto.set_vocab_size(info.vocab_size);
  proto.set_context_length(engine.max_context());
  proto.set_trained_context_length(info.context_length);
  proto.mutable_kv_cache()->set_pages(info.pages);
  proto.mutable_kv_cache()->set_page_size(info.page_size);
  proto.mutable_kv_cache()->set_bytes(info.kv_bytes);
  const auto& chat = engine.chat_template();
  proto.mutable_chat_template()->set_available(chat.ok());
  if (chat.ok()) {
    proto.mutable_chat_template()->set_name(std::string(chat->format_name()));
  } else {
    proto.mutable_chat_template()->set_problem(
        SanitizeUtf8(std::string(chat.status().message())));
  }
  for (const std::string& line : info.plan) {
    proto.add_plan(SanitizeUtf8(line));
  }
  const auto bos = engine.tokenizer().bos();
  if (bos.has_value()) proto.set_bos_token_id(*bos);
  const auto eos = engine.tokenizer().eos();
  if (eos.has_value()) proto.set_eos_token_id(*eos);
  const engine::EngineSnapshot snapshot = engine.snapshot();
  proto.mutable_load()->set_requests_running(snapshot.requests_running);
  proto.mutable_load()->set_requests_waiting(snapshot.requests_waiting);
  const auto& pages = snapshot.scheduler;
  if (pages.pages_total > 0) {
    proto.mutable_load()->set_kv_usage(static_cast<float>(pages.pages_used) /
                                       static_cast<float>(pages.pages_total));
  }
  proto.set_numerics(engine.options().stable_numerics ? "stable" : "fast");
  return proto;
}

ModelRegistry::ModelRegistry(const ServerConfig& config, Metrics& metrics) {
  for (const ModelArg& arg : config.models) {
    models_.push_back(
        std::make_unique<ServedModel>(arg, metrics.AddModel(arg.name)));
  }
}

absl::StatusOr<ServedModel*> ModelRegistry::Find(std::string_view name) const {
  constexpr size_t kMaxShown = 128;  // bytes of a name we do not know
  for (const auto& model : models_) {
    if (model->name() == name) return model.get();
  }
  if (name.empty() && models_.size() == 1) return models_.front().get();
  const std::string names = absl::StrJoin(
      models_, ", ",
      [](std::string* out, const auto& model) { out->append(model->name()); });
  if (name.empty()) {
    return engine::FieldError("model",
                              absl::StrCat("not set; served are ", names));
  }
  return absl::NotFoundError(
      absl::StrCat("no model is called '",
                   std::string(SanitizeUtf8(name.substr(0, kMaxShown))),
                   "'; served are ", names));
}

void ModelRegistry::Drain() {
  for (const auto& model : models_) {
    if (model->engine() != nullptr) model->engine()->Drain();
  }
}

void ModelRegistry::CancelAll() {
  for (const auto& model : models_) {
    if (model->engine() != nullptr) model->engine()->CancelAll();
  }
}

}  // namespace nibble::server
