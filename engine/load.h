// From a `--model` value to a runner.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"
#include "kernels/device.h"

namespace nibble::engine {

using kernels::Device;

struct LoadOptions {
  Device device = Device::kAuto;
  int32_t threads = 0;     // CPU threads; 0: the cores this process may use
  int32_t kv_pages = 0;    // 0: enough for max_sequences contexts, within
                           // a quarter of the memory
  int32_t page_size = 16;  // tokens
  int32_t max_batch_rows = 512;
  int32_t max_sequences = 64;
  int32_t max_context = 0;  // 0: the model's own
};

// Loads "PATH" (a GGUF file) or "scripted:PATH" (docs/scripted-model.md).
absl::StatusOr<std::unique_ptr<ModelRunner>> LoadRunner(
    const std::string& path, const LoadOptions& options);

}  // namespace nibble::engine
