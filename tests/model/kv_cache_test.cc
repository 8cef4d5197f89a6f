#include "model/kv_cache.h"

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_backend.h"

namespace nibble::model {
namespace {

using ::testing::HasSubstr;

ModelConfig Config() {
  ModelConfig config;
  config.layers = 3;
  config.kv_heads = 2;
  config.head_dim = 5;
  return config;
}

TEST(KvCacheTest, PageBytesCountKeysAndValuesOfAllLayers) {
  EXPECT_EQ(KvCache::PageBytes(Config(), kernels::DType::kF16, 16),
            3 * 2 * (16 * 2 * 5) * 2);
  EXPECT_EQ(KvCache::PageBytes(Config(), kernels::DType::kF32, 1),
            3 * 2 * (1 * 2 * 5) * 4);
}

TEST(KvCacheTest, LayersHaveMemoryOfTheirOwn) {
  const auto backend = kernels::MakeReferenceBackend();
  const auto cache = KvCache::Create(Config(), *backend, 7, 4);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ((*cache)->pages(), 7);
  EXPECT_EQ((*cache)->page_size(), 4);
  const int64_t page_bytes =
      KvCache::PageBytes(Config(), backend->kv_dtype(), 4);
  EXPECT_EQ((*cache)->bytes(), 7 * page_bytes);

  // Fill each side of each layer with a byte of its own: none is overwritten.
  const int64_t side_bytes = 7 * page_bytes / (3 * 2);
  for (int layer = 0; layer < 3; ++layer) {
    const kernels::KvLayerView view = (*cache)->Layer(layer);
    EXPECT_EQ(view.dtype, backend->kv_dtype());
    EXPECT_EQ(view.page_size, 4);
    EXPECT_EQ(view.kv_heads, 2);
    EXPECT_EQ(view.head_dim, 5);
    std::memset(view.k, 1 + 2 * layer, side_bytes);
    std::memset(view.v, 2 + 2 * layer, side_bytes);
  }
  for (int layer = 0; layer < 3; ++layer) {
    const kernels::KvLayerView view = (*cache)->Layer(layer);
    for (int64_t i = 0; i < side_bytes; ++i) {
      ASSERT_EQ(static_cast<const char*>(view.k)[i], 1 + 2 * layer);
      ASSERT_EQ(static_cast<const char*>(view.v)[i], 2 + 2 * layer);
    }
  }
}

TEST(KvCacheTest, RefusesNoPages) {
  const auto backend = kernels::MakeReferenceBackend();
  const auto pages = KvCache::Create(Config(), *backend, 0, 16);
  EXPECT_EQ(pages.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(pages.status().message()), HasSubstr("pages = 0"));
  const auto size = KvCache::Create(Config(), *backend, 4, 0);
  EXPECT_EQ(size.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(size.status().message()), HasSubstr("page_size = 0"));
}

TEST(KvCacheTest, RefusesMoreThanTheMachineHas) {
  const auto backend = kernels::MakeReferenceBackend();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  for (const int32_t page_size : {1 << 20, kMost}) {
    const auto cache = KvCache::Create(Config(), *backend, kMost, page_size);
    EXPECT_EQ(cache.status().code(), absl::StatusCode::kResourceExhausted)
        << cache.status();
    EXPECT_THAT(std::string(cache.status().message()),
                HasSubstr("KV cache of 2147483647 pages"));
  }
}

}  // namespace
}  // namespace nibble::model
