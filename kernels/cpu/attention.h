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

// Splits the rows of a step into tiles of at most `max_rows` rows, the longest
// walks first. Keeps the capacity of *tiles.
void MakeTiles(const StepLayout& layout, int32_t max_rows,
               std::vector<RowTile>* tiles);

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

// Blocks of keys that a row at `position` sees.
constexpr int32_t BlocksAt(int32_t position) {
  return position / kKeyBlock + 1;
}

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
