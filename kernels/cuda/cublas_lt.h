// cuBLASLt's matrix multiplication, from a library that is opened when it is
// first wanted: linked, its 94 KB of static TLS would break libraries that
// start threads with small stacks, and the binary would not start without it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"

struct CUstream_st;  // cudaStream_t

namespace nibble::kernels::cuda {

// FP8 operands (E4M3): scales in device memory, and how products are summed.
// By value.
struct CublasLtFp8 {
  enum class Scales : uint8_t {
    kTensor,  // [1] and [1]
    kRow,     // [m] and [n]
    // x: [k / 128, m], w: [ceil(n / 128), k / 128]; 4 divides both rows'
    // lengths
    kBlock,
  };
  enum class Sums : uint8_t {
    kDefault,  // partial sums are added in FP32
    kFast,     // all in the tensor cores' accumulators; not with kBlock
  };
  Scales scales = Scales::kTensor;
  Sums sums = Sums::kDefault;
  const float* x_scales = nullptr;
  const float* w_scales = nullptr;
};

// y[m, n] = x[m, k] w[n, k]^T, rows contiguous and without gaps, sums in FP32
// (INT32 for INT8). By value.
struct CublasLtProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType input = DType::kBF16;   // x and w: kBF16, kF16 or kI8
  DType output = DType::kBF16;  // y: as input, or kF32; kI32 for kI8
  std::optional<CublasLtFp8> fp8 = std::nullopt;  // x and w are these instead
};

// The opened library with a handle and workspace of the current device.
// Move-only; whoever holds it owns them. The library stays open until the
// process ends. One stream uses it at a time.
class CublasLt final {
 public:
  // `path`: the library, or a folder that holds it; empty: where the loader
  // finds libcublasLt.so.13 or .12. NOT_FOUND with the loader's words.
  static absl::StatusOr<CublasLt> Open(const std::string& path = "");
  CublasLt(CublasLt&&) noexcept;
  CublasLt& operator=(CublasLt&&) noexcept;
  ~CublasLt();

  int64_t version() const;  // e.g. 130100

 private:
  friend class CublasLtMatmul;
  struct State;
  explicit CublasLt(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The ways that cuBLASLt offers for one problem, the one it thinks fastest
// first. Move-only; uses the CublasLt it was made from, which outlives it.
class CublasLtMatmul final {
 public:
  // At most `max_algorithms` ways; NOT_FOUND if there is none.
  static absl::StatusOr<CublasLtMatmul> Make(const CublasLt& library,
                                             const CublasLtProblem& problem,
                                             int max_algorithms);
  CublasLtMatmul(CublasLtMatmul&&) noexcept;
  CublasLtMatmul& operator=(CublasLtMatmul&&) noexcept;
  ~CublasLtMatmul();

  int algorithms() const;
  // Device memory, 256-byte aligned. Enqueues the multiplication.
  absl::Status Run(int algorithm, const void* x, const void* w, void* y,
                   CUstream_st* stream) const;

 private:
  struct State;
  explicit CublasLtMatmul(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble::kernels::cuda
