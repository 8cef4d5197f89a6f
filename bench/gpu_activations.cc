#include "bench/gpu_activations.h"

#include <cmath>
#include <span>

#include "base/checked_math.h"
#include "base/status.h"
#include "bench/gpu_probes.h"
#include "bench/norm_kernel.h"
#include "kernels/reference/half.h"

namespace nibble::bench {

using kernels::DType;
using kernels::cuda::DeviceBuffer;
using kernels::cuda::DeviceInfo;
using kernels::cuda::QuantizeArgs;
using kernels::cuda::QuantizeCode;
using kernels::cuda::QuantizeOp;
using kernels::cuda::Stream;

namespace {

constexpr float kEps = 1e-5f;

// From 0.5 to 1.5, in no order.
std::vector<float> NormWeights(int64_t k) {
  std::vector<float> weights(k);
  for (int64_t i = 0; i < k; ++i) {
    weights[i] = 0.5f + static_cast<float>(i * 37 % 101) / 101;
  }
  return weights;
}

}  // namespace

absl::StatusOr<HiddenStates> HiddenStates::Make(DType dtype, int64_t max_m,
                                                int64_t k,
                                                const Stream& stream) {
  HiddenStates made;
  made.dtype_ = dtype;
  made.k_ = k;
  made.host_weight_ = NormWeights(k);
  made.host_hidden_.resize(max_m * k);
  const int64_t blocks = DivideUp(k, kernels::kScaleBlock);
  NIBBLE_ASSIGN_OR_RETURN(made.hidden_, DeviceBuffer::Make(2 * max_m * k));
  NIBBLE_ASSIGN_OR_RETURN(made.normed_, DeviceBuffer::Make(2 * max_m * k));
  NIBBLE_ASSIGN_OR_RETURN(made.codes_, DeviceBuffer::Make(max_m * k));
  NIBBLE_ASSIGN_OR_RETURN(
      made.scales_,
      DeviceBuffer::Make(4 * kernels::BlockScalePitch(max_m) * blocks));
  NIBBLE_ASSIGN_OR_RETURN(made.weight_, DeviceBuffer::Make(4 * k));
  LaunchFillUniform(dtype, made.hidden_.data(), max_m * k,
                    {.low = -1, .high = 1}, 7, stream.get());
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(made.weight_.data(),
                                    made.host_weight_.data(), 4 * k,
                                    cudaMemcpyHostToDevice, stream.get()));
  NIBBLE_CUDA_CHECK(cudaMemcpyAsync(made.host_hidden_.data(),
                                    made.hidden_.data(), 2 * max_m * k,
                                    cudaMemcpyDeviceToHost, stream.get()));
  stream.Synchronize();
  return made;
}

void HiddenStates::Norm(int64_t m, bool overlap, const Stream& stream) const {
  LaunchNorm({.dtype = dtype_,
              .x = hidden_.data(),
              .weight = weight_.as<float>(),
              .eps = kEps,
              .y = normed_.data(),
              .m = m,
              .k = k_,
              .overlap = overlap},
             stream.get());
}

QuantizeArgs HiddenStates::Args(QuantizeCode code, int64_t m) const {
  return {.dtype = dtype_,
          .ldx = k_,
          .m = m,
          .k = k_,
          .code = code,
          .codes = codes_.data(),
          .ldc = k_,
          .scales = scales_.as<float>()};
}

void HiddenStates::Quantize(QuantizeCode code, int64_t m, bool overlap,
                            const DeviceInfo& device,
                            const Stream& stream) const {
  QuantizeArgs args = Args(code, m);
  args.x = normed_.data();
  LaunchQuantize(args, device, stream, {.overlap = overlap});
}

void HiddenStates::NormAndQuantize(QuantizeCode code, int64_t m, bool overlap,
                                   const DeviceInfo& device,
                                   const Stream& stream) const {
  QuantizeArgs args = Args(code, m);
  args.op = QuantizeOp::kNorm;
  args.x = hidden_.data();
  args.weight = weight_.as<float>();
  args.eps = kEps;
  LaunchQuantize(args, device, stream, {.overlap = overlap});
}

std::vector<double> HiddenStates::HiddenRow(int64_t row) const {
  std::vector<double> values;
  values.reserve(k_);
  for (const uint16_t bits : std::span(host_hidden_).subspan(row * k_, k_)) {
    values.push_back(dtype_ == DType::kF16
                         ? kernels::reference::HalfToFloat(bits)
                         : kernels::reference::BFloat16ToFloat(bits));
  }
  return values;
}

std::vector<double> HiddenStates::NormedRow(int64_t row) const {
  std::vector<double> values = HiddenRow(row);
  double squares = 0;
  for (const double value : values) squares += value * value;
  const double factor =
      1 / std::sqrt(squares / static_cast<double>(k_) + double{kEps});
  for (int64_t i = 0; i < k_; ++i) values[i] *= factor * host_weight_[i];
  return values;
}

}  // namespace nibble::bench
