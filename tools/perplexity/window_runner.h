// Runs a model over windows of a text, each from an empty context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/batch.h"
#include "model/checkpoint.h"
#include "model/kv_cache.h"
#include "model/model.h"

namespace nibble::tools {

// A model with room for one window. Owned by the tool; one thread. The
// checkpoint and the backend outlive it.
class WindowRunner final {
 public:
  // `context`: the longest window, tokens.
  static absl::StatusOr<std::unique_ptr<WindowRunner>> Create(
      const model::Checkpoint& checkpoint, kernels::Backend& backend,
      int32_t context);

  // Called with a position of the window and its logits [vocab].
  using Visit = absl::FunctionRef<void(int32_t, std::span<const float>)>;

  // Computes the window as prompt tokens and visits the positions
  // [first, tokens.size() - 1) in order: those whose next token is known.
  void Run(std::span<const int32_t> tokens, int32_t first, Visit visit);

 private:
  explicit WindowRunner(kernels::Backend& backend) : backend_(backend) {}
  void FillBatch(std::span<const int32_t> tokens, int32_t begin, int32_t end,
                 int32_t first);

  kernels::Backend& backend_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<model::KvCache> cache_;
  model::Batch batch_;
  std::vector<float> logits_;  // [vocab] of one row, on the host
};

}  // namespace nibble::tools
