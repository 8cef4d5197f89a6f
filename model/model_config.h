// What a checkpoint says about the shape of its model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace nibble::model {

class GgufFile;

enum class Architecture : uint8_t { kLlama, kQwen2 };

// The hyperparameters of a decoder. Plain values, checked by the reader that
// made them: every count is positive and consistent with the others.
struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;       // general.name, may be empty
  std::string file_type;  // the prevailing format, e.g. "q4_1"
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // trained, tokens
  int32_t hidden_size = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t feed_forward_size = 0;
  float rms_epsilon = 1e-5f;
  kernels::RopeParams rope;
  bool tied_embeddings = false;
  uint64_t parameters = 0;    // number of weights
  uint64_t weight_bytes = 0;  // in the file
};

// "llama", "qwen2": as general.architecture spells it.
std::string_view Name(Architecture architecture);

// The hyperparameters a file states, with the defaults its architecture has
// for what it does not. INVALID_ARGUMENT (NOT_FOUND for a missing key or
// tensor) names the key: out of its range, inconsistent with another, or
// asking for something that is not implemented and would change the results.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace nibble::model
