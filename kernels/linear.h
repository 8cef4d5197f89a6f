// Linear layers: one prepared weight matrix, and the plan that says which
// kernel runs it for how many rows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "kernels/weight_view.h"

namespace nibble::kernels {

// Which family of kernels a row of activations takes (design, "Routing by
// M"): decode rows the narrow one, prompt rows the wide one.
enum class LinearPath : uint8_t { kNarrow, kWide };

// The second packing of a matrix, that the wide path runs on.
enum class WidePacking : uint8_t {
  kNone,  // there is none: the wide path runs on the narrow packing
  // In 8 bits, a scale for each row of W.
  kInt8,
  kE4m3,  // FP8
  // The 4-bit codes and their scales as they are, in half of the memory;
  // activations are INT8.
  kInt4,
};

// One way to run one linear layer: printable, comparable, no pointers. What
// the numbers mean is the backend's business.
struct LaunchSpec {
  LinearPath path = LinearPath::kNarrow;
  std::string kernel;  // e.g. "gemv_q8", "gemm_q8_4x16"
  int tile_m = 0;      // rows of x a tile covers
  int tile_n = 0;      // rows of W a tile covers
  int split_k = 1;
  int stages = 1;
  std::string variant = {};  // of the kernel, e.g. "shared"; "": the only one

  bool operator==(const LaunchSpec&) const = default;
  std::string ToString() const;
  // Reads what ToString printed. INVALID_ARGUMENT names what it cannot read.
  static absl::StatusOr<LaunchSpec> Parse(std::string_view text);
};

// For each number of rows M the LaunchSpec to use: sorted buckets, built when
// the model loads (feasible candidates, timed on the device), never changed
// during a request. Immutable afterwards, thread-safe.
class LinearPlan final {
 public:
  struct Bucket {
    int64_t max_rows = 0;  // this bucket serves M <= max_rows
    LaunchSpec spec;
    double us = 0;  // measured at load; 0 when not measured
  };

  LinearPlan() = default;
  // Buckets sorted by max_rows, strictly rising; the last serves any M above.
  explicit LinearPlan(std::vector<Bucket> buckets);

  // The spec for `rows` >= 1. The plan must not be empty.
  const LaunchSpec& ForRows(int64_t rows) const;
  std::span<const Bucket> buckets() const { return buckets_; }
  // One line: "1..8 narrow:gemv | 9.. wide:gemm_4x16".
  std::string ToString() const;
  // Reads what ToString printed; the last bucket has no end. INVALID_ARGUMENT
  // names what it cannot read.
  static absl::StatusOr<LinearPlan> Parse(std::string_view text);

 private:
  std::vector<Bucket> buckets_;
};

// The input of linear layers, [rows, k], in whatever encoding the backend's
// kernels read (FP32; 8-bit codes with scales and block sums; BF16). Written
// by RmsNorm, SiluMul and Attention, so that quantization is fused into the
// operation before. Owned by the model, used by the engine thread only.
class Activations {
 public:
  virtual ~Activations() = default;
  int64_t max_rows() const { return max_rows_; }
  int64_t k() const { return k_; }

 protected:
  Activations(int64_t max_rows, int64_t k) : max_rows_(max_rows), k_(k) {}

 private:
  int64_t max_rows_;
  int64_t k_;
};

// What happens to a product before it is stored.
enum class Epilogue : uint8_t {
  kStore,  // y = x W^T + bias
  kAdd,    // y += x W^T + bias (the residual stream)
};

// One matrix multiplication: rows [row_begin, row_begin + y.rows) of x.
struct LinearCall {
  const Activations* x = nullptr;
  int64_t row_begin = 0;
  TensorView y;  // [rows, n], FP32 on the CPU
  Epilogue epilogue = Epilogue::kStore;
  LinearPath path = LinearPath::kNarrow;
};

struct LinearOptions {
  std::string name;             // for logs and plans, e.g. "blk.0.attn_qkv"
  const float* bias = nullptr;  // [n] of all parts stacked, or null; copied
  // A token embedding: GatherRows will be called, Run only when `tied`.
  bool gather = false;
  bool multiply = true;
  // The parts are gate and up, of f rows each, and Run stores
  // silu(x gate^T) * (x up^T), [rows, f]: n() is f. No bias, kStore only.
  // UNIMPLEMENTED where a backend has no such kernel.
  bool silu_mul = false;
  // UNIMPLEMENTED where a backend, or its device, has no kernels for it; not
  // together with silu_mul.
  WidePacking wide = WidePacking::kNone;
  int64_t max_rows = 512;  // the largest M that Run will see
};

// One weight matrix W[n, k] prepared for a backend (repacked at load). May be
// made of several matrices stacked along n (q, k and v; gate and up) that run
// in one launch. Owned by the model; immutable after load; Run is called by
// the engine thread only.
//
// The result of a row is the same bits whatever the other rows of the call
// are, how many there are, and how many threads work.
class LinearOp {
 public:
  virtual ~LinearOp() = default;

  virtual int64_t n() const = 0;
  virtual int64_t k() const = 0;
  // Bytes of prepared weights this op owns (not those of the mapped file).
  virtual int64_t packed_bytes() const = 0;
  virtual const LinearPlan& plan() const = 0;
  // The plan of the wide packing, or null where there is none.
  virtual const LinearPlan* wide_plan() const { return nullptr; }

  // M = 0 is a no-op.
  virtual void Run(const LinearCall& call) const = 0;

  // y[i, :] = W[ids[i], :], dequantized, [ids.size(), k]. Needs
  // LinearOptions::gather; ids are host memory, each in [0, n).
  virtual void GatherRows(std::span<const int32_t> ids, TensorView y) const = 0;
};

}  // namespace nibble::kernels
