// What a linear layer's input is made from: the hidden state before a norm.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/activation_codes.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/quantize/quantize.h"
#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"

namespace nibble::bench {

// Random hidden states [max_m, k] of 16 bits and a norm's weights, with room
// for what RMSNorm makes of them: 16-bit numbers, and 8-bit codes with scales.
// Move-only; whoever holds it owns the memory.
class HiddenStates final {
 public:
  // k is a multiple of 8 up to kMaxNormK; dtype kBF16 or kF16.
  static absl::StatusOr<HiddenStates> Make(kernels::DType dtype, int64_t max_m,
                                           int64_t k,
                                           const kernels::cuda::Stream& stream);

  // Enqueue for m rows: 16-bit numbers of the hidden states; codes of those
  // numbers; codes of the hidden states, fused. `overlap` is programmatic
  // dependent launch.
  void Norm(int64_t m, bool overlap, const kernels::cuda::Stream& stream) const;
  void Quantize(kernels::cuda::QuantizeCode code, int64_t m, bool overlap,
                const kernels::cuda::DeviceInfo& device,
                const kernels::cuda::Stream& stream) const;
  void NormAndQuantize(kernels::cuda::QuantizeCode code, int64_t m,
                       bool overlap, const kernels::cuda::DeviceInfo& device,
                       const kernels::cuda::Stream& stream) const;

  const void* hidden() const { return hidden_.data(); }  // [max_m, k]
  const void* normed() const { return normed_.data(); }  // [max_m, k]
  const void* codes() const { return codes_.data(); }    // [max_m, k]
  // [m], or [k / 128, BlockScalePitch(m)]
  const float* scales() const { return scales_.as<float>(); }

  // A row on the host, FP64, of hidden states as they are and after the norm.
  std::vector<double> HiddenRow(int64_t row) const;
  std::vector<double> NormedRow(int64_t row) const;

 private:
  kernels::cuda::QuantizeArgs Args(kernels::cuda::QuantizeCode code,
                                   int64_t m) const;

  kernels::DType dtype_ = kernels::DType::kBF16;
  int64_t k_ = 0;
  kernels::cuda::DeviceBuffer hidden_, normed_, codes_, scales_, weight_;
  std::vector<uint16_t> host_hidden_;  // [max_m, k], bits of dtype_
  std::vector<float> host_weight_;     // [k]
};

}  // namespace nibble::bench
