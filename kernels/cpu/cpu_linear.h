// Linear layers of the CPU backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/activations.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/float_tiles.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/weight_arena.h"
#include "kernels/host_memory.h"
#include "kernels/linear.h"

namespace nibble::kernels::cpu {

// Repacked matrices stacked along n. Owned by the model; immutable after
// Create; Run is called by the engine thread only. The pool and the file's
// mapping (for GatherRows) outlive it.
class CpuLinear final : public LinearOp {
 public:
  struct Context {
    ThreadPool* pool = nullptr;
    WeightArena* arena = nullptr;  // used by Create only
    HostMemory* tiles = nullptr;   // for Run's own use; grown by Create
    LinearPlans* plans = nullptr;  // used by Create only
    CpuTarget target = CpuTarget::kPortable;
    double* linear_seconds = nullptr;  // Run adds its time
  };

  // INVALID_ARGUMENT names a tensor that does not fit: no parts, shapes that
  // differ in k, k no multiple of the format's block.
  static absl::StatusOr<std::unique_ptr<CpuLinear>> Create(
      std::span<const WeightView> parts, const LinearOptions& options,
      const Context& context);

  int64_t n() const override { return n_; }
  int64_t k() const override { return k_; }
  int64_t packed_bytes() const override { return weights_.size_bytes; }
  const LinearPlan& plan() const override { return plan_; }
  void Run(const LinearCall& call) const override;
  void GatherRows(std::span<const int32_t> ids, TensorView y) const override;

  // Which encodings of its input it reads.
  ActivationUse use() const;

 private:
  struct Part {
    WeightView weight;    // of the file
    PackedMatrix packed;  // in weights_
    int64_t first_column = 0;
    int64_t first_panel = 0;
    int ordered = kAsIs;  // which of ordered_ it reads
  };
  static constexpr int kAsIs = -1;  // the caller's activations
  // The input of parts in act-order: column c is column columns[c] of x.
  struct OrderedInput {
    std::vector<int32_t> columns;
    std::unique_ptr<CpuActivations> x;  // [max_rows, k], filled by each Run
  };
  // How the panels and the rows of one call are shared out; every task does
  // some panels for some quads of rows.
  struct Split {
    int64_t panels_per_task;
    int64_t panel_tasks;
    int64_t rows_per_task;
    int64_t row_tasks;
    LinearPath path;
    RowTail tail;
  };

  CpuLinear() = default;
  absl::Status AddPart(const WeightView& weight, const LinearOptions& options);
  absl::Status PackParts(const LinearOptions& options);
  absl::Status ReserveTiles(const LinearOptions& options);
  bool HasFloats() const;
  absl::StatusOr<int> FindOrder(const WeightView& weight,
                                const LinearOptions& options);
  std::span<const int32_t> OrderOf(const Part& part) const;
  // Rows of call.x into context_.tiles, if there are float weights.
  void PackTiles(const LinearCall& call) const;
  FloatTilesView TilesOf(const LinearCall& call) const;
  // Rows of call.x into ordered_.
  void OrderColumns(const LinearCall& call) const;
  Split SplitWork(int64_t rows) const;
  void RunTask(const LinearCall& call, const Split& split, int64_t task) const;
  // Rows of call.y, and how they are taken.
  struct RowRange {
    int64_t begin;
    int64_t end;
    LinearPath path;
    RowTail tail;  // what becomes of those after the last whole quad
  };
  // Columns of one panel.
  void RunPanel(const LinearCall& call, const Part& part, int64_t panel,
                const RowRange& rows) const;
  void IntegerTiles(const LinearCall& call, const Part& part, int64_t panel,
                    const RowRange& rows) const;
  void FloatRows(const LinearCall& call, const Part& part, int64_t panel,
                 const RowRange& rows) const;
  void FloatTiles(const LinearCall& call, const Part& part, int64_t panel,
                  const RowRange& rows) const;
  // Stores sums [rows, 16] of a panel to rows from `row` on of call.y.
  void StoreTile(const LinearCall& call, const Part& part, int64_t panel,
                 int64_t row, int64_t rows, const float* sums) const;

  Context context_;
  int64_t n_ = 0;
  int64_t k_ = 0;
  std::vector<Part> parts_;
  std::vector<OrderedInput> ordered_;
  int64_t panels_ = 0;       // of all parts
  std::vector<float> bias_;  // [n], or empty
  ArenaSpan weights_;
  LinearPlan plan_;
};

}  // namespace nibble::kernels::cpu
