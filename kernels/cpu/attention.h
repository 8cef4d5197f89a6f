// Causal attention over paged keys and values on the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace nibble::kernels::cpu {

// Keys and values that are taken at once, counted from position 0: one block's
// keys and its values are 16 KB each for heads of 64. Each block has a softmax
// of its own; blocks are merged in ascending order, which costs as much as one
// more key.
inline constexpr int kKeyBlock = 64;

// Query vectors (rows x heads of one KV head) that share the conversion of a
// block of keys.
inline constexpr int kTileQueries = 48;

// Rows of one sequence at ascending consecutive positions. Borrowed.
struct RowTile {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t position = 0;               // of first_row
  std::span<const int32_t> page_ids;  // of the sequence
};

// Blocks of keys that a row at `position` sees.
constexpr int32_t BlocksAt(int32_t position) {
  return position / kKeyBlock + 1;
}

// A part of the attention of a step that one task does: a tile for some KV
// heads, or some blocks of the keys of a tile of one row. By value.
struct AttentionWalk {
  int32_t tile = 0;
  int32_t first_kv_head = 0;
  int32_t kv_heads = 0;
  // Blocks [first, last) of a row whose walk is shared; last = 0: all.
  int32_t first = 0;
  int32_t last = 0;
  int64_t state = 0;  // of the row's block 0, when shared

  bool shared() const { return last > 0; }
  bool first_of_row() const { return first == 0 && first_kv_head == 0; }
};

// How the threads share the attention of a step. Owned by a backend, engine
// thread only; keeps its memory from step to step.
class AttentionPlan final {
 public:
  // `group` query heads to a KV head. Borrows the layout's page ids.
  void Make(const StepLayout& layout, int32_t kv_heads, int32_t group,
            int32_t threads);

  std::span<const AttentionWalk> walks() const { return walks_; }
  const RowTile& tile(const AttentionWalk& walk) const {
    return tiles_[walk.tile];
  }
  // Blocks of keys, of all rows whose walk is shared, whose sums wait to be
  // merged.
  int64_t states() const { return states_; }

 private:
  void MakeTiles(const StepLayout& layout, int32_t max_rows);
  void ShareRow(int32_t tile, int32_t kv_heads, int32_t threads);

  std::vector<RowTile> tiles_;
  std::vector<AttentionWalk> walks_;
  int64_t states_ = 0;
};

// The rows of a tile for the query heads of some KV heads; of one KV head when
// the tile has several rows. By value.
struct AttentionJob {
  RowTile tile;
  int32_t first_kv_head = 0;
  int32_t kv_heads = 0;
  int32_t group = 0;  // query heads of a KV head
  float scale = 0;
  int32_t head_dim = 0;
  KvLayerView kv;        // kF16
  TensorView q;          // all rows of the step
  float* out = nullptr;  // [rows of the step, out_stride]
  int64_t out_stride = 0;
};

// FP32 elements of scratch that a job may use: head_dim of the model, at most
// `queries` = tile.rows * kv_heads * group.
int64_t AttentionScratch(int32_t head_dim, int32_t queries);

// FP32 elements of what `queries` queries know of some keys: weighted values,
// sum of the weights, greatest score.
int64_t AttentionSums(int32_t head_dim, int32_t queries);

// out[row, head] = softmax(scale q k^T) v over positions 0 to the row's own.
//
// A key's score, the sums over the keys of a block and the merging of blocks
// (as Milakov and Gimelshein's running maximum, arXiv:1805.02867) have one
// order that follows from positions alone. So a result is the same bits
// whatever rows and heads share its job and whoever walks its blocks.
void RunAttention(const AttentionJob& job, float* scratch);

// Where jobs that are part of one row's walk leave what they know of each
// block: AttentionSums(head_dim, all query heads) floats a block, `stride`
// floats apart. Borrowed.
struct BlockSums {
  float* sums = nullptr;
  int64_t stride = 0;
  int32_t heads = 0;  // query heads of the row
};

// Blocks [first, last) of a job of one row.
void RunAttentionBlocks(const AttentionJob& job, int32_t first, int32_t last,
                        float* scratch, const BlockSums& to);
// Merges all blocks of the job's row, of all its heads, and writes its
// results. Overwrites the sums.
void MergeAttentionBlocks(const AttentionJob& job, const BlockSums& from);

}  // namespace nibble::kernels::cpu
