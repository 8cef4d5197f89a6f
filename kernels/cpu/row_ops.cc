#include "kernels/cpu/row_ops.h"

#include "kernels/cpu/highway.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_ops.cc"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/reference/half.h"

HWY_BEFORE_NAMESPACE();
namespace nibble::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// At most half a block, so that sums of 16 codes are whole vectors.
using D = hn::CappedTag<float, 16>;
using DI = hn::Rebind<int32_t, D>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kHalf = kBlock / 2;
constexpr int32_t kMostCode = 127;

// A block with a smaller scale is all zeros: the inverse would overflow.
constexpr float kLeastScale = 1e-30f;

// The extremes of 32 values and 0, and whether all are finite.
struct Span {
  float least;
  float greatest;
  bool finite;
};

HWY_INLINE Span FindSpan(const float* HWY_RESTRICT x) {
  const D d;
  V least = hn::Zero(d), greatest = hn::Zero(d);
  const V infinity = hn::Inf(d);
  auto finite = hn::Lt(least, infinity);
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; i += kLanes) {
    const V v = hn::LoadU(d, x + i);
    least = hn::Min(least, v);
    greatest = hn::Max(greatest, v);
    finite = hn::And(finite, hn::Lt(hn::Abs(v), infinity));
  }
  return {hn::GetLane(hn::MinOfLanes(d, least)),
          hn::GetLane(hn::MaxOfLanes(d, greatest)), hn::AllTrue(d, finite)};
}

// Adding 1.5 * 2^23 to a small number rounds it to an integer, to nearest and
// to even between two, and leaves that integer in the lowest bits.
constexpr float kRound = 12582912.0f;
constexpr int32_t kRoundBits = 0x4b400000;

// The codes of 32 values.
HWY_INLINE void EncodeValues(const float* HWY_RESTRICT x, float inverse,
                             int32_t zero, int8_t* HWY_RESTRICT codes) {
  const D d;
  const DI di;
  const hn::Rebind<int8_t, D> d8;
  const V factor = hn::Set(d, inverse), round = hn::Set(d, kRound);
  const auto shift = hn::Set(di, zero - kRoundBits);
  const auto most = hn::Set(di, kMostCode);
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; i += kLanes) {
    const V steps = hn::MulAdd(hn::LoadU(d, x + i), factor, round);
    // Both ends may round away from each other: one step too many.
    const auto code = hn::Min(hn::Add(hn::BitCast(di, steps), shift), most);
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  }
}

// The code of 0, when that of the least value is -kMostCode.
HWY_INLINE int32_t ZeroCode(float least, float inverse) {
  const D d;
  const V steps =
      hn::MulAdd(hn::Set(d, least), hn::Set(d, inverse), hn::Set(d, kRound));
  return kRoundBits - kMostCode - std::bit_cast<int32_t>(hn::GetLane(steps));
}

// The sum of 16 codes.
HWY_INLINE int32_t SumCodes(const int8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  int32_t sum = 0;
  for (int i = 0; i < kHalf; ++i) sum += codes[i];
  return sum;
#else
  const hn::FixedTag<uint8_t, kHalf> d8;
  const hn::Repartition<uint64_t, decltype(d8)> d64;
  const auto bytes = hn::LoadU(d8, reinterpret_cast<const uint8_t*>(codes));
  // From signed to unsigned by adding 128 to each.
  const auto sums = hn::SumsOf8(hn::Xor(bytes, hn::Set(d8, 0x80)));
  const uint64_t sum = hn::GetLane(hn::SumOfLanes(d64, sums));
  return static_cast<int32_t>(sum) - kHalf * 128;
#endif
}

// One block of 32 values into its lane of a quad.
HWY_INLINE void EncodeBlock(const float* HWY_RESTRICT x, int lane,
                            QuadBlock* HWY_RESTRICT out) {
  const Span span = FindSpan(x);
  constexpr float kPerStep = 1.0f / (2 * kMostCode);
  float scale = span.greatest * kPerStep - span.least * kPerStep;
  if (!span.finite || scale < kLeastScale) {
    // Not a number anywhere makes all that it touches not a number.
    scale = span.finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    std::memset(out->codes[lane], 0, kBlock);
    out->scale[lane] = out->sum[lane] = scale;
    out->all[lane] = out->low[lane] = {};
    return;
  }
  const float inverse = 1.0f / scale;
  const int32_t zero = ZeroCode(span.least, inverse);
  int8_t* codes = out->codes[lane];
  EncodeValues(x, inverse, zero, codes);
  const int32_t low = SumCodes(codes) - kHalf * zero;
  const int32_t high = SumCodes(codes + kHalf) - kHalf * zero;
  out->scale[lane] = scale;
  out->sum[lane] = scale * static_cast<float>(low + high);
  const auto neg_zero = static_cast<int16_t>(-zero);
  out->all[lane] = {neg_zero, static_cast<int16_t>(-(low + high))};
  out->low[lane] = {neg_zero, static_cast<int16_t>(-low)};
}

