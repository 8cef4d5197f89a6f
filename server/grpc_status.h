// absl::Status to what a gRPC client sees.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace nibble::server {

// Bytes a message takes in a header at most, percent-encoding included: the
// details repeat it, and clients refuse headers of more than 8 KiB.
inline constexpr size_t kMaxStatusMessageBytes = 2000;

// A status whose details will carry this google.rpc.ErrorInfo reason instead
// of the one its code implies.
absl::Status WithReason(absl::Status status, std::string_view reason);

// Code, message (cut at a character, kMaxStatusMessageBytes) and google.rpc
// details: ErrorInfo (domain "nibble"; its metadata holds the request id and
// the numbers a message speaks of, n_prompt and n_ctx for one), BadRequest when
// the status knows its field, RetryInfo when it knows a time. Text that is not
// UTF-8 is repaired.
grpc::Status ToGrpcStatus(const absl::Status& status,
                          std::string_view request_id = "");

}  // namespace nibble::server
