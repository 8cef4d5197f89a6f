// The services of nibble.proto.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "nibble/v1/nibble.grpc.pb.h"
#include "server/generate_call.h"

namespace nibble::server {

using v1::Generation;
using v1::Models;

// Every method is raw: we parse the bytes, so that a wrong field gets its
// name in the answer (parse_request.h).
using RawGeneration = Generation::WithRawCallbackMethod_Generate<
    Generation::WithRawCallbackMethod_GenerateStream<
        Generation::WithRawCallbackMethod_GenerateBatch<
            Generation::WithRawCallbackMethod_Tokenize<
                Generation::WithRawCallbackMethod_Detokenize<
                    Generation::Service>>>>>;
using RawModels = Models::WithRawCallbackMethod_ListModels<
    Models::WithRawCallbackMethod_GetModel<
        Models::WithRawCallbackMethod_LoadModel<
            Models::WithRawCallbackMethod_UnloadModel<Models::Service>>>>;

// Owned by the server; methods run on gRPC threads.
class GenerationService final : public RawGeneration {
 public:
  // `context` outlives the service.
  explicit GenerationService(const CallContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* call,
      const grpc::ByteBuffer* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateBatch(
      grpc::CallbackServerContext* call,
      const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  const CallContext& context_;
};

// Owned by the server; methods run on gRPC threads.
class ModelsService final : public RawModels {
 public:
  explicit ModelsService(const ModelRegistry& registry) : registry_(registry) {}

  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* call,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* call,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* call,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;

 private:
  const ModelRegistry& registry_;
};

}  // namespace nibble::server
