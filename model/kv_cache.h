// The pages of keys and values of one model.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "model/model_config.h"

namespace nibble::model {

// Pages [layer][page][page_size, kv_heads, head_dim] for K and V in a
// backend's memory. Knows bytes, not owners: the scheduler's PagePool hands
// out the ids. Owned by the engine, engine thread only.
class KvCache final {
 public:
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(
      const ModelConfig& config, kernels::Backend& backend, int32_t pages,
      int32_t page_size);

  // Bytes one page takes over all layers, K and V.
  static int64_t PageBytes(const ModelConfig& config, kernels::DType dtype,
                           int32_t page_size);

  kernels::KvLayerView Layer(int32_t layer) const;
  int32_t pages() const { return pages_; }
  int32_t page_size() const { return page_size_; }
  int64_t bytes() const;

 private:
  KvCache() = default;

  // [layers][2: keys, values][pages], in one piece: few small buffers would
  // each fall short of a huge page.
  std::unique_ptr<kernels::Buffer> buffer_;
  int64_t side_bytes_ = 0;  // of the keys, or the values, of a layer
  int32_t layers_ = 0;
  kernels::DType dtype_ = kernels::DType::kF16;
  int32_t pages_ = 0;
  int32_t page_size_ = 0;
  int32_t kv_heads_ = 0;
  int32_t head_dim_ = 0;
};

}  // namespace nibble::model
