// Tokenize and Detokenize.
#pragma once

#include "absl/status/status.h"
#include "engine/engine.h"
#include "nibble/v1/nibble.pb.h"

namespace nibble::server {

absl::Status Tokenize(const engine::Engine& engine, v1::TokenizeRequest proto,
                      v1::TokenizeResponse& out);

absl::Status Detokenize(const engine::Engine& engine,
                        const v1::DetokenizeRequest& proto,
                        v1::DetokenizeResponse& out);

}  // namespace nibble::server
