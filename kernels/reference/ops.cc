#include "kernels/reference/ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::reference {
namespace {

// Independent partial sums, so that a compiler may vectorise the loop; added
// up in order at the end.
constexpr int kLanes = 8;

template <typename T>
double DotLanes(const T* a, const T* b, int64_t k) {
  std::array<double, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] +=
          static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (int lane = 0; i + lane < k; ++lane) {
    sums[lane] +=
        static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
  }
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

float LoadElement(const void* data, DType dtype, int64_t index) {
  const char* at = static_cast<const char*>(data) + index * ElementBytes(dtype);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kF16 ? HalfToFloat(bits) : BFloat16ToFloat(bits);
}

void StoreElement(float value, DType dtype, int64_t index, void* data) {
  char* at = static_cast<char*>(data) + index * ElementBytes(dtype);
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits =
      dtype == DType::kF16 ? FloatToHalf(value) : FloatToBFloat16(value);
  std::memcpy(at, &bits, sizeof(bits));
}

void CheckKvDType(DType dtype) {
  NIBBLE_CHECK(dtype == DType::kF32 || dtype == DType::kF16 ||
               dtype == DType::kBF16);
}

// Head `head` of a slot as floats [head_dim]: in place where the pages hold
// floats, else converted into `scratch`.
const float* HeadAt(const void* pages, const KvLayerView& kv, int64_t slot,
                    int32_t head, std::vector<float>* scratch) {
  const int64_t begin = (slot * kv.kv_heads + head) * kv.head_dim;
  if (kv.dtype == DType::kF32) return static_cast<const float*>(pages) + begin;
  scratch->resize(kv.head_dim);
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    (*scratch)[d] = LoadElement(pages, kv.dtype, begin + d);
  }
  return scratch->data();
}

// One query head q [head_dim] over the keys and values of one kv head in the
// given slots, in order; out [head_dim].
void AttendHead(const float* q, const KvLayerView& kv, int32_t kv_head,
                std::span<const int64_t> slots, float scale, float* out) {
  std::vector<float> scratch;
  std::vector<double> scores;
  scores.reserve(slots.size());
  for (const int64_t slot : slots) {
    const float* key = HeadAt(kv.k, kv, slot, kv_head, &scratch);
    scores.push_back(Dot(q, key, kv.head_dim) * static_cast<double>(scale));
  }
  const double greatest = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  std::vector<double> sums(kv.head_dim, 0.0);
  for (size_t t = 0; t < slots.size(); ++t) {
    const double weight = std::exp(scores[t] - greatest);
    total += weight;
    const float* value = HeadAt(kv.v, kv, slots[t], kv_head, &scratch);
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      sums[d] += weight * static_cast<double>(value[d]);
    }
  }
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    out[d] = static_cast<float>(sums[d] / total);
  }
}

}  // namespace

double Dot(const float* a, const float* b, int64_t k) {
  return DotLanes(a, b, k);
}
double Dot(const double* a, const double* b, int64_t k) {
  return DotLanes(a, b, k);
}

void RmsNormRow(const float* x, const float* weight, float eps, int64_t k,
                float* out) {
  const double mean_square = Dot(x, x, k) / static_cast<double>(k);
  const double scale = 1.0 / std::sqrt(mean_square + static_cast<double>(eps));
  for (int64_t i = 0; i < k; ++i) {
    out[i] = static_cast<float>(static_cast<double>(x[i]) * scale *
                                static_cast<double>(weight[i]));
  }
}

void RopeRow(const RopeParams& rope, int32_t position, int32_t heads,
             int32_t head_dim, float* row) {
  const auto pairs = static_cast<int32_t>(rope.inverse_frequency.size());
  NIBBLE_CHECK_LE(2 * pairs, head_dim);
  const bool adjacent = rope.pairing == RopeParams::Pairing::kAdjacent;
  for (int32_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) *
                         static_cast<double>(rope.inverse_frequency[i]);
    const double factor = rope.attention_factor;
    const double c = std::cos(angle) * factor;
    const double s = std::sin(angle) * factor;
    const int32_t first = adjacent ? 2 * i : i;
    const int32_t second = adjacent ? 2 * i + 1 : i + pairs;
    for (int32_t head = 0; head < heads; ++head) {
      float* at = row + static_cast<int64_t>(head) * head_dim;
      const double a = at[first];
      const double b = at[second];
      at[first] = static_cast<float>(a * c - b * s);
      at[second] = static_cast<float>(a * s + b * c);
    }
  }
}

void WriteKvRow(const float* k, const float* v, int64_t slot,
                const KvLayerView& kv) {
  CheckKvDType(kv.dtype);
  NIBBLE_CHECK_GE(slot, 0);
  const int64_t width = static_cast<int64_t>(kv.kv_heads) * kv.head_dim;
  for (int64_t i = 0; i < width; ++i) {
    StoreElement(k[i], kv.dtype, slot * width + i, kv.k);
    StoreElement(v[i], kv.dtype, slot * width + i, kv.v);
  }
}

void AttentionOneRow(const AttentionRow& row, const KvLayerView& kv,
                     const AttentionShape& shape, float* out) {
  CheckKvDType(kv.dtype);
  NIBBLE_CHECK_EQ(shape.head_dim, kv.head_dim);
  NIBBLE_CHECK_EQ(shape.kv_heads, kv.kv_heads);
  NIBBLE_CHECK_EQ(shape.heads % shape.kv_heads, 0);
  NIBBLE_CHECK_GE(row.position, 0);
  NIBBLE_CHECK_LT(static_cast<size_t>(row.position / kv.page_size),
                  row.page_ids.size());
  std::vector<int64_t> slots;
  for (int32_t t = 0; t <= row.position; ++t) {
    const int64_t page = row.page_ids[t / kv.page_size];
    slots.push_back(page * kv.page_size + t % kv.page_size);
  }
  const int32_t group = shape.heads / shape.kv_heads;
  for (int32_t head = 0; head < shape.heads; ++head) {
    const int64_t begin = static_cast<int64_t>(head) * shape.head_dim;
    AttendHead(row.q + begin, kv, head / group, slots, shape.scale,
               out + begin);
  }
}

void SiluMulRow(const float* gate_up, int64_t f, float* out) {
  for (int64_t i = 0; i < f; ++i) {
    const double gate = gate_up[i];
    const double up = gate_up[f + i];
    out[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
  }
}

}  // namespace nibble::kernels::reference
