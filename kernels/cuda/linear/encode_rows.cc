#include "kernels/cuda/linear/encode_rows.h"

#include "base/check.h"
#include "kernels/cuda/linear/cuda_activations.h"
#include "kernels/cuda/linear/w8a8_layout.h"
#include "kernels/cuda/quantize/quantize.h"

namespace nibble::kernels::cuda {

EncodedRows EncodeRows(const LinearCall& call, WidePacking packing, int64_t k,
                       std::byte* codes, float* scales,
                       const CudaLinearContext& context) {
  const auto& x = static_cast<const CudaActivations&>(*call.x);
  if (x.codes() != WidePacking::kNone) {
    NIBBLE_CHECK(x.codes() == packing);
    return {x.CodeRow(call.row_begin), x.Scales(call.row_begin)};
  }
  LaunchQuantize(
      {.op = QuantizeOp::kPlain,
       .dtype = x.dtype(),
       .x = x.Row(call.row_begin),
       .ldx = x.pitch(),
       .m = call.y.rows,
       .k = k,
       .code = packing == WidePacking::kInt8 ? QuantizeCode::kInt8Token
                                             : QuantizeCode::kFp8Token,
       .codes = codes,
       .ldc = W8Pitch(k),
       .scales = scales},
      context.device, *context.stream, {.overlap = context.overlap});
  return {codes, scales};
}

}  // namespace nibble::kernels::cuda
