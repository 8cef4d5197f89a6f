// Causal attention over paged keys and values on the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace nibble::kernels::cpu {

// Keys and values that are taken at once: one block's keys and its values
// are 16 KB each for heads of 64.
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

// The rows of a tile for some query heads of one KV head. By value.
struct AttentionJob {
  RowTile tile;
  int32_t kv_head = 0;
  int32_t first_head = 0;  // query heads [first_head, first_head + heads)
  int32_t heads = 0;
  float scale = 0;
  int32_t head_dim = 0;
  KvLayerView kv;        // kF16
  TensorView q;          // all rows of the step
  float* out = nullptr;  // [rows of the step, out_stride]
  int64_t out_stride = 0;
};

// FP32 elements of scratch that a job may use: head_dim of the model, at most
// `queries` = tile.rows * heads.
int64_t AttentionScratch(int32_t head_dim, int32_t queries);

// out[row, head] = softmax(scale q k^T) v over positions 0 to the row's own.
//
// Each query walks its keys in blocks of kKeyBlock from position 0, with a
// running maximum (Milakov and Gimelshein, arXiv:1805.02867); a key's score
// and the sums over keys have one order. So its result is the same bits
// whatever rows and heads share its job.
void RunAttention(const AttentionJob& job, float* scratch);

}  // namespace nibble::kernels::cpu
