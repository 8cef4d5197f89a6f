// The rotations of the rows of one step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/row_ops.h"
#include "kernels/cpu/thread_pool.h"

namespace nibble::kernels::cpu {

// Sines and cosines for every row of a step, computed by the first layer that
// asks and read by the others. Owned by a backend, engine thread only; keeps
// its memory from step to step.
class RopeTable final {
 public:
  // Forgets the step before.
  void Clear() { prepared_ = false; }

  // Computes the table for rows at `positions` unless it is there already.
  void Prepare(const RopeParams& rope, std::span<const int32_t> positions,
               ThreadPool& pool);

  RopeRow Row(int64_t row) const;

 private:
  void ComputeRow(int32_t position, float* row) const;

  bool prepared_ = false;
  RopeParams rope_;
  int32_t rotary_dims_ = 0;
  std::vector<float> factors_;  // [rows][2: cosine, sine][rotary_dims]
};

}  // namespace nibble::kernels::cpu
