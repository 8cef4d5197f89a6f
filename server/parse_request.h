// Messages from the bytes of a call, and back. gRPC answers UNIMPLEMENTED when
// a typed method's request does not parse; ours are raw methods, so that the
// client hears which field is wrong.
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace nibble::server {

// INVALID_ARGUMENT names the field that is not UTF-8 or whose bytes are not a
// field of its type ("chat.messages[0].content: not valid UTF-8").
absl::Status ParseRequest(const grpc::ByteBuffer& bytes,
                          google::protobuf::Message& message);

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message);

// Sends Protobuf's and gRPC's own complaints to our log. Called once, by main.
void InitLibraryLogs();

}  // namespace nibble::server
