// Block layouts as GGUF files hold them: ggml's block structs (ggml-common.h
// of llama.cpp; the GGUF specification names the types), little endian,
// packed. "f16 d" is IEEE binary16. Within a byte the low four bits come
// first; where a layout interleaves halves of a block, it says so.
#include "kernels/reference/dequant.h"

#include <cstring>

#include "base/check.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::reference {
namespace {

constexpr int kSmallBlock = 32;   // weights of a Q4_0 .. Q8_0 block
constexpr int kSuperBlock = 256;  // weights of a Q4_K .. Q6_K block

int8_t I8(const std::byte* p) { return static_cast<int8_t>(Load8(p)); }
float F16(const std::byte* p) { return HalfToFloat(Load16(p)); }

// The 4-bit code of weight j of a 32-weight block: bytes 0..15 hold weights
// 0..15 in their low and weights 16..31 in their high halves.
int SmallCode4(const std::byte* qs, int j) {
  return j < 16 ? Load8(qs + j) & 15 : Load8(qs + j - 16) >> 4;
}

// The fifth bit of weight j is bit j of the 32-bit word qh.
int SmallCode5(const std::byte* qs, uint32_t qh, int j) {
  return SmallCode4(qs, j) | static_cast<int>(qh >> j & 1) << 4;
}

// { f16 d; u8 qs[16] }: d * (code - 8)
void BlockQ4_0(const std::byte* block, float* out) {
  const float d = F16(block);
  for (int j = 0; j < kSmallBlock; ++j) {
    out[j] = d * static_cast<float>(SmallCode4(block + 2, j) - 8);
  }
}

// { f16 d; f16 m; u8 qs[16] }: d * code + m
void BlockQ4_1(const std::byte* block, float* out) {
  const float d = F16(block);
  const float m = F16(block + 2);
  for (int j = 0; j < kSmallBlock; ++j) {
    out[j] = d * static_cast<float>(SmallCode4(block + 4, j)) + m;
  }
}

// { f16 d; u32 qh; u8 qs[16] }: d * (code - 16)
void BlockQ5_0(const std::byte* block, float* out) {
  const float d = F16(block);
  const uint32_t qh = Load32(block + 2);
  for (int j = 0; j < kSmallBlock; ++j) {
    out[j] = d * static_cast<float>(SmallCode5(block + 6, qh, j) - 16);
  }
}

// { f16 d; f16 m; u32 qh; u8 qs[16] }: d * code + m
void BlockQ5_1(const std::byte* block, float* out) {
  const float d = F16(block);
  const float m = F16(block + 2);
  const uint32_t qh = Load32(block + 4);
  for (int j = 0; j < kSmallBlock; ++j) {
    out[j] = d * static_cast<float>(SmallCode5(block + 8, qh, j)) + m;
  }
}

// { f16 d; i8 qs[32] }: d * code
void BlockQ8_0(const std::byte* block, float* out) {
  const float d = F16(block);
  for (int j = 0; j < kSmallBlock; ++j) {
    out[j] = d * static_cast<float>(I8(block + 2 + j));
  }
}

// Scale and minimum of one 32-weight group, 6 bits each.
struct GroupScale {
  int scale;
  int minimum;
};

// Eight 6-bit scales s and minimums m in 12 bytes: bytes 0..3 are s[0..3] with
// the upper two bits of s[4..7] on top, bytes 4..7 the same of m, bytes 8..11
// the lower four bits of s[4..7] (low half) and of m[4..7] (high half).
GroupScale UnpackGroupScale(const std::byte* packed, int group) {
  if (group < 4)
    return {Load8(packed + group) & 63, Load8(packed + group + 4) & 63};
  const int low = Load8(packed + group + 4);
  return {(low & 15) | (Load8(packed + group - 4) >> 6) << 4,
          low >> 4 | (Load8(packed + group) >> 6) << 4};
}

// The low four bits of weight j: each 32 bytes hold 64 weights, the first 32
// in the low halves, the next 32 in the high halves.
int SuperCode4(const std::byte* qs, int j) {
  const int byte = Load8(qs + j / 64 * 32 + j % 32);
  return j % 64 < 32 ? byte & 15 : byte >> 4;
}

// { f16 d; f16 dmin; u8 scales[12]; u8 qs[128] }:
// (d * scale) * code - dmin * minimum
void BlockQ4_K(const std::byte* block, float* out) {
  const float d = F16(block);
  const float dmin = F16(block + 2);
  for (int j = 0; j < kSuperBlock; ++j) {
    const GroupScale group = UnpackGroupScale(block + 4, j / 32);
    const float scale = d * static_cast<float>(group.scale);
    const float minimum = dmin * static_cast<float>(group.minimum);
    out[j] = scale * static_cast<float>(SuperCode4(block + 16, j)) - minimum;
  }
}

// { f16 d; f16 dmin; u8 scales[12]; u8 qh[32]; u8 qs[128] }: as Q4_K; the
// fifth bit of weight j is bit j / 32 of qh[j % 32].
void BlockQ5_K(const std::byte* block, float* out) {
  const float d = F16(block);
  const float dmin = F16(block + 2);
  for (int j = 0; j < kSuperBlock; ++j) {
    const GroupScale group = UnpackGroupScale(block + 4, j / 32);
    const float scale = d * static_cast<float>(group.scale);
    const float minimum = dmin * static_cast<float>(group.minimum);
    const int high = Load8(block + 16 + j % 32) >> (j / 32) & 1;
    const int code = SuperCode4(block + 48, j) | high << 4;
    out[j] = scale * static_cast<float>(code) - minimum;
  }
}

// { u8 ql[128]; u8 qh[64]; i8 scales[16]; f16 d }: (d * scale) * (code - 32).
// Each half of 128 weights has 64 bytes of ql (weights 0..63 in their low,
// 64..127 in their high halves) and 32 bytes of qh, whose byte i holds the
// upper two bits of weights i, i + 32, i + 64, i + 96, lowest first.
void BlockQ6_K(const std::byte* block, float* out) {
  const float d = F16(block + 208);
  for (int j = 0; j < kSuperBlock; ++j) {
    const int half = j / 128;
    const int within = j % 128;
    const int low_byte = Load8(block + half * 64 + within % 64);
    const int low = within < 64 ? low_byte & 15 : low_byte >> 4;
    const int high_byte = Load8(block + 128 + half * 32 + within % 32);
    const int high = high_byte >> (within / 32 * 2) & 3;
    const float scale = d * static_cast<float>(I8(block + 192 + j / 16));
    out[j] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

void BlockF32(const std::byte* block, float* out) {
  std::memcpy(out, block, sizeof(float));
}
void BlockF16(const std::byte* block, float* out) { *out = F16(block); }
void BlockBF16(const std::byte* block, float* out) {
  *out = BFloat16ToFloat(Load16(block));
}

using BlockFunction = void (*)(const std::byte* block, float* out);

BlockFunction FunctionOf(QuantFormat format) {
  switch (format) {
    case QuantFormat::kF32:
      return BlockF32;
    case QuantFormat::kF16:
      return BlockF16;
    case QuantFormat::kBF16:
      return BlockBF16;
    case QuantFormat::kQ4_0:
      return BlockQ4_0;
    case QuantFormat::kQ4_1:
      return BlockQ4_1;
    case QuantFormat::kQ5_0:
      return BlockQ5_0;
    case QuantFormat::kQ5_1:
      return BlockQ5_1;
    case QuantFormat::kQ8_0:
      return BlockQ8_0;
    case QuantFormat::kQ4_K:
      return BlockQ4_K;
    case QuantFormat::kQ5_K:
      return BlockQ5_K;
    case QuantFormat::kQ6_K:
      return BlockQ6_K;
    case QuantFormat::kInt4:
    case QuantFormat::kInt4Sym:
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
    case QuantFormat::kMxfp4:
    case QuantFormat::kNvfp4:
      break;
  }
  ::nibble::internal::CheckFailed(__FILE__, __LINE__, "not a format of blocks");
}

}  // namespace

void DequantizeRow(QuantFormat format, const std::byte* row, int64_t k,
                   float* out) {
  const FormatInfo& info = Info(format);
  NIBBLE_CHECK_EQ(k % info.block_elements, 0);
  const BlockFunction dequantize_block = FunctionOf(format);
  for (int64_t begin = 0; begin < k; begin += info.block_elements) {
    dequantize_block(row + RowBytes(format, begin), out + begin);
  }
}

}  // namespace nibble::kernels::reference