// made[i] = source.Make of elements begin + i, i < count; whole vectors are
// stored. source.a and source.b are its arrays.
template <class Source>
HWY_INLINE void MakeValues(const Source& source, int64_t begin, int64_t count,
                           float* HWY_RESTRICT made) {
  const D d;
  const float* a = source.a + begin;
  const float* b = source.b + begin;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::Store(source.Make(a + i, b + i), d, made + i);
  }
  if (i == count) return;
  alignas(64) float last_a[kLanes] = {}, last_b[kLanes] = {};
  std::copy(a + i, a + count, last_a);
  std::copy(b + i, b + count, last_b);
  hn::Store(source.Make(last_a, last_b), d, made + i);
}

// Blocks that are made before they are encoded. A block's code is one long
// chain of dependent operations: with those that make it in between, the
// processor would see too few blocks at once to fill the time.
constexpr int64_t kBlocksAtOnce = 8;

// Runs `source` over [0, k) and encodes what it makes.
template <class Source>
HWY_INLINE void EncodeFrom(const Source& source, int64_t k, const RowOut& out) {
  alignas(64) float made[kBlocksAtOnce * kBlock];
  for (int64_t i = 0; i < k; i += kBlocksAtOnce * kBlock) {
    const int64_t count = std::min<int64_t>(kBlocksAtOnce * kBlock, k - i);
    MakeValues(source, i, count, made);
    if (out.floats != nullptr) std::copy_n(made, count, out.floats + i);
    if (out.codes == nullptr) continue;
    QuadBlock* codes = out.codes + i / kBlock;
    for (int64_t b = 0; b < count / kBlock; ++b) {
      EncodeBlock(made + b * kBlock, out.lane, codes + b);
    }
  }
}

struct Normalised {
  const float* a;  // x
  const float* b;  // weight
  float inverse;
  HWY_INLINE V Make(const float* x, const float* weight) const {
    const D d;
    return hn::Mul(hn::Mul(hn::LoadU(d, x), hn::Set(d, inverse)),
                   hn::LoadU(d, weight));
  }
};

struct Gated {
  const float* a;  // gate
  const float* b;  // up
  HWY_INLINE V Make(const float* gate, const float* up) const {
    const D d;
    const V g = hn::LoadU(d, gate);
    const V one = hn::Set(d, 1.0f);
    const V silu = hn::Div(g, hn::Add(one, Exp(d, hn::Neg(g))));
    return hn::Mul(silu, hn::LoadU(d, up));
  }
};

struct Same {
  const float* a;
  const float* b;
  HWY_INLINE V Make(const float* x, const float* /*x*/) const {
    return hn::LoadU(D(), x);
  }
};

float SumOfSquares(const float* HWY_RESTRICT x, int64_t k) {
  const D d;
  V even = hn::Zero(d), odd = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const V first = hn::LoadU(d, x + i);
    const V second = hn::LoadU(d, x + i + kLanes);
    even = hn::MulAdd(first, first, even);
    odd = hn::MulAdd(second, second, odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  for (; i < k; ++i) sum += x[i] * x[i];
  return sum;
}

void RmsNormRowImpl(const float* x, const float* weight, float eps, int64_t k,
                    const RowOut& out) {
  const float mean = SumOfSquares(x, k) / static_cast<float>(k);
  EncodeFrom(Normalised{x, weight, 1.0f / std::sqrt(mean + eps)}, k, out);
}

void SiluMulRowImpl(const float* gate_up, int64_t f, const RowOut& out) {
  EncodeFrom(Gated{gate_up, gate_up + f}, f, out);
}

void EncodeRowImpl(const float* x, int64_t k, const RowOut& out) {
  EncodeFrom(Same{x, x}, k, out);
}

// y[i] = x[i] * cosine[i] + partner[i] * sine[i].
HWY_INLINE void Turn(const RopeRow& rope, int64_t i, float partner, float* head,
                     float* result) {
  *result = head[i] * rope.cosine[i] + partner * rope.sine[i];
}

HWY_INLINE void TurnAdjacent(const RopeRow& rope, float* HWY_RESTRICT head) {
  int32_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const D d;
  for (; i + kLanes <= rope.rotary_dims; i += kLanes) {
    const V x = hn::LoadU(d, head + i);
    const V turned = hn::Mul(hn::Shuffle2301(x), hn::LoadU(d, rope.sine + i));
    hn::StoreU(hn::MulAdd(x, hn::LoadU(d, rope.cosine + i), turned), d,
               head + i);
  }
#endif
  for (; i < rope.rotary_dims; i += 2) {
    float first, second;
    Turn(rope, i, head[i + 1], head, &first);
    Turn(rope, i + 1, head[i], head, &second);
    head[i] = first;
    head[i + 1] = second;
  }
}

HWY_INLINE void TurnHalves(const RopeRow& rope, float* HWY_RESTRICT head) {
  const D d;
  const int32_t pairs = rope.rotary_dims / 2;
  int32_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const V a = hn::LoadU(d, head + i);
    const V b = hn::LoadU(d, head + pairs + i);
    const V c = hn::LoadU(d, rope.cosine + i);
    const V s = hn::LoadU(d, rope.sine + pairs + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, head + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, head + pairs + i);
  }
  for (; i < pairs; ++i) {
    float first, second;
    Turn(rope, i, head[pairs + i], head, &first);
    Turn(rope, pairs + i, head[i], head, &second);
    head[i] = first;
    head[pairs + i] = second;
  }
}

