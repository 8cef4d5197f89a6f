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
constexpr unsigned kWarp = 32;
// A row of one warp has no barrier, so that rows can share a CTA.
constexpr unsigned kWarpRows = 4;
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();  // gridDim.x
static_assert(kRowShapes[kWalkingShape - 1].MaxK() == kMaxQuantizeK);
// What the registers of an SM hold of kernels that walk.
constexpr int kWalkingThreads = 512;
// What is in shared memory besides stages: parts of sums; the system's.
constexpr int64_t kOtherSharedBytes = 2048;

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

// The threads of a CTA: of a row, and rows.
dim3 BlockOf(int64_t k, const RowShape& shape) {
  const auto threads = static_cast<unsigned>(
      RoundUp(DivideUp(k, int64_t{kChunk} * shape.chunks), int64_t{kWarp}));
  return {threads, threads == kWarp ? kWarpRows : 1u, 1};
}

int64_t StageBytes(const QuantizeArgs& args, const RowShape& shape) {
  const dim3 block = BlockOf(args.k, shape);
  const int64_t input_bytes = int64_t{16} * shape.chunks * block.x * block.y;
  if (shape.stages > 0) return shape.stages * input_bytes;
  constexpr int kInputs = 2;
  return IsStaged(args.op, ElementBytes(args.dtype), shape.chunks)
             ? kInputs * input_bytes
             : 0;
}

// CTAs that walk: as many as run at the same time.
int64_t WalkingCtas(const QuantizeArgs& args, const DeviceInfo& device) {
  const dim3 block = BlockOf(args.k, kRowShapes[kWalkingShape]);
  const int64_t held =
      device.shared_memory_bytes /
      (StageBytes(args, kRowShapes[kWalkingShape]) + kOtherSharedBytes);
  return device.multiprocessors *
         std::min<int64_t>(held, kWalkingThreads / (block.x * block.y));
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

bool HasRowShape(const QuantizeArgs& args, int shape,
                 const DeviceInfo& device) {
  if (args.k > kRowShapes[shape].MaxK()) return false;
  return shape != kWalkingShape ||
         (MayWalk(args.op, ElementBytes(args.dtype)) &&
          WalkingCtas(args, device) > 0);
}

// Walking pays where CTAs come to a second row.
int BestRowShape(const QuantizeArgs& args, const DeviceInfo& device) {
  if (HasRowShape(args, kWalkingShape, device) &&
      args.m > WalkingCtas(args, device) *
                   BlockOf(args.k, kRowShapes[kWalkingShape]).y) {
    return kWalkingShape;
  }
  return RowShapeFor(args.k);
}

void LaunchQuantize(const QuantizeArgs& args, const DeviceInfo& device,
                    const Stream& stream,
                    const QuantizeLaunchOptions& options) {
  NIBBLE_CHECK(CheckQuantizeShape(args.m, args.k).ok());
  if (args.m == 0) return;
  CheckInputs(args);
  CheckOutputs(args);
  const int index =
      options.shape >= 0 ? options.shape : BestRowShape(args, device);
  NIBBLE_CHECK_LT(index, kNumRowShapes);
  NIBBLE_CHECK(HasRowShape(args, index, device));
  const RowShape& shape = kRowShapes[index];
  const void* kernel = KernelOf(args, index);
  const KernelTraits traits = PrepareKernel(kernel, device.index);

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.blockDim = BlockOf(args.k, shape);
  launch.dynamicSmemBytes = static_cast<size_t>(StageBytes(args, shape));
  int64_t ctas = DivideUp<int64_t>(args.m, launch.blockDim.y);
  if (index == kWalkingShape) ctas = std::min(ctas, WalkingCtas(args, device));
  launch.gridDim = dim3(static_cast<unsigned>(ctas));
  launch.stream = stream.get();
  launch.attrs = &attribute;
  launch.numAttrs = options.overlap && traits.may_overlap ? 1 : 0;
  QuantizeParams params = ParamsOf(args);
  void* kernel_args[] = {&params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
