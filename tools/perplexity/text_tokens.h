// The tokens of a text file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer.h"

namespace nibble::tools {

// Without BOS. Errors name the file.
absl::StatusOr<std::vector<int32_t>> TokenizeFile(
    const std::string& path, const model::Tokenizer& tokenizer);

}  // namespace nibble::tools
