#include "server/generation_service.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/generate_reactor.h"
#include "server/grpc_status.h"
#include "server/parse_request.h"
#include "server/tokens.h"

namespace nibble::server {
namespace {

// A method that answers at once: parses, calls `answer(request, response)`,
// serializes. What a library throws becomes INTERNAL.
template <typename Request, typename Response, typename Answer>
grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* call,
                                    const grpc::ByteBuffer& bytes,
                                    grpc::ByteBuffer* out, Answer answer) {
  absl::Status status;
  try {
    Request request;
    Response response;
    status = ParseRequest(bytes, request);
    if (status.ok()) status = answer(std::move(request), response);
    if (status.ok()) *out = SerializeResponse(response);
  } catch (const std::exception& error) {
    status = absl::InternalError(
        absl::StrCat("the request could not be handled: ", error.what()));
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::StatusOr<engine::Engine*> FindEngine(const ModelRegistry& registry,
                                           const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(ServedModel * model, registry.Find(name));
  if (model->engine() == nullptr) return model->WhyNot();
  return model->engine();
}

// Starts a reactor; memory that ran out before it existed ends the call.
template <typename Start>
auto StartStream(Start start) -> grpc::ServerWriteReactor<grpc::ByteBuffer>* {
  try {
    return start();
  } catch (const std::exception&) {
    class Failed final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
     public:
      Failed() { Finish(ToGrpcStatus(absl::InternalError("out of memory"))); }
      void OnDone() override { delete this; }
    };
    return new Failed;
  }
}

absl::Status NotBuilt(std::string_view method) {
  return absl::UnimplementedError(
      absl::StrCat("nibble.v1.Models.", std::string(method),
                   " is not available: models are chosen with --model when "
                   "the server starts"));
}

}  // namespace

grpc::ServerUnaryReactor* GenerationService::Generate(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  try {
    return UnaryReactor::Start(context_, call, *request, response);
  } catch (const std::exception&) {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(ToGrpcStatus(absl::InternalError("out of memory")));
    return reactor;
  }
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) {
  return StartStream([&] {
    return StreamReactor::Start(context_, call, *request,
                                StreamReactor::Kind::kStream);
  });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::GenerateBatch(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request) {
  return StartStream([&] {
    return StreamReactor::Start(context_, call, *request,
                                StreamReactor::Kind::kBatch);
  });
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::TokenizeRequest, v1::TokenizeResponse>(
      call, *request, response,
      [this](v1::TokenizeRequest proto,
             v1::TokenizeResponse& out) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const engine::Engine* engine,
                                FindEngine(*context_.registry, proto.model()));
        return server::Tokenize(*engine, std::move(proto), out);
      });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      call, *request, response,
      [this](const v1::DetokenizeRequest& proto,
             v1::DetokenizeResponse& out) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const engine::Engine* engine,
                                FindEngine(*context_.registry, proto.model()));
        return server::Detokenize(*engine, proto, out);
      });
}

grpc::ServerUnaryReactor* ModelsService::ListModels(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::ListModelsRequest, v1::ListModelsResponse>(
      call, *request, response,
      [this](const v1::ListModelsRequest&, v1::ListModelsResponse& out) {
        for (const auto& model : registry_.models()) {
          *out.add_models() = model->Describe();
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ModelsService::GetModel(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::GetModelRequest, v1::Model>(
      call, *request, response,
      [this](const v1::GetModelRequest& proto, v1::Model& out) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const ServedModel* model,
                                registry_.Find(proto.model()));
        out = model->Describe();
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ModelsService::LoadModel(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::LoadModelRequest, v1::Model>(
      call, *request, response, [](const v1::LoadModelRequest&, v1::Model&) {
        return NotBuilt("LoadModel");
      });
}

grpc::ServerUnaryReactor* ModelsService::UnloadModel(
    grpc::CallbackServerContext* call, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::UnloadModelRequest, v1::UnloadModelResponse>(
      call, *request, response,
      [](const v1::UnloadModelRequest&, v1::UnloadModelResponse&) {
        return NotBuilt("UnloadModel");
      });
}

}  // namespace nibble::server
