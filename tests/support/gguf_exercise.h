// Reads everything a GGUF file claims to hold, for the fuzzer and the tests
// that feed it broken files.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace nibble::test {

// Parses the bytes, and if that works reads every key, the ends of every
// tensor, the configuration and the vocabulary. Never aborts, whatever they
// are. Returns the first error.
absl::Status ExerciseGguf(std::span<const std::byte> bytes);

// Small files, sound and broken, to start mutating from.
std::vector<std::string> GgufSeeds();

}  // namespace nibble::test
