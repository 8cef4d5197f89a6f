#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/layer.h"

namespace nibble::model {
namespace {

using kernels::Activations;
using kernels::Buffer;
using kernels::Epilogue;
using kernels::LinearOp;
using kernels::LinearPath;
using kernels::TensorView;

TensorView View(Buffer& buffer, int64_t rows, int64_t cols) {
  NIBBLE_DCHECK(rows * cols * 4 <= buffer.size_bytes());
  return TensorView::F32(static_cast<float*>(buffer.data()), rows, cols);
}

const float* Floats(Buffer& buffer) {
  return static_cast<const float*>(buffer.data());
}

// Runs `op` on all rows of x: generated tokens on the narrow path, prompt
// tokens on the wide one, so that a row's bits do not depend on its company.
void RunByPath(const LinearOp& op, const Activations& x, TensorView y,
               int64_t decode_rows, Epilogue epilogue) {
  const int64_t rows = y.rows;
  if (decode_rows > 0) {
    op.Run({.x = &x,
            .row_begin = 0,
            .y = y.Rows(0, decode_rows),
            .epilogue = epilogue,
            .path = LinearPath::kNarrow});
  }
  if (decode_rows < rows) {
    op.Run({.x = &x,
            .row_begin = decode_rows,
            .y = y.Rows(decode_rows, rows - decode_rows),
            .epilogue = epilogue,
            .path = LinearPath::kWide});
  }
}

}  // namespace

std::string Model::Linear::PlanLine() const {
  return absl::StrCat(role, " [", op->n(), ", ", op->k(), "] ", formats, ": ",
                      op->plan().ToString());
}

Model::Model(const ModelConfig& config, kernels::Backend& backend,
             const ModelOptions& options)
    : config_(config), options_(options), backend_(backend) {}

Model::~Model() = default;

void Model::CheckBatch(const Batch& batch, const KvCache& cache) const {
  const auto rows = static_cast<size_t>(batch.rows());
  NIBBLE_CHECK_LE(batch.rows(), options_.max_batch_rows);
  NIBBLE_CHECK_LE(batch.logit_rows.size(),
                  static_cast<size_t>(options_.max_logit_rows));
  NIBBLE_CHECK_EQ(batch.positions.size(), rows);
  NIBBLE_CHECK_EQ(batch.slots.size(), rows);
  NIBBLE_CHECK(batch.decode_rows >= 0 && batch.decode_rows <= batch.rows());
  NIBBLE_CHECK_EQ(batch.row_begin.size(), batch.page_begin.size());
  NIBBLE_CHECK_EQ(batch.row_begin.back(), batch.rows());
  NIBBLE_CHECK_EQ(batch.page_begin.back(),
                  static_cast<int32_t>(batch.page_ids.size()));
  const int64_t slots = int64_t{cache.pages()} * cache.page_size();
  for (size_t row = 0; row < rows; ++row) {
    NIBBLE_CHECK(batch.tokens[row] >= 0 &&
                 batch.tokens[row] < config_.vocab_size);
    NIBBLE_CHECK(batch.slots[row] >= 0 && batch.slots[row] < slots);
  }
}

TensorView Model::Forward(const Batch& batch, KvCache& cache) {
  CheckBatch(batch, cache);
  const int32_t rows = batch.rows();
  if (rows == 0) return View(*scratch_->logits, 0, config_.vocab_size);
  backend_.BeginStep(batch.Layout());
  embedding_->op->GatherRows(
      batch.tokens, View(*scratch_->hidden, rows, config_.hidden_size));
  for (int32_t i = 0; i < config_.layers; ++i) {
    RunAttention(layers_[i], rows, batch.decode_rows, cache.Layer(i));
    RunFeedForward(layers_[i], rows, batch.decode_rows);
  }
  return RunOutput(batch);
}

void Model::RunAttention(const Layer& layer, int32_t rows, int32_t decode_rows,
                         const kernels::KvLayerView& kv) {
  const int64_t q_cols = int64_t{config_.heads} * config_.head_dim;
  const int64_t kv_cols = int64_t{config_.kv_heads} * config_.head_dim;
  const TensorView hidden = View(*scratch_->hidden, rows, config_.hidden_size);
  const TensorView qkv = View(*scratch_->qkv, rows, q_cols + 2 * kv_cols);
  const TensorView q = qkv.Cols(0, q_cols);

  backend_.RmsNorm(hidden, Floats(*layer.attention_norm), config_.rms_epsilon,
                   scratch_->normed.get());
  RunByPath(*layer.qkv.op, *scratch_->normed, qkv, decode_rows,
            Epilogue::kStore);
  backend_.RopeAndWriteKv(q, qkv.Cols(q_cols, kv_cols),
                          qkv.Cols(q_cols + kv_cols, kv_cols), config_.rope,
                          kv);
  const kernels::AttentionShape shape = {
      .heads = config_.heads,
      .kv_heads = config_.kv_heads,
      .head_dim = config_.head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))};
  backend_.Attention(q, kv, shape, scratch_->attended.get());
  RunByPath(*layer.attn_out.op, *scratch_->attended, hidden, decode_rows,
            Epilogue::kAdd);
}

