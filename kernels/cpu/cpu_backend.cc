#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_count.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/sampling.h"
#include "kernels/cpu/weight_arena.h"
#include "kernels/host_buffer.h"
#include "kernels/scoped_timer.h"

namespace nibble::kernels {
namespace cpu {
namespace {

// Elements of rows that one task takes: some 3 microseconds' work, so that a
// lone row stays on the engine thread, and a batch's rows do not.
constexpr int64_t kElementsPerTask = 1 << 12;

// Owned by the loader; engine thread only after load (its ops may be called
// from one thread at a time).
class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<ThreadPool> pool, CpuTarget target)
      : pool_(std::move(pool)), target_(target), samplers_(pool_->threads()) {}

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    return absl::StrCat(std::string(TargetName(target_)), ", ",
                        pool_->threads(),
                        pool_->threads() == 1 ? " thread" : " threads");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return AllocateHostBuffer(bytes);
  }

  absl::StatusOr<std::unique_ptr<LinearOp>> MakeLinear(
      std::span<const WeightView> parts,
      const LinearOptions& options) override {
    NIBBLE_ASSIGN_OR_RETURN(
        std::unique_ptr<CpuLinear> op,
        CpuLinear::Create(parts, options,
                          {.pool = pool_.get(),
                           .arena = &arena_,
                           .tiles = &float_tiles_,
                           .plans = &plans_,
                           .target = target_,
                           .linear_seconds = &timings_.linear_seconds}));
    ActivationUse& use = use_[op->k()];
    use.codes = use.codes || op->use().codes;
    use.floats = use.floats || op->use().floats;
    return op;
  }

  absl::StatusOr<std::unique_ptr<Activations>> MakeActivations(
      int64_t max_rows, int64_t k) override {
    return CpuActivations::Create(max_rows, k, &use_[k]);
  }

  DType kv_dtype() const override { return DType::kF16; }

  void BeginStep(const StepLayout& layout) override {
    NIBBLE_CHECK_EQ(static_cast<size_t>(layout.rows), layout.positions.size());
    NIBBLE_CHECK_EQ(static_cast<size_t>(layout.rows), layout.slots.size());
    NIBBLE_CHECK_EQ(layout.row_begin.size(), layout.page_begin.size());
    NIBBLE_CHECK(!layout.row_begin.empty());
    NIBBLE_CHECK_EQ(layout.row_begin.back(), layout.rows);
    layout_ = layout;
    rope_.Clear();
    attention_planned_ = false;
  }

  void RmsNorm(TensorView x, const float* weight, float eps,
               Activations* out) override {
    CpuActivations* to = Output(out, x.rows, x.cols);
    ForRows(x.rows, x.cols, [&](int64_t row) {
      RmsNormRow(x.RowF32(row), weight, eps, x.cols, RowOf(to, row));
    });
  }

  void RopeAndWriteKv(TensorView q, TensorView k, TensorView v,
                      const RopeParams& rope, const KvLayerView& kv) override {
    NIBBLE_CHECK(kv.dtype == DType::kF16);
    NIBBLE_CHECK_EQ(q.rows, layout_.rows);
    NIBBLE_CHECK_EQ(q.cols % kv.head_dim, 0);
    const int64_t width = int64_t{kv.kv_heads} * kv.head_dim;
    NIBBLE_CHECK_EQ(k.cols, width);
    NIBBLE_CHECK_EQ(v.cols, width);
    NIBBLE_CHECK_LE(2 * rope.inverse_frequency.size(),
                    static_cast<size_t>(kv.head_dim));
    const auto heads = static_cast<int32_t>(q.cols / kv.head_dim);
    rope_.Prepare(rope, layout_.positions, *pool_);
    ForRows(q.rows, q.cols + 2 * width, [&](int64_t row) {
      const RopeRow turn = rope_.Row(row);
      ApplyRope(turn, heads, kv.head_dim, q.RowF32(row));
      ApplyRope(turn, kv.kv_heads, kv.head_dim, k.RowF32(row));
      const int64_t at = layout_.slots[row] * width;
      StoreHalves(k.RowF32(row), width, static_cast<uint16_t*>(kv.k) + at);
      StoreHalves(v.RowF32(row), width, static_cast<uint16_t*>(kv.v) + at);
    });
  }

