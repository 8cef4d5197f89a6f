// libFuzzer target of the GGUF reader.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/support/gguf_exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An error is as good as success here; only a crash is not.
  nibble::test::ExerciseGguf(std::as_bytes(std::span(data, size)))
      .IgnoreError();
  return 0;
}
