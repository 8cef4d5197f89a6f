#include "kernels/cuda/quantize/quantize.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "kernels/cuda/linear/kernel_setup.h"
#include "kernels/cuda/quantize/quantize_params.h"
#include "kernels/cuda/quantize/row_shape.h"

namespace nibble::kernels::cuda {
namespace {

constexpr int kChunk = 8;  // of encode.cuh
constexpr int kWarp = 32;
// A row of one warp has no barrier, so that rows can share a CTA.
constexpr int kWarpRows = 4;
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();  // gridDim.x
static_assert(kRowShapes[kNumRowShapes - 1].MaxK() == kMaxQuantizeK);

bool IsAligned(const void* p, int64_t pitch_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && pitch_bytes % 16 == 0;
}

void CheckInputs(const QuantizeArgs& args) {
  const int64_t bytes = ElementBytes(args.dtype);
  const bool adds = args.op == QuantizeOp::kAddNorm;
  NIBBLE_CHECK(args.x != nullptr && IsAligned(args.x, args.ldx * bytes));
  NIBBLE_CHECK_GE(args.ldx, args.k);
  NIBBLE_CHECK_EQ(args.up != nullptr, args.op == QuantizeOp::kSiluMul);
  NIBBLE_CHECK(IsAligned(args.up, 0));
  NIBBLE_CHECK_EQ(args.residual != nullptr, adds);
  if (adds) {
    NIBBLE_CHECK(IsAligned(args.residual, args.ldr * bytes));
    NIBBLE_CHECK_GE(args.ldr, args.k);
  }
  const bool norm = adds || args.op == QuantizeOp::kNorm;
  NIBBLE_CHECK_EQ(args.weight != nullptr, norm);
  NIBBLE_CHECK(IsAligned(args.weight, 0));
  NIBBLE_CHECK(!norm || args.eps > 0);
}

void CheckOutputs(const QuantizeArgs& args) {
  NIBBLE_CHECK(args.codes != nullptr && IsAligned(args.codes, args.ldc));
  NIBBLE_CHECK_GE(args.ldc, args.k);
  NIBBLE_CHECK(args.scales != nullptr);
  NIBBLE_CHECK_EQ(args.zeros != nullptr,
                  args.code == QuantizeCode::kInt8Token &&
                      args.range == Int8Range::kAsymmetric);
  NIBBLE_CHECK(args.greatest == nullptr ||
               args.code == QuantizeCode::kFp8Tensor);
  if (args.code == QuantizeCode::kQ8) {
    NIBBLE_CHECK(args.q8_group == 32 || args.q8_group == 256);
    NIBBLE_CHECK_EQ(reinterpret_cast<uintptr_t>(args.scales) % 8, 0u);
  }
}

uint32_t PitchOf(int64_t bytes) {
  NIBBLE_CHECK_LE(bytes, int64_t{std::numeric_limits<uint32_t>::max()});
  return static_cast<uint32_t>(bytes);
}

QuantizeParams ParamsOf(const QuantizeArgs& args) {
  const int64_t bytes = ElementBytes(args.dtype);
  QuantizeParams params;
  params.x = static_cast<const char*>(args.x);
  params.up = static_cast<const char*>(args.up);
  params.residual = static_cast<char*>(args.residual);
  params.weight = args.weight;
  params.x_bytes = PitchOf(args.ldx * bytes);
  params.residual_bytes = PitchOf(args.ldr * bytes);
  params.m = static_cast<uint32_t>(args.m);
  params.chunks = static_cast<int>(args.k / kChunk);
  params.eps = args.eps;
  params.inverse_k = 1 / static_cast<float>(args.k);
  params.codes = static_cast<uint8_t*>(args.codes);
  params.code_bytes = PitchOf(args.ldc);
  params.scales = args.scales;
  params.scale_pitch = args.code == QuantizeCode::kQ8
                           ? DivideUp(args.k, kSumBlock)
                           : BlockScalePitch(args.m);
  params.zeros = args.zeros;
  params.greatest = args.greatest;
  params.fp8_greatest = Greatest(args.fp8);
  params.e5m2 = args.fp8 == Fp8::kE5m2;
  params.asymmetric = args.range == Int8Range::kAsymmetric;
  params.given_scale = args.code == QuantizeCode::kFp8Tensor;
  params.wide_groups = args.q8_group != kSumBlock;
  return params;
}

QuantizeKernels KernelsOf(QuantizeOp op, DType dtype) {
  NIBBLE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16 ||
               dtype == DType::kF32);
  const auto pick = [dtype](auto bf16, auto f16, auto f32) {
    return dtype == DType::kBF16  ? bf16()
           : dtype == DType::kF16 ? f16()
                                  : f32();
  };
  switch (op) {
    case QuantizeOp::kPlain:
      return pick(PlainKernelsBf16, PlainKernelsF16, PlainKernelsF32);
    case QuantizeOp::kNorm:
      return pick(NormKernelsBf16, NormKernelsF16, NormKernelsF32);
    case QuantizeOp::kAddNorm:
      return pick(AddNormKernelsBf16, AddNormKernelsF16, AddNormKernelsF32);
    case QuantizeOp::kSiluMul:
      break;
  }
  return pick(SiluMulKernelsBf16, SiluMulKernelsF16, SiluMulKernelsF32);
}

const void* KernelOf(const QuantizeArgs& args, int shape) {
  const QuantizeKernels kernels = KernelsOf(args.op, args.dtype);
  const QuantizeCode code = args.code == QuantizeCode::kFp8Tensor
                                ? QuantizeCode::kFp8Token
                                : args.code;
  const auto* const found = std::ranges::find(kCompiledCodes, code);
  return kernels.kernel[found - kCompiledCodes][shape];
}

}  // namespace

