// The W4A16 kernel for many rows: how a warp gets its weights.
#pragma once

#include "kernels/cuda/linear/w4_decode.cuh"
#include "kernels/cuda/linear/w4a16_mid_walk.cuh"

namespace nibble::kernels::cuda {

// A warp's ring of packed blocks: kDepth stages, each filled again when the
// block behind it is begun.
template <typename F, int kDepth>
class WeightRing {
 public:
  static constexpr int kBytes = kDepth * F::kBlockBytes;

  // `warp`: of the warpgroup, whose 64-row tile and part of k are given.
  // `memory`: in shared memory.
  __device__ __forceinline__ WeightRing(const MidCta& cta, int row_tile,
                                        int part, int warp, uint32_t memory)
      : cta_(cta),
        walk_(cta, part),
        row_tile_(row_tile),
        warp_(warp),
        lane_bytes_(threadIdx.x % 32 * 16),
        begin_(memory + lane_bytes_),
        read_(begin_),
        fill_(begin_) {
    FindTile();
  }

  // Asks for the next block.
  __device__ __forceinline__ void Fill() {
    const int64_t at = static_cast<int64_t>(walk_.block) * F::kBlockBytes;
    CopyBlockAsync<kCodeBytes>(fill_, tile_ + at, copies_, copies_scales_);
    if (walk_.Next(cta_)) FindTile();
  }
  // At the start: all stages but one.
  __device__ __forceinline__ void FillAll() {
#pragma unroll 1
    for (int i = 0; i < kDepth - 1; ++i) {
      Fill();
      fill_ += F::kBlockBytes;
    }
  }
  // Waits for the block to read; all lanes have then done with the one before.
  __device__ __forceinline__ void Wait() {
    WaitCopies<kDepth - 2>();
    __syncwarp();
  }
  // To the next block; the stage of this one is the next to fill.
  __device__ __forceinline__ void Turn() {
    fill_ = read_;
    read_ += F::kBlockBytes;
    if (read_ == begin_ + kBytes) read_ = begin_;
  }
  __device__ __forceinline__ uint4 Codes(int quarter) const {
    return LoadShared16At(read_ + quarter * 512);
  }
  __device__ __forceinline__ uint32_t Scales() const {
    return read_ - lane_bytes_ + kCodeBytes;
  }

 private:
  __device__ __forceinline__ void FindTile() {
    copies_ = !walk_.Ended(cta_);
    copies_scales_ = copies_ && lane_bytes_ < F::kBlockScaleBytes;
    const int row = cta_.TileOf(walk_.slices.work, row_tile_).row;
    // Beyond the last row of W the last tile is read again.
    const int tile = min(row * 4 + warp_, cta_.p.tiles - 1);
    tile_ = cta_.p.blocks + int64_t{tile} * cta_.p.blocks_k * F::kBlockBytes +
            lane_bytes_;
  }

  const MidCta& cta_;
  MidBlocks walk_;
  const int row_tile_, warp_;
  const uint32_t lane_bytes_, begin_;
  uint32_t read_, fill_;
  const char* tile_;
  bool copies_, copies_scales_;  // this lane: not behind the end
};

}  // namespace nibble::kernels::cuda
