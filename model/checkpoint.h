// A model file, read and checked, before anything is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "kernels/weight_view.h"
#include "model/mapped_file.h"
#include "model/model_config.h"
#include "model/tokenizer_data.h"

namespace nibble::model {

// Config, vocabulary and tensors of one model. Owned by the loaded model
// (weights are borrowed from its mapping); immutable, thread-safe. Tensors go
// by their GGUF names: "token_embd.weight", "blk.0.attn_q.weight", ...
// A vector of length k is a WeightView with n = 1.
class Checkpoint final {
 public:
  // Reads a GGUF file. Every number in it is checked before use; the error
  // names the file, the tensor or key, and expected against actual.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& path);

  const ModelConfig& config() const { return config_; }
  const TokenizerData& tokenizer() const { return tokenizer_; }
  const std::string& path() const { return file_->path(); }

  // Takes what was read of the file out of this process's memory; views stay
  // valid. For loaders that have copied weights.
  void ReleasePages() const { file_->ReleasePages(); }

  // NOT_FOUND names the tensor; INVALID_ARGUMENT names expected and actual
  // shape when it is not [n, k].
  absl::StatusOr<kernels::WeightView> Tensor(std::string_view name, int64_t n,
                                             int64_t k) const;
  // The tensor of FP32, FP16 or BF16 values [k], converted.
  absl::StatusOr<std::vector<float>> Vector(std::string_view name,
                                            int64_t k) const;
  bool Has(std::string_view name) const;
  // In the order of the file.
  const std::vector<kernels::WeightView>& tensors() const { return tensors_; }

 private:
  Checkpoint() = default;

  std::unique_ptr<MappedFile> file_;
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::vector<kernels::WeightView> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
};

}  // namespace nibble::model