void Model::RunFeedForward(const Layer& layer, int32_t rows,
                           int32_t decode_rows) {
  const TensorView hidden = View(*scratch_->hidden, rows, config_.hidden_size);
  const TensorView gate_up =
      View(*scratch_->gate_up, rows, 2 * int64_t{config_.feed_forward_size});
  backend_.RmsNorm(hidden, Floats(*layer.ffn_norm), config_.rms_epsilon,
                   scratch_->normed.get());
  RunByPath(*layer.gate_up.op, *scratch_->normed, gate_up, decode_rows,
            Epilogue::kStore);
  backend_.SiluMul(gate_up, scratch_->gated.get());
  RunByPath(*layer.down.op, *scratch_->gated, hidden, decode_rows,
            Epilogue::kAdd);
}

TensorView Model::RunOutput(const Batch& batch) {
  const auto count = static_cast<int64_t>(batch.logit_rows.size());
  const TensorView logits = View(*scratch_->logits, count, config_.vocab_size);
  if (count == 0) return logits;
  const TensorView last = View(*scratch_->last, count, config_.hidden_size);
  backend_.CopyRows(View(*scratch_->hidden, batch.rows(), config_.hidden_size),
                    batch.logit_rows, last);
  backend_.RmsNorm(last, Floats(*output_norm_), config_.rms_epsilon,
                   scratch_->last_normed.get());
  const int64_t decode_rows =
      std::lower_bound(batch.logit_rows.begin(), batch.logit_rows.end(),
                       batch.decode_rows) -
      batch.logit_rows.begin();
  const Linear& output = output_ != nullptr ? *output_ : *embedding_;
  RunByPath(*output.op, *scratch_->last_normed, logits, decode_rows,
            Epilogue::kStore);
  return logits;
}

template <typename Visit>
void Model::ForEachLinear(Visit visit) const {
  for (const Layer& layer : layers_) {
    for (const Linear* linear :
         {&layer.qkv, &layer.attn_out, &layer.gate_up, &layer.down}) {
      visit(*linear);
    }
  }
  visit(output_ != nullptr ? *output_ : *embedding_);
}

int64_t Model::packed_bytes() const {
  int64_t bytes = output_ != nullptr ? embedding_->op->packed_bytes() : 0;
  ForEachLinear(
      [&](const Linear& linear) { bytes += linear.op->packed_bytes(); });
  return bytes;
}

std::vector<std::string> Model::PlanLines() const {
  std::vector<std::string> lines;
  ForEachLinear([&](const Linear& linear) {
    std::string line = linear.PlanLine();
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) {
      lines.push_back(std::move(line));
    }
  });
  return lines;
}

}  // namespace nibble::model
