// The W4A8 kernel: its types, and the warps that bring x and W.
#pragma once

#include "kernels/cuda/linear/w4a8_plan.h"
#include "kernels/cuda/linear/w4a8_wgmma.cuh"
#include "kernels/cuda/linear/w8a8_walk.cuh"

namespace nibble::kernels::cuda {

inline constexpr int kW4a8Threads = (kW4a8Warpgroups + 1) * 128;
inline constexpr int kLoadWarps = 4;  // of the last warpgroup

// A format and a tile as a type.
template <W4a8Format kFormatOf, int kColumnsOf>
struct W4a8Kernel {
  static constexpr W4a8Format kFormat = kFormatOf;
  static constexpr W4a8Kind kKind = kFormat.kind;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kTiles = kColumns / 8;
  static constexpr W4a8Shared kShared = LayOutW4a8(kFormat, kColumns);
  static constexpr int kStages = kShared.stages;
  static_assert(kStages >= 4, "too few stages to hide memory");
  static constexpr int kXBytes = kColumns * kW4a8StageK;
  static constexpr int kWBytes = kW4a8Warpgroups * kFormat.BlockBytes();

  // One chain of integer sums over all of k; else sums are drained into FP32
  // ones after every so many steps of k = 32.
  static constexpr bool kChain = kKind == W4a8Kind::kRerounded;
  static constexpr int kPairSteps = kW4a8PairK / 32;
  static constexpr int kGroupSteps = kKind == W4a8Kind::kSubScale ? kPairSteps
                                     : kChain                     ? kPairSteps
                                              : kFormat.group / 32;
  static constexpr W4a8Codes kCodes = kKind == W4a8Kind::kE4m3
                                          ? W4a8Codes::kE4m3
                                      : kFormat.HasOffsets() ? W4a8Codes::kU8
                                                             : W4a8Codes::kS8;
  // Operands made of a word of codes, each with sums of its own.
  static constexpr int kParts = kKind == W4a8Kind::kSubScale ? 2 : 1;
  // Sums of a group are drained under the products of the next.
  static constexpr bool kDrainsUnder = !kChain &&
                                       kKind != W4a8Kind::kSubScale &&
                                       kKind != W4a8Kind::kSubScaleSums;
  // Steps whose products are under way while the next one is unpacked. ptxas
  // would wait for each where sums are drained meanwhile and it were two.
  static constexpr int kInFlight = kDrainsUnder ? 1 : 2;
  static constexpr int kBuffers = 2 * kInFlight;  // of A operands
  static_assert(kPairSteps % kBuffers == 0, "steps name their buffers");
  static constexpr int kAccs = kDrainsUnder ? 2 : kParts;
};

// One lane of each of four warps: bring the stages of all tiles of the CTA by
// turns, so that none of the multiprocessor's four parts has all of the work. W
// is no other kernel's result: the first stages of it are asked for before the
// kernels ahead have ended.
template <typename T>
__device__ __forceinline__ void LoadStages(const W4a8Params& p, char* shared,
                                           const CUtensorMap* x_map,
                                           const CUtensorMap* sums_map,
                                           const W8Barriers<T>& barriers,
                                           int warp) {
  const uint32_t at = SharedAddress(shared);
  const int stages = p.min_stages + 2 * p.k_pairs;
  const uint32_t bytes = p.x_box * kW4a8StageK + T::kWBytes;
  const auto load_w = [&](const W4a8Place& place, int to, int stage) {
    const uint32_t full = barriers.Full(to);
    BarrierArriveExpect(full, bytes);
    BulkCopy(at + T::kShared.w_at + to * T::kWBytes,
             p.w + (int64_t{place.row_tile} * stages + stage) * T::kWBytes,
             T::kWBytes, full);
  };
  const auto load_x = [&](const W4a8Place& place, int to, int stage) {
    const bool minimums = stage < p.min_stages;
    TensorCopy(at + to * T::kXBytes, minimums ? sums_map : x_map,
               (minimums ? stage : stage - p.min_stages) * kW4a8StageK,
               place.column_tile * T::kColumns, barriers.Full(to));
  };
  int item = blockIdx.x;
  int early = min(stages, T::kStages);
  {
    const W4a8Place place = PlaceW4a8(p, item);
    for (int i = warp; i < early; i += kLoadWarps) load_w(place, i, i);
  }
  WaitForDependency();
  W8Cursor<T> cursor;
  cursor.Skip(warp);
  int stage = warp;
#pragma unroll 1
  for (; item < p.row_tiles * p.column_tiles; item += gridDim.x) {
    const W4a8Place place = PlaceW4a8(p, item);
#pragma unroll 1
    for (; stage < stages; stage += kLoadWarps) {
      if (stage >= early) {
        // The parity before the first phase counts as ended.
        BarrierWait(barriers.Empty(cursor.stage), cursor.parity ^ 1);
        load_w(place, cursor.stage, stage);
      }
      load_x(place, cursor.stage, stage);
      cursor.Skip(kLoadWarps);
    }
    stage -= stages;
    early = 0;
  }
}

}  // namespace nibble::kernels::cuda
