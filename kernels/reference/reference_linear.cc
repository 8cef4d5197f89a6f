#include "kernels/reference/reference_linear.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "kernels/reference/dequant.h"
#include "kernels/reference/ops.h"

namespace nibble::kernels::reference {
namespace {

// Zero-filled floats [rows, cols], or RESOURCE_EXHAUSTED naming `what`.
absl::StatusOr<std::unique_ptr<float[]>> MakeFloats(int64_t rows, int64_t cols,
                                                    const std::string& what) {
  const std::optional<int64_t> count = CheckedMul(rows, cols);
  float* data = nullptr;
  if (count.has_value() && *count <= std::numeric_limits<int64_t>::max() / 8) {
    data = new (std::nothrow) float[static_cast<size_t>(*count)]();
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what, ": cannot allocate ", rows, " x ", cols, " floats"));
  }
  return std::unique_ptr<float[]>(data);
}

absl::Status CheckPart(const WeightView& part, int64_t k) {
  const std::string name(part.name);
  if (part.n <= 0 || part.k <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": shape [",
                                                   part.n, ", ", part.k,
                                                   "] has no elements"));
  }
  if (part.k != k) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, ": ", part.k,
                     " columns, but the tensors stacked with it have ", k));
  }
  if (!IsBlockFormat(part.format)) return CheckWeight(part);
  const int block = Info(part.format).block_elements;
  if (part.k % block != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", name, ": ", part.k, " columns are not a multiple of ", block,
        ", the block of ", std::string(Name(part.format))));
  }
  return absl::OkStatus();
}

// y = x W^T with W in FP32. Owned by the model; immutable after load; Run is
// called by the engine thread.
class ReferenceLinear final : public LinearOp {
 public:
  ReferenceLinear(int64_t n, int64_t k, std::unique_ptr<float[]> weights,
                  const LinearOptions& options, int threads)
      : n_(n),
        k_(k),
        weights_(std::move(weights)),
        gather_(options.gather),
        multiply_(options.multiply),
        threads_(threads),
        plan_({{.max_rows = std::max<int64_t>(options.max_rows, 1),
                .spec = {.kernel = "dot_f64"}}}) {
    if (options.bias != nullptr) bias_.assign(options.bias, options.bias + n);
  }

  int64_t n() const override { return n_; }
  int64_t k() const override { return k_; }
  int64_t packed_bytes() const override {
    return n_ * k_ * static_cast<int64_t>(sizeof(float));
  }
  const LinearPlan& plan() const override { return plan_; }

  void Run(const LinearCall& call) const override {
    NIBBLE_CHECK(multiply_);
    const auto* x = static_cast<const FloatActivations*>(call.x);
    NIBBLE_CHECK_EQ(x->k(), k_);
    NIBBLE_CHECK_EQ(call.y.cols, n_);
    NIBBLE_CHECK(call.y.dtype == DType::kF32);
    NIBBLE_CHECK_LE(call.row_begin + call.y.rows, x->max_rows());
    if (call.y.rows == 0) return;
    // Converted once, not for each row of W.
    const float* first = x->Row(call.row_begin);
    const std::vector<double> wide(first, first + call.y.rows * k_);
    const int64_t share = DivideUp<int64_t>(n_, threads_);
    std::vector<std::jthread> workers;
    for (int64_t begin = share; begin < n_; begin += share) {
      workers.emplace_back([this, &call, &wide, begin, share] {
        RunColumns(call, wide, begin, std::min(begin + share, n_));
      });
    }
    RunColumns(call, wide, 0, std::min(share, n_));
  }

  void GatherRows(std::span<const int32_t> ids, TensorView y) const override {
    NIBBLE_CHECK(gather_);
    NIBBLE_CHECK_EQ(y.cols, k_);
    NIBBLE_CHECK_EQ(y.rows, static_cast<int64_t>(ids.size()));
    for (size_t i = 0; i < ids.size(); ++i) {
      NIBBLE_CHECK(ids[i] >= 0 && ids[i] < n_);
      std::copy_n(weights_.get() + ids[i] * k_, k_,
                  y.RowF32(static_cast<int64_t>(i)));
    }
  }

 private:
  // Columns [begin, end) of y; x is the call's rows in FP64 [rows, k].
  void RunColumns(const LinearCall& call, const std::vector<double>& x,
                  int64_t begin, int64_t end) const {
    std::vector<double> weight(static_cast<size_t>(k_));
    for (int64_t column = begin; column < end; ++column) {
      std::copy_n(weights_.get() + column * k_, k_, weight.begin());
      const double bias = bias_.empty() ? 0.0 : bias_[column];
      for (int64_t row = 0; row < call.y.rows; ++row) {
        const double sum = Dot(x.data() + row * k_, weight.data(), k_) + bias;
        float& y = call.y.RowF32(row)[column];
        y = static_cast<float>(call.epilogue == Epilogue::kAdd
                                   ? static_cast<double>(y) + sum
                                   : sum);
      }
    }
  }

  int64_t n_;
  int64_t k_;
  std::unique_ptr<float[]> weights_;  // [n, k]
  std::vector<double> bias_;          // [n] or empty
  bool gather_;
  bool multiply_;
  int threads_;
  LinearPlan plan_;
};

}  // namespace

FloatActivations::FloatActivations(int64_t max_rows, int64_t k,
                                   std::unique_ptr<float[]> data)
    : Activations(max_rows, k), data_(std::move(data)) {}

absl::StatusOr<std::unique_ptr<FloatActivations>> FloatActivations::Create(
    int64_t max_rows, int64_t k) {
  NIBBLE_CHECK(max_rows > 0 && k > 0);
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<float[]> data,
                          MakeFloats(max_rows, k, "activations"));
  return std::unique_ptr<FloatActivations>(
      new FloatActivations(max_rows, k, std::move(data)));
}

float* FloatActivations::Row(int64_t row) {
  NIBBLE_DCHECK(row >= 0 && row < max_rows());
  return data_.get() + row * k();
}

const float* FloatActivations::Row(int64_t row) const {
  NIBBLE_DCHECK(row >= 0 && row < max_rows());
  return data_.get() + row * k();
}

absl::StatusOr<std::unique_ptr<LinearOp>> MakeReferenceLinear(
    std::span<const WeightView> parts, const LinearOptions& options,
    int threads) {
  NIBBLE_CHECK(!parts.empty());
  NIBBLE_CHECK_GE(threads, 1);
  if (options.silu_mul) {
    return absl::UnimplementedError(absl::StrCat(
        "linear layer ", options.name, ": the reference does not fuse SiLU"));
  }
  if (options.wide != WidePacking::kNone) {
    return absl::UnimplementedError(
        absl::StrCat("linear layer ", options.name,
                     ": the reference has one packing for all paths"));
  }
  const int64_t k = parts.front().k;
  int64_t n = 0;
  for (const WeightView& part : parts) {
    NIBBLE_RETURN_IF_ERROR(CheckPart(part, k));
    const std::optional<int64_t> sum = CheckedAdd(n, part.n);
    if (!sum.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", std::string(part.name), ": too many rows, ", part.n));
    }
    n = *sum;
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<float[]> weights,
                          MakeFloats(n, k, options.name));
  float* out = weights.get();
  for (const WeightView& part : parts) {
    for (int64_t row = 0; row < part.n; ++row, out += k) {
      DequantizeRow(part, row, out);
    }
  }
  return std::make_unique<ReferenceLinear>(n, k, std::move(weights), options,
                                           threads);
}

}  // namespace nibble::kernels::reference