  void Attention(TensorView q, const KvLayerView& kv,
                 const AttentionShape& shape, Activations* out) override {
    if (q.rows == 0) return;
    const ScopedTimer timer(&timings_.attention_seconds);
    NIBBLE_CHECK(kv.dtype == DType::kF16);
    NIBBLE_CHECK_EQ(q.rows, layout_.rows);
    NIBBLE_CHECK_EQ(q.cols, int64_t{shape.heads} * shape.head_dim);
    NIBBLE_CHECK_EQ(shape.heads % shape.kv_heads, 0);
    CpuActivations* to = Output(out, q.rows, q.cols);
    RunAttentionJobs(q, kv, shape, to);
    if (!to->use().codes) return;
    ForRows(q.rows, q.cols, [&](int64_t row) {
      EncodeRow(to->FloatRow(row), q.cols,
                {.codes = to->Quad(row / kQuad),
                 .lane = static_cast<int>(row % kQuad)});
    });
  }

  void SiluMul(TensorView gate_up, Activations* out) override {
    NIBBLE_CHECK_EQ(gate_up.cols % 2, 0);
    const int64_t f = gate_up.cols / 2;
    CpuActivations* to = Output(out, gate_up.rows, f);
    // An exponential an element costs as much as four loads and stores.
    ForRows(gate_up.rows, 2 * gate_up.cols, [&](int64_t row) {
      SiluMulRow(gate_up.RowF32(row), f, RowOf(to, row));
    });
  }

