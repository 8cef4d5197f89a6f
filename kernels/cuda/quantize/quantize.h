// Activations in 8 bits, written by the operation that makes them: RMSNorm,
// SiLU-mul, or none (attention's output, the input of a layer tried alone).
// A launch reads its input once and writes codes and scales only.
//
// The encodings and their rules for zeros, NaN and infinity are those of
// activation_codes.h. Codes are the bits of kernels/reference/quantize.h for
// the values that they encode: those of kPlain, products x * weight (in FP32)
// of the norms, silu(gate) * up, which is within 2^-20 of the exact value. The
// factor of a norm is part of the scale; it is NaN where the sum of squares
// leaves FP32's range (values beyond about 1e18). A row's result does not
// depend on the other rows.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/activation_codes.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"

namespace nibble::kernels::cuda {

// What is encoded.
enum class QuantizeOp : uint8_t {
  kPlain,    // x
  kNorm,     // RMSNorm(x)
  kAddNorm,  // residual += x, rounded to its type; then RMSNorm(residual)
  kSiluMul,  // silu(x) * up
};

// How: which values share a scale, and where it goes.
enum class QuantizeCode : uint8_t {
  kInt8Token,  // a row
  kFp8Token,   // a row
  kFp8Tensor,  // all, the scale is given
  kFp8Block,   // 128 columns of a row
  kQ8,         // 32 or 256 columns of a row, with sums
};

// The greatest k: a row is held in the registers of one CTA.
inline constexpr int64_t kMaxQuantizeK = 65536;

// One launch. Device memory, borrowed until it has run; inputs and codes are
// 16-byte aligned, rows of inputs start at multiples of 16 bytes, and less than
// 4 GiB are between one row and the next.
struct QuantizeArgs {
  QuantizeOp op = QuantizeOp::kPlain;
  DType dtype = DType::kBF16;     // of x, residual and up: kBF16, kF16 or kF32
  const void* x = nullptr;        // [m, k]; kSiluMul: the gate
  int64_t ldx = 0;                // elements from row to row of x and up
  const void* up = nullptr;       // [m, k], kSiluMul only
  void* residual = nullptr;       // [m, k], kAddNorm only
  int64_t ldr = 0;                // elements from row to row of the residual
  const float* weight = nullptr;  // [k], norms only
  float eps = 0;                  // norms only, > 0
  int64_t m = 0;
  int64_t k = 0;

  QuantizeCode code = QuantizeCode::kInt8Token;
  Fp8 fp8 = Fp8::kE4m3;                     // of the FP8 codes
  Int8Range range = Int8Range::kSymmetric;  // kInt8Token
  int q8_group = 32;                        // kQ8: 32 or 256
  // Bytes [m, k], rows ldc bytes apart, a multiple of 16; bytes from k to the
  // next multiple of 16 become zeros.
  void* codes = nullptr;
  int64_t ldc = 0;
  // Written: kInt8Token and kFp8Token [m]; kFp8Block [k / 128, rounded up,
  // BlockScalePitch(m)]; kQ8 [m, 2 * (k / 32, rounded up)], pairs of scale and
  // sum. kFp8Tensor reads one.
  float* scales = nullptr;
  int32_t* zeros = nullptr;  // [m], asymmetric kInt8Token only
  // kFp8Tensor: a float in memory that becomes the greatest |value| if that is
  // greater (NaN counts as greatest). Null: not wanted.
  float* greatest = nullptr;
};

// INVALID_ARGUMENT, with the value and the limit, where no kernel takes rows
// of k or so many of them: k must be a multiple of 8 up to kMaxQuantizeK.
absl::Status CheckQuantizeShape(int64_t m, int64_t k);

struct QuantizeLaunchOptions {
  // Programmatic dependent launch, where the kernel can: starts while the
  // kernel ahead still runs, and waits for it before it reads or writes.
  bool overlap = false;
  // An index into kRowShapes (row_shape.h) that holds k; -1: RowShapeFor(k).
  int shape = -1;
};

// Enqueues it. m = 0 is a no-op.
void LaunchQuantize(const QuantizeArgs& args, const DeviceInfo& device,
                    const Stream& stream,
                    const QuantizeLaunchOptions& options = {});

}  // namespace nibble::kernels::cuda
