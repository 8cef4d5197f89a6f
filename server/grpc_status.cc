#include "server/grpc_status.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "engine/errors.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace nibble::server {
namespace {

constexpr std::string_view kDomain = "nibble";
constexpr std::string_view kReasonPayload = "nibble/reason";
constexpr size_t kMaxDescriptionBytes = 300;

std::string_view ReasonOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_REQUEST";
    case absl::StatusCode::kNotFound:
      return "MODEL_NOT_FOUND";
    case absl::StatusCode::kAlreadyExists:
      return "REQUEST_ID_LIVE";
    case absl::StatusCode::kFailedPrecondition:
      return "CANNOT_SERVE";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_PASSED";
    case absl::StatusCode::kCancelled:
      return "CANCELLED";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kInternal:
      return "MODEL_ERROR";
    case absl::StatusCode::kUnimplemented:
      return "NOT_BUILT";
    default:
      return "UNEXPECTED";
  }
}

// What `byte` takes in a grpc-message header.
size_t EncodedBytes(char byte) {
  return byte < 0x20 || byte > 0x7e || byte == '%' ? 3 : 1;
}

// `text` as UTF-8, cut between characters so that it takes `limit` bytes.
std::string Cut(std::string_view text, size_t limit) {
  constexpr std::string_view kEllipsis = "...";
  std::string valid = SanitizeUtf8(text.substr(0, 4 * limit));
  size_t encoded = 0;
  size_t fits = 0;  // bytes kept if an ellipsis must follow
  size_t at = 0;
  while (at < valid.size()) {
    const size_t length = NextUtf8(std::string_view(valid).substr(at)).length;
    for (size_t i = 0; i < length; ++i) encoded += EncodedBytes(valid[at + i]);
    if (encoded > limit) {
      return valid.substr(0, fits) + std::string(kEllipsis);
    }
    at += length;
    if (encoded + kEllipsis.size() <= limit) fits = at;
  }
  return valid;
}

// What ErrorInfo says: the reason given, else the rejection's, else the code's.
std::string ErrorReason(const absl::Status& status) {
  const auto given =
      status.GetPayload({kReasonPayload.data(), kReasonPayload.size()});
  if (given.has_value()) return std::string(*given);
  const engine::Rejection rejection = engine::ErrorRejection(status);
  if (rejection == engine::Rejection::kInvalid) {
    return std::string(ReasonOf(status.code()));
  }
  const std::string_view name = engine::Name(rejection);
  return absl::AsciiStrToUpper(absl::string_view(name.data(), name.size()));
}

void AddRetry(const absl::Status& status, google::rpc::Status& details) {
  const auto after = engine::ErrorRetryAfter(status);
  if (!after.has_value()) return;
  constexpr int64_t kNano = 1'000'000'000;
  const int64_t nanos =
      std::chrono::duration_cast<std::chrono::nanoseconds>(*after).count();
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(nanos / kNano);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanos % kNano));
  details.add_details()->PackFrom(retry);
}

}  // namespace

absl::Status WithReason(absl::Status status, std::string_view reason) {
  status.SetPayload({kReasonPayload.data(), kReasonPayload.size()},
                    absl::Cord({reason.data(), reason.size()}));
  return status;
}

grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::string_view request_id) {
  if (status.ok()) return grpc::Status::OK;
  const std::string_view message(status.message().data(),
                                 status.message().size());
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(Cut(message, kMaxStatusMessageBytes));

  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason(status));
  info.set_domain(std::string(kDomain));
  if (!request_id.empty()) {
    (*info.mutable_metadata())["request_id"] = SanitizeUtf8(request_id);
  }
  for (const auto& [name, number] : engine::ErrorNumbers(status)) {
    (*info.mutable_metadata())[name] = absl::StrCat(number);
  }
  details.add_details()->PackFrom(info);

  const std::string field = engine::ErrorField(status);
  if (!field.empty()) {
    google::rpc::BadRequest bad;
    auto* violation = bad.add_field_violations();
    violation->set_field(Cut(field, kMaxDescriptionBytes));
    violation->set_description(Cut(message, kMaxDescriptionBytes));
    details.add_details()->PackFrom(bad);
  }
  AddRetry(status, details);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      details.message(), details.SerializeAsString());
}

}  // namespace nibble::server