absl::Status CheckQuantizeShape(int64_t m, int64_t k) {
  if (k <= 0 || k > kMaxQuantizeK || k % kChunk != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot quantize rows of ", k, " activations: not a multiple of ",
        kChunk, " from ", kChunk, " to ", kMaxQuantizeK));
  }
  if (m < 0 || m > kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot quantize ", m, " rows: not from 0 to ", kMaxRows));
  }
  return absl::OkStatus();
}

void LaunchQuantize(const QuantizeArgs& args, const DeviceInfo& device,
                    const Stream& stream,
                    const QuantizeLaunchOptions& options) {
  NIBBLE_CHECK(CheckQuantizeShape(args.m, args.k).ok());
  if (args.m == 0) return;
  CheckInputs(args);
  CheckOutputs(args);
  const int index = options.shape >= 0 ? options.shape : RowShapeFor(args.k);
  NIBBLE_CHECK_LT(index, kNumRowShapes);
  const RowShape& shape = kRowShapes[index];
  NIBBLE_CHECK_LE(args.k, shape.MaxK());
  const void* kernel = KernelOf(args, index);
  const KernelTraits traits = PrepareKernel(kernel, device.index);

  const auto threads = static_cast<int>(RoundUp(
      DivideUp(args.k, int64_t{kChunk} * shape.chunks), int64_t{kWarp}));
  const int rows = threads == kWarp ? kWarpRows : 1;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(DivideUp<int64_t>(args.m, rows)));
  launch.blockDim = dim3(threads, rows);
  if (IsStaged(args.op, ElementBytes(args.dtype), shape.chunks)) {
    constexpr int kInputs = 2;
    launch.dynamicSmemBytes =
        static_cast<size_t>(16) * threads * rows * shape.chunks * kInputs;
  }
  launch.stream = stream.get();
  launch.attrs = &attribute;
  launch.numAttrs = options.overlap && traits.may_overlap ? 1 : 0;
  QuantizeParams params = ParamsOf(args);
  void* kernel_args[] = {&params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
