// The vocabulary in a GGUF file's metadata.
#pragma once

#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "model/tokenizer_data.h"

namespace nibble::model {

// What the keys "tokenizer.*" say, with the defaults of their tokenizer model.
// A file without a vocabulary gives one without tokens: it serves token ids.
// INVALID_ARGUMENT names the key that is wrong.
absl::StatusOr<TokenizerData> ReadTokenizerData(const GgufFile& file);

}  // namespace nibble::model
