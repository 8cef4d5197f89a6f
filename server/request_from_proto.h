// What a client asked, as engine values.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "nibble/v1/nibble.pb.h"

namespace nibble::server {

// The request's own id, or a new one if it has none. A client's id may still
// be malformed: Engine::Submit says so.
std::string RequestIdOf(const v1::GenerateRequest& proto);

engine::ChatPrompt ChatFromProto(v1::Chat proto, bool parse_special);

// Fills in the defaults of the proto and refuses what an engine::Request
// cannot express; every other range is Engine::Submit's to check. `id` and the
// times are the caller's to set.
absl::StatusOr<engine::Request> RequestFromProto(v1::GenerateRequest proto);

}  // namespace nibble::server
