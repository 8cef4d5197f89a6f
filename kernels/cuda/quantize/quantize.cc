#include "kernels/cuda/quantize/quantize.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

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

QuantizeParams ParamsOf(const QuantizeArgs& args) {
  const int64_t bytes = ElementBytes(args.dtype);
  QuantizeParams params;
  params.x = static_cast<const char*>(args.x);
  params.up = static_cast<const char*>(args.up);
  params.residual = static_cast<char*>(args.residual);
  params.weight = args.weight;
  params.x_bytes = args.ldx * bytes;
  params.residual_bytes = args.ldr * bytes;
  params.m = args.m;
  params.chunks = static_cast<int>(args.k / kChunk);
  params.code_chunks = RoundUp(params.chunks, 2);
  params.eps = args.eps;
  params.inverse_k = 1 / static_cast<float>(args.k);
  params.codes = static_cast<uint8_t*>(args.codes);
  params.code_bytes = args.ldc;
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

int64_t SharedBytes(const QuantizeArgs& args, const RowShape& shape) {
  const int inputs =
      args.op == QuantizeOp::kAddNorm || args.op == QuantizeOp::kSiluMul ? 2
                                                                         : 1;
  const dim3 block = BlockOf(args.k, shape);
  return int64_t{16} * block.x * block.y * shape.chunks * inputs * shape.stages;
}

bool Fits(const QuantizeArgs& args, const RowShape& shape,
          const DeviceInfo& device) {
  // What is in shared memory besides the stages.
  constexpr int64_t kOther = 1024;
  return shape.MaxK() >= args.k &&
         (shape.stages == 0 ||
          (ElementBytes(args.dtype) == 2 &&
           SharedBytes(args, shape) + kOther <= device.shared_memory_bytes));
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

std::vector<int> QuantizeShapes(const QuantizeArgs& args,
                                const DeviceInfo& device) {
  std::vector<int> shapes;
  for (const int shape : {5, 4, 6, 7, 8, 0, 1, 2, 3}) {
    if (Fits(args, kRowShapes[shape], device)) shapes.push_back(shape);
  }
  return shapes;
}

void LaunchQuantize(const QuantizeArgs& args, const DeviceInfo& device,
                    const Stream& stream,
                    const QuantizeLaunchOptions& options) {
  NIBBLE_CHECK(CheckQuantizeShape(args.m, args.k).ok());
  if (args.m == 0) return;
  CheckInputs(args);
  CheckOutputs(args);
  const int index =
      options.shape >= 0 ? options.shape : QuantizeShapes(args, device).front();
  NIBBLE_CHECK_LT(index, kNumRowShapes);
  const RowShape& shape = kRowShapes[index];
  NIBBLE_CHECK(Fits(args, shape, device));
  const void* kernel = KernelOf(args, index);
  const KernelTraits traits = PrepareKernel(kernel, device.index);

  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.blockDim = BlockOf(args.k, shape);
  launch.dynamicSmemBytes = static_cast<size_t>(SharedBytes(args, shape));
  int64_t ctas = DivideUp<int64_t>(args.m, launch.blockDim.y);
  if (shape.stages > 1) {
    int each = 0;
    NIBBLE_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &each, kernel, static_cast<int>(launch.blockDim.x * launch.blockDim.y),
        launch.dynamicSmemBytes));
    ctas = std::min(ctas, int64_t{each} * device.multiprocessors);
  }
  launch.gridDim = dim3(static_cast<unsigned>(ctas));
  launch.stream = stream.get();
  launch.attrs = &attribute;
  launch.numAttrs = options.overlap && traits.may_overlap ? 1 : 0;
  QuantizeParams params = ParamsOf(args);
  void* kernel_args[] = {&params};
  NIBBLE_CUDA_CHECK(cudaLaunchKernelExC(&launch, kernel, kernel_args));
}

}  // namespace nibble::kernels::cuda
