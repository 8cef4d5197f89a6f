// What a refused or failed request's status carries beside code and message,
// so that a server can fill google.rpc details without reading messages.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/observer.h"
#include "engine/request.h"

namespace nibble::engine {

// INVALID_ARGUMENT "FIELD: PROBLEM"; `field` as the proto spells it, e.g.
// "sampling.top_p" or "stopping.stop[1]". Counts as Rejection::kInvalid.
absl::Status FieldError(std::string_view field, std::string_view problem);

// A status that remembers which rejection it is.
absl::Status RejectionError(Rejection rejection, absl::StatusCode code,
                            std::string_view message);

// The same, with a hint when it may be worth trying again.
absl::Status RetryError(Rejection rejection, std::string_view message,
                        Clock::duration retry_after);

// `status` with a number that its message speaks of, e.g. ("n_ctx", 8192).
absl::Status WithNumber(absl::Status status, std::string_view name,
                        int64_t number);

// `status` with another rejection reason.
absl::Status WithRejection(absl::Status status, Rejection rejection);

// The field a status is about, or "".
std::string ErrorField(const absl::Status& status);
// The numbers given to WithNumber, by name.
std::map<std::string, int64_t> ErrorNumbers(const absl::Status& status);
// Why a request was rejected; kInvalid when the status does not say.
Rejection ErrorRejection(const absl::Status& status);
// For google.rpc.RetryInfo; set on RESOURCE_EXHAUSTED and UNAVAILABLE.
std::optional<Clock::duration> ErrorRetryAfter(const absl::Status& status);

}  // namespace nibble::engine