  void CopyRows(TensorView x, std::span<const int32_t> rows,
                TensorView out) override {
    NIBBLE_CHECK_EQ(out.rows, static_cast<int64_t>(rows.size()));
    NIBBLE_CHECK_EQ(out.cols, x.cols);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(x.RowF32(rows[i]), x.cols,
                  out.RowF32(static_cast<int64_t>(i)));
    }
  }

  void Sample(TensorView logits, std::span<const SampleRow> rows,
              std::span<SampleResult> results) override {
    NIBBLE_CHECK_EQ(logits.rows, static_cast<int64_t>(rows.size()));
    NIBBLE_CHECK_EQ(rows.size(), results.size());
    pool_->ParallelFor(logits.rows, [&](int64_t i, int worker) {
      const std::span<const float> row(logits.RowF32(i),
                                       static_cast<size_t>(logits.cols));
      SampleOne(row, rows[i], &samplers_[worker], &results[i]);
    });
  }

  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void CopyToHost(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }

  Timings TakeTimings() override { return std::exchange(timings_, {}); }

 private:
  static CpuActivations* Output(Activations* out, int64_t rows, int64_t k) {
    NIBBLE_CHECK_LE(rows, out->max_rows());
    NIBBLE_CHECK_EQ(k, out->k());
    return static_cast<CpuActivations*>(out);
  }

  static RowOut RowOf(CpuActivations* to, int64_t row) {
    RowOut out{.lane = static_cast<int>(row % kQuad)};
    if (to->use().codes) out.codes = to->Quad(row / kQuad);
    if (to->use().floats) out.floats = to->FloatRow(row);
    return out;
  }

  // Calls body(row) for each row; `elements` say how much work a row is.
  template <typename Body>
  void ForRows(int64_t rows, int64_t elements, const Body& body) {
    const int64_t rows_per_task =
        std::max<int64_t>(kElementsPerTask / std::max<int64_t>(elements, 1), 1);
    pool_->ParallelFor(DivideUp(rows, rows_per_task), [&](int64_t task, int) {
      const int64_t end = std::min(rows, (task + 1) * rows_per_task);
      for (int64_t row = task * rows_per_task; row < end; ++row) body(row);
    });
  }

  void RunAttentionJobs(TensorView q, const KvLayerView& kv,
                        const AttentionShape& shape, CpuActivations* to) {
    const int32_t group = shape.heads / shape.kv_heads;
    if (!attention_planned_) {
      // Once a step: all layers have the same shape.
      attention_.Make(layout_, shape.kv_heads, group, pool_->threads());
      attention_planned_ = true;
    }
    const int64_t scratch_floats = RoundUp<int64_t>(
        AttentionScratch(shape.head_dim, std::max(kTileQueries, shape.heads)),
        16);
    const int64_t state_floats =
        RoundUp<int64_t>(AttentionSums(shape.head_dim, shape.heads), 16);
    EnsureScratch(scratch_floats * pool_->threads() +
                  state_floats * attention_.states());
    auto* scratch = reinterpret_cast<float*>(scratch_.data());
    float* states = scratch + scratch_floats * pool_->threads();
    AttentionJob all{.tile = {},
                     .kv_heads = shape.kv_heads,
                     .group = group,
                     .scale = shape.scale,
                     .head_dim = shape.head_dim,
                     .kv = kv,
                     .q = q,
                     .out = to->FloatRow(0),
                     .out_stride = to->float_stride()};
    const auto sums_of = [&](const AttentionWalk& walk) {
      return BlockSums{.sums = states + walk.state * state_floats,
                       .stride = state_floats,
                       .heads = shape.heads};
    };
    const std::span<const AttentionWalk> walks = attention_.walks();
    const auto tasks = static_cast<int64_t>(walks.size());
    pool_->ParallelFor(tasks, [&](int64_t i, int worker) {
      const AttentionWalk& walk = walks[i];
      AttentionJob job = all;
      job.tile = attention_.tile(walk);
      job.first_kv_head = walk.first_kv_head;
      job.kv_heads = walk.kv_heads;
      float* own = scratch + worker * scratch_floats;
      if (!walk.shared()) return RunAttention(job, own);
      RunAttentionBlocks(job, walk.first, walk.last, own, sums_of(walk));
    });
    for (const AttentionWalk& walk : walks) {
      if (!walk.shared() || !walk.first_of_row()) continue;
      all.tile = attention_.tile(walk);
      MergeAttentionBlocks(all, sums_of(walk));
    }
  }

  // Scratch memory only grows, and by more than half, as contexts do slowly.
  void EnsureScratch(int64_t floats) {
    const auto bytes = floats * static_cast<int64_t>(sizeof(float));
    if (scratch_.size_bytes() >= bytes) return;
    absl::StatusOr<HostMemory> memory =
        HostMemory::Allocate(bytes + scratch_.size_bytes() / 2);
    NIBBLE_CHECK(memory.ok());
    scratch_ = *std::move(memory);
  }

  std::shared_ptr<ThreadPool> pool_;
  CpuTarget target_;
  WeightArena arena_;
  HostMemory float_tiles_;  // of the layer that runs
  LinearPlans plans_;
  // By k; a map because activations keep pointers to its elements.
  std::map<int64_t, ActivationUse> use_;
  StepLayout layout_;  // borrowed from BeginStep to the end of the step
  RopeTable rope_;
  AttentionPlan attention_;
  bool attention_planned_ = false;  // in this step
  HostMemory scratch_;  // one part for each thread, then the plan's states
  std::vector<reference::Sampler> samplers_;  // [threads]
  Timings timings_;
};

}  // namespace
}  // namespace cpu

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(
    const CpuOptions& options) {
  constexpr int kMostThreads = 1024;
  if (options.threads < 0 || options.threads > kMostThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; it must be 0 (all) to ",
                     kMostThreads));
  }
  std::shared_ptr<cpu::ThreadPool> pool = options.pool;
  if (pool == nullptr) {
    pool = std::make_shared<cpu::ThreadPool>(
        options.threads > 0 ? options.threads : cpu::UsableCpus());
  }
  return std::make_unique<cpu::CpuBackend>(std::move(pool),
                                           cpu::BestTarget(options.max_target));
}

}  // namespace nibble::kernels