void ApplyRopeImpl(const RopeRow& rope, int32_t heads, int32_t head_dim,
                   float* row) {
  for (int32_t h = 0; h < heads; ++h, row += head_dim) {
    if (rope.pairing == RopeParams::Pairing::kAdjacent) {
      TurnAdjacent(rope, row);
    } else {
      TurnHalves(rope, row);
    }
  }
}

void StoreHalvesImpl(const float* from, int64_t count, uint16_t* to) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> d16;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, from + i)), d16,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < count; ++i) to[i] = reference::FloatToHalf(from[i]);
}

// The greatest of the finite ones and of -infinity, and whether any value is
// a NaN or +infinity.
struct Extremes {
  float best;
  bool broken;
};

Extremes FindExtremes(const float* x, int64_t count) {
  const D d;
  const V infinity = hn::Inf(d);
  V best = hn::Neg(infinity);
  auto sound = hn::Eq(infinity, infinity);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const V v = hn::LoadU(d, x + i);
    best = hn::Max(best, v);
    sound = hn::And(sound, hn::Lt(v, infinity));  // false for a NaN too
  }
  Extremes result{hn::GetLane(hn::MaxOfLanes(d, best)), !hn::AllTrue(d, sound)};
  for (; i < count; ++i) {
    result.best = std::max(result.best, x[i]);
    if (!(x[i] < std::numeric_limits<float>::infinity())) result.broken = true;
  }
  return result;
}

BestLogit FindBestLogitImpl(const float* x, int64_t count) {
  const Extremes extremes = FindExtremes(x, count);
  if (extremes.broken ||
      extremes.best == -std::numeric_limits<float>::infinity()) {
    return {};
  }
  const D d;
  const V best = hn::Set(d, extremes.best);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), best));
    if (lane >= 0) return {true, static_cast<int32_t>(i + lane)};
  }
  while (x[i] != extremes.best) ++i;
  return {true, static_cast<int32_t>(i)};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace nibble::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::kernels::cpu {

HWY_EXPORT(RmsNormRowImpl);
HWY_EXPORT(SiluMulRowImpl);
HWY_EXPORT(EncodeRowImpl);
HWY_EXPORT(ApplyRopeImpl);
HWY_EXPORT(StoreHalvesImpl);
HWY_EXPORT(FindBestLogitImpl);

void RmsNormRow(const float* x, const float* weight, float eps, int64_t k,
                const RowOut& out) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowImpl)(x, weight, eps, k, out);
}

void SiluMulRow(const float* gate_up, int64_t f, const RowOut& out) {
  HWY_DYNAMIC_DISPATCH(SiluMulRowImpl)(gate_up, f, out);
}

void EncodeRow(const float* x, int64_t k, const RowOut& out) {
  HWY_DYNAMIC_DISPATCH(EncodeRowImpl)(x, k, out);
}

void ApplyRope(const RopeRow& rope, int32_t heads, int32_t head_dim,
               float* row) {
  HWY_DYNAMIC_DISPATCH(ApplyRopeImpl)(rope, heads, head_dim, row);
}

void StoreHalves(const float* from, int64_t count, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(StoreHalvesImpl)(from, count, to);
}

BestLogit FindBestLogit(std::span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(FindBestLogitImpl)(
      logits.data(), static_cast<int64_t>(logits.size()));
}

}  // namespace nibble::kernels::cpu
#endif
