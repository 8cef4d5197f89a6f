#include "model/kv_cache.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"

namespace nibble::model {
namespace {

// Bytes of the keys (or the values) of one page of one layer.
int64_t LayerPageBytes(const ModelConfig& config, kernels::DType dtype,
                       int32_t page_size) {
  return int64_t{page_size} * config.kv_heads * config.head_dim *
         kernels::ElementBytes(dtype);
}

absl::Status TooLarge(int32_t pages, int32_t page_size,
                      std::string_view reason) {
  return absl::ResourceExhaustedError(
      absl::StrCat("KV cache of ", pages, " pages of ", page_size,
                   " tokens cannot be allocated: ", std::string(reason),
                   "; ask for fewer pages (--kv-pages)"));
}

}  // namespace

int64_t KvCache::PageBytes(const ModelConfig& config, kernels::DType dtype,
                           int32_t page_size) {
  return 2 * int64_t{config.layers} * LayerPageBytes(config, dtype, page_size);
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(
    const ModelConfig& config, kernels::Backend& backend, int32_t pages,
    int32_t page_size) {
  if (pages < 1 || page_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV cache: pages = ", pages, " and page_size = ", page_size,
        ", both must be at least 1"));
  }
  const kernels::DType dtype = backend.kv_dtype();
  const std::optional<int64_t> layer_bytes =
      CheckedMul<int64_t>(pages, LayerPageBytes(config, dtype, page_size));
  const std::optional<int64_t> bytes =
      CheckedMul<int64_t>(layer_bytes.value_or(-1), 2 * int64_t{config.layers});
  if (!layer_bytes || !bytes) {
    return TooLarge(pages, page_size, "its size overflows 64 bits");
  }
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->side_bytes_ = *layer_bytes;
  cache->dtype_ = dtype;
  cache->layers_ = config.layers;
  cache->pages_ = pages;
  cache->page_size_ = page_size;
  cache->kv_heads_ = config.kv_heads;
  cache->head_dim_ = config.head_dim;
  auto buffer = backend.Allocate(*bytes);
  if (absl::IsResourceExhausted(buffer.status())) {
    return TooLarge(pages, page_size,
                    std::string_view(buffer.status().message().data(),
                                     buffer.status().message().size()));
  }
  NIBBLE_RETURN_IF_ERROR(buffer.status());
  cache->buffer_ = *std::move(buffer);
  return cache;
}

kernels::KvLayerView KvCache::Layer(int32_t layer) const {
  NIBBLE_DCHECK(layer >= 0 && layer < layers_);
  auto* k = static_cast<std::byte*>(buffer_->data()) + 2 * layer * side_bytes_;
  return {.k = k,
          .v = k + side_bytes_,
          .dtype = dtype_,
          .page_size = page_size_,
          .kv_heads = kv_heads_,
          .head_dim = head_dim_};
}

int64_t KvCache::bytes() const { return buffer_->size_bytes(); }

}  // namespace nibble::model
