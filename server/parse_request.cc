#include "server/parse_request.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/utf8.h"
#include "engine/errors.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpc/support/log.h"
#include "grpcpp/impl/codegen/proto_utils.h"

namespace nibble::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// Walks a message on the wire as far as it is well formed and remembers the
// first thing that is not. Lives during one failed parse.
class WireWalker final {
 public:
  explicit WireWalker(std::string_view bytes)
      : in_(reinterpret_cast<const uint8_t*>(bytes.data()),
            static_cast<int>(bytes.size())) {}

  // Whether the message at the stream is well formed; our messages nest a few
  // levels, never recursively, so the descriptor bounds the depth.
  bool Walk(const Descriptor& type, const std::string& path) {
    std::map<int, int> seen;  // field number -> elements so far
    while (const uint32_t tag = in_.ReadTag()) {
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      const FieldDescriptor* field = type.FindFieldByNumber(number);
      const int index = seen[number]++;
      const std::string name =
          field == nullptr
              ? absl::StrCat(path, path.empty() ? "" : ".", "field ", number)
              : Name(*field, path, index);
      const bool delimited = WireFormatLite::GetTagWireType(tag) ==
                             WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
      if (field != nullptr && delimited &&
          field->type() == FieldDescriptor::TYPE_STRING) {
        if (!WalkString(name)) return false;
      } else if (field != nullptr && delimited &&
                 field->type() == FieldDescriptor::TYPE_MESSAGE) {
        if (!WalkMessage(*field->message_type(), name)) return false;
      } else if (!WireFormatLite::SkipField(&in_, tag)) {
        return Fail(name, "its bytes end early or are no field");
      }
    }
    if (!in_.ConsumedEntireMessage()) {
      return Fail(path.empty() ? "request" : path, "not a Protobuf message");
    }
    return true;
  }

  const absl::Status& problem() const { return problem_; }

 private:
  static std::string Name(const FieldDescriptor& field, const std::string& path,
                          int index) {
    std::string name =
        absl::StrCat(path, path.empty() ? "" : ".", field.name());
    if (field.is_repeated()) absl::StrAppend(&name, "[", index, "]");
    return name;
  }

  bool Fail(const std::string& name, std::string_view what) {
    problem_ = engine::FieldError(name, what);
    return false;
  }

  bool WalkString(const std::string& name) {
    uint32_t size = 0;
    std::string text;
    if (!in_.ReadVarint32(&size) ||
        !in_.ReadString(&text, static_cast<int>(size))) {
      return Fail(name, "its bytes end early");
    }
    return IsValidUtf8(text) || Fail(name, "not valid UTF-8");
  }

  bool WalkMessage(const Descriptor& type, const std::string& name) {
    uint32_t size = 0;
    if (!in_.ReadVarint32(&size) ||
        static_cast<int64_t>(size) > in_.BytesUntilLimit()) {
      return Fail(name, "its bytes end early");
    }
    const auto limit = in_.PushLimit(static_cast<int>(size));
    if (!Walk(type, name)) return false;
    in_.PopLimit(limit);
    return true;
  }

  google::protobuf::io::CodedInputStream in_;
  absl::Status problem_;
};

std::string ToString(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  std::string all;
  if (!bytes.Dump(&slices).ok()) return all;
  for (const grpc::Slice& slice : slices) {
    all.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return all;
}

void LogProtobuf(google::protobuf::LogLevel level, const char* /*file*/,
                 int /*line*/, const std::string& message) {
  // A fatal one aborts after this; the others are a client's bad bytes, which
  // the client hears about.
  Log(level == google::protobuf::LOGLEVEL_FATAL ? LogLevel::kError
                                                : LogLevel::kDebug,
      "protobuf")
      .With("text", message);
}

void LogGrpc(gpr_log_func_args* args) {
  Log(args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning
                                               : LogLevel::kDebug,
      "grpc")
      .With("text", args->message);
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes,
                          google::protobuf::Message& message) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) {
    return absl::OkStatus();
  }
  const std::string flat = ToString(bytes);
  WireWalker walker(flat);
  const Descriptor& type = *message.GetDescriptor();
  if (walker.Walk(type, "")) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request is not a ", type.full_name(), " message"));
  }
  return walker.problem();
}

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  const grpc::Status status = grpc::GenericSerialize<grpc::ProtoBufferWriter,
                                                     google::protobuf::Message>(
      message, &bytes, &owned);
  // Fails only for messages over 2 GiB; the empty one then ends the call.
  if (!status.ok()) Log(LogLevel::kError, "response too large");
  return bytes;
}

void InitLibraryLogs() {
  google::protobuf::SetLogHandler(LogProtobuf);
  gpr_set_log_function(LogGrpc);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

}  // namespace nibble::server
