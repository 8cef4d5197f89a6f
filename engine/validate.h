// What a request must fulfil before anything is computed for it.
#pragma once

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace nibble::engine {

// Checks every field but the prompt's length, in the order of the proto. The
// engine is the authority on ranges; a server may check earlier. Errors are
// FieldErrors: "sampling.top_p: 1.5 is outside (0, 1]". Thread-safe.
absl::Status ValidateRequest(const Request& request,
                             const EngineOptions& options, int32_t vocab_size);

}  // namespace nibble::engine
