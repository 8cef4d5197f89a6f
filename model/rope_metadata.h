// The rotary embedding in a GGUF file's metadata.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "model/rope_scaling.h"

namespace nibble::model {

// Far above any decoder known; positions stay exact in a float's products.
inline constexpr int64_t kMaxContextTokens = 1 << 26;

// What the keys "<architecture>.rope.*" and the tensor "rope_freqs.weight"
// say. `head_dim` and `context_tokens` are the defaults of the rotary
// dimensions and of YaRN's original context.
absl::StatusOr<RopeSpec> ReadRopeSpec(const GgufFile& file,
                                      std::string_view architecture,
                                      int32_t head_dim, int32_t context_tokens);

}  // namespace nibble::model
