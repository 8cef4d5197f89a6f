// The decoder: a checkpoint's weights prepared for a backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/batch.h"
#include "model/checkpoint.h"
#include "model/kv_cache.h"

namespace nibble::model {

struct ModelOptions {
  int32_t max_batch_rows = 512;  // rows of one step
  int32_t max_logit_rows = 128;  // rows of one step whose logits are wanted
};

// A Llama or Qwen2 decoder (Touvron et al., arXiv:2302.13971; Yang et al.,
// arXiv:2407.10671). Owned by the engine, engine thread only after load. The
// checkpoint and the backend must outlive it.
class Model final {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Load(
      const Checkpoint& checkpoint, kernels::Backend& backend,
      const ModelOptions& options);

  // Runs the step and writes its keys and values. Returns the FP32 logits
  // [batch.logit_rows.size(), vocab] in the backend's memory, valid until the
  // next call.
  kernels::TensorView Forward(const Batch& batch, KvCache& cache);

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  // Bytes of prepared weights.
  int64_t packed_bytes() const;
  // One line a distinct linear shape: name, shape, formats, plan.
  std::vector<std::string> PlanLines() const;

 private:
  struct Linear;
  struct Layer;
  struct Scratch;
  class Loader;  // model_load.cc
  Model(const ModelConfig& config, kernels::Backend& backend,
        const ModelOptions& options);

  void CheckBatch(const Batch& batch, const KvCache& cache) const;
  void RunAttention(const Layer& layer, int32_t rows, int32_t decode_rows,
                    const kernels::KvLayerView& kv);
  void RunFeedForward(const Layer& layer, int32_t rows, int32_t decode_rows);
  kernels::TensorView RunOutput(const Batch& batch);
  template <typename Visit>
  void ForEachLinear(Visit visit) const;

  ModelConfig config_;
  ModelOptions options_;
  kernels::Backend& backend_;
  std::unique_ptr<Linear> embedding_;
  // Null when the embedding is tied: embedding_ then serves both.
  std::unique_ptr<Linear> output_;
  std::unique_ptr<kernels::Buffer> output_norm_;  // [hidden]
  std::vector<Layer> layers_;
  std::unique_ptr<Scratch> scratch_;

 public:
  ~Model();
};

}  // namespace nibble::model
