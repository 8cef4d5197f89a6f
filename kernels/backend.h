// The operations a model is made of, and the device they run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear.h"
#include "kernels/sampling.h"
#include "kernels/tensor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels {

// Memory of a backend. Owned by whoever asked for it; freed with it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual int64_t size_bytes() const = 0;
};

// The rotary embedding of a model (Su et al., RoFormer, arXiv:2104.09864):
// pair i of a head turns by position * inverse_frequency[i]. The vector
// already holds whatever scaling the checkpoint asks for.
struct RopeParams {
  std::vector<float> inverse_frequency;  // [rotary_dims / 2]
  // kAdjacent pairs elements (2i, 2i + 1) (GGUF's llama), kHalves pairs
  // (i, i + rotary_dims / 2) (Qwen2, NeoX).
  enum class Pairing : uint8_t {
    kAdjacent,
    kHalves
  } pairing = Pairing::kAdjacent;
  float attention_factor = 1.0f;  // multiplies cos and sin (YaRN), else 1
};

// One layer's pages of keys and values. Borrowed from the KvCache. By value.
// Element (page p, slot s, head h, dim d) of K is at
// ((p * page_size + s) * kv_heads + h) * head_dim + d.
struct KvLayerView {
  void* k = nullptr;  // [pages, page_size, kv_heads, head_dim]
  void* v = nullptr;  // [pages, page_size, kv_heads, head_dim]
  DType dtype = DType::kF16;
  int32_t page_size = 0;  // tokens
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
};

// How the rows of one step belong to sequences. Borrowed from the Batch, host
// memory, valid from BeginStep to the end of the step.
//
// Rows [0, decode_rows) are generated tokens, [decode_rows, rows) prompt
// tokens. Sequence s owns rows [row_begin[s], row_begin[s + 1]), which stand
// at ascending consecutive positions; its pages are
// page_ids[page_begin[s] .. page_begin[s + 1]), in order of position.
struct StepLayout {
  int32_t rows = 0;
  int32_t decode_rows = 0;
  std::span<const int32_t> positions;   // [rows], position in the sequence
  std::span<const int64_t> slots;       // [rows], page * page_size + offset
  std::span<const int32_t> row_begin;   // [sequences + 1]
  std::span<const int32_t> page_begin;  // [sequences + 1]
  std::span<const int32_t> page_ids;
};

struct AttentionShape {
  int32_t heads = 0;  // query heads, a multiple of kv_heads
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0;  // of q k, usually head_dim^-0.5
};

// A device and its kernels. Owned by the model's loader and shared by what it
// made; every method that computes is called by one engine thread. Nothing
// here fails after load: what an input can break was checked before.
//
// All ops work on `rows` rows of the step announced by BeginStep. Each row's
// result is the same bits whatever other rows the step has.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "cpu", "reference", "cuda"
  // One line about the device, e.g. "AVX-512 VNNI, 2 threads".
  virtual std::string description() const = 0;

  // Zero-filled memory; RESOURCE_EXHAUSTED when there is not enough.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) = 0;

  // Prepares the matrices `parts`, all of the same k, stacked along n.
  // INVALID_ARGUMENT names a tensor whose format or shape it cannot run.
  virtual absl::StatusOr<std::unique_ptr<LinearOp>> MakeLinear(
      std::span<const WeightView> parts, const LinearOptions& options) = 0;

  virtual absl::StatusOr<std::unique_ptr<Activations>> MakeActivations(
      int64_t max_rows, int64_t k) = 0;

  // The element type KV pages are kept in.
  virtual DType kv_dtype() const = 0;

  // Announces the rows of a step; plans attention once for all layers.
  virtual void BeginStep(const StepLayout& layout) = 0;

  // out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, for rows of x [R, k];
  // weight [k], FP32, in the backend's memory.
  virtual void RmsNorm(TensorView x, const float* weight, float eps,
                       Activations* out) = 0;

  // Turns q [R, heads * head_dim] in place, turns k [R, kv_heads * head_dim]
  // and writes k and v to their slots.
  virtual void RopeAndWriteKv(TensorView q, TensorView k, TensorView v,
                              const RopeParams& rope,
                              const KvLayerView& kv) = 0;

  // Causal attention of q [R, heads * head_dim] over each row's own sequence,
  // positions 0 to its own, keys and values from the pages.
  virtual void Attention(TensorView q, const KvLayerView& kv,
                         const AttentionShape& shape, Activations* out) = 0;

  // out[r, i] = silu(gate_up[r, i]) * gate_up[r, f + i], gate_up [R, 2 f].
  virtual void SiluMul(TensorView gate_up, Activations* out) = 0;

  // out[i, :] = x[rows[i], :]: the rows whose logits are wanted.
  virtual void CopyRows(TensorView x, std::span<const int32_t> rows,
                        TensorView out) = 0;

  // Chooses a token for each row of logits [rows.size(), vocab].
  virtual void Sample(TensorView logits, std::span<const SampleRow> rows,
                      std::span<SampleResult> results) = 0;

  // Copies between host memory and a Buffer's.
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;

  // Where the time went since the last call, by activity, for the metrics.
  struct Timings {
    double quantize_seconds = 0;  // activation quantization, where separate
    double attention_seconds = 0;
    double linear_seconds = 0;
  };
  virtual Timings TakeTimings() = 0;
};

}  // namespace nibble::kernels
