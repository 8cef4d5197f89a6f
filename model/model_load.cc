// Model::Load: finds, checks and prepares every tensor, sizes the buffers.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "model/layer.h"
#include "model/model.h"

namespace nibble::model {
namespace {

using kernels::Buffer;
using kernels::WeightView;

}  // namespace

// Builds one Model from a Checkpoint. Lives on the stack of Model::Load.
class Model::Loader final {
 public:
  Loader(const Checkpoint& checkpoint, kernels::Backend& backend,
         const ModelOptions& options)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        backend_(backend),
        options_(options) {}

  absl::Status LoadEmbeddings(Model& model);
  absl::StatusOr<Layer> LoadLayer(int32_t index);
  absl::StatusOr<std::unique_ptr<Scratch>> MakeScratch();
  // INVALID_ARGUMENT names a tensor of the file that nothing asked for: a
  // model that needs it is not the one this code computes.
  absl::Status CheckAllUsed() const;

 private:
  // The rows of one part of a stacked matrix: "blk.3.attn_q", n.
  struct Part {
    std::string_view name;  // without "blk.N." and ".weight"
    int64_t n;
  };

  int64_t q_size() const { return int64_t{config_.heads} * config_.head_dim; }
  int64_t kv_size() const {
    return int64_t{config_.kv_heads} * config_.head_dim;
  }

  // The matrices `parts` stacked along n, each [part.n, k], with their biases:
  // all of them when `needs_bias` or when the file has one, else none.
  // `prefix` is "blk.N." or "".
  absl::StatusOr<Linear> MakeLinear(const std::string& prefix,
                                    std::span<const Part> parts, int64_t k,
                                    bool needs_bias);
  // Checkpoint::Tensor and Vector, remembering what was asked for.
  absl::StatusOr<WeightView> Tensor(const std::string& name, int64_t n,
                                    int64_t k) {
    used_.insert(name);
    return checkpoint_.Tensor(name, n, k);
  }
  absl::StatusOr<std::vector<float>> Vector(const std::string& name,
                                            int64_t k) {
    used_.insert(name);
    return checkpoint_.Vector(name, k);
  }
  absl::StatusOr<std::vector<float>> StackBiases(const std::string& prefix,
                                                 std::span<const Part> parts);
  absl::StatusOr<std::unique_ptr<Buffer>> LoadNorm(const std::string& name);
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateFloats(int64_t rows,
                                                         int64_t cols);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  kernels::Backend& backend_;
  const ModelOptions& options_;
  absl::flat_hash_set<std::string> used_;
};

absl::Status Model::Loader::CheckAllUsed() const {
  for (const WeightView& tensor : checkpoint_.tensors()) {
    // The rotary factors are in the config already.
    if (tensor.name == "rope_freqs.weight") continue;
    const std::string name(tensor.name);
    if (used_.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_.path(), ": tensor ", name, " [", tensor.n, ", ", tensor.k,
        "] is not part of the ", std::string(Name(config_.architecture)),
        " architecture of ", config_.layers, " layers"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Model::Loader::StackBiases(
    const std::string& prefix, std::span<const Part> parts) {
  std::vector<float> stacked;
  for (const Part& part : parts) {
    NIBBLE_ASSIGN_OR_RETURN(
        const std::vector<float> bias,
        Vector(prefix + std::string(part.name) + ".bias", part.n));
    stacked.insert(stacked.end(), bias.begin(), bias.end());
  }
  return stacked;
}

absl::StatusOr<Model::Linear> Model::Loader::MakeLinear(
    const std::string& prefix, std::span<const Part> parts, int64_t k,
    bool needs_bias) {
  Linear linear;
  std::vector<WeightView> views;
  for (const Part& part : parts) {
    NIBBLE_ASSIGN_OR_RETURN(
        const WeightView view,
        Tensor(prefix + std::string(part.name) + ".weight", part.n, k));
    const char* separator = views.empty() ? "" : "+";
    linear.role += separator + std::string(part.name);
    linear.formats += separator + std::string(Name(view.format));
    views.push_back(view);
  }
  bool biased = needs_bias;
  for (const Part& part : parts) {
    biased |= checkpoint_.Has(prefix + std::string(part.name) + ".bias");
  }
  std::vector<float> bias;
  if (biased) {
    NIBBLE_ASSIGN_OR_RETURN(bias, StackBiases(prefix, parts));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      linear.op,
      backend_.MakeLinear(views, {.name = prefix + linear.role,
                                  .bias = biased ? bias.data() : nullptr,
                                  .max_rows = options_.max_batch_rows}));
  return linear;
}

absl::StatusOr<std::unique_ptr<Buffer>> Model::Loader::LoadNorm(
    const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> weight,
                          Vector(name, config_.hidden_size));
  const auto bytes = static_cast<int64_t>(weight.size() * sizeof(float));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                          backend_.Allocate(bytes));
  backend_.CopyToDevice(buffer->data(), weight.data(), bytes);
  return buffer;
}

absl::Status Model::Loader::LoadEmbeddings(Model& model) {
  const bool tied = config_.tied_embeddings;
  NIBBLE_ASSIGN_OR_RETURN(
      const WeightView table,
      Tensor("token_embd.weight", config_.vocab_size, config_.hidden_size));
  model.embedding_ = std::make_unique<Linear>();
  model.embedding_->role = tied ? "token_embd (tied)" : "token_embd";
  model.embedding_->formats = std::string(Name(table.format));
  NIBBLE_ASSIGN_OR_RETURN(
      model.embedding_->op,
      backend_.MakeLinear({&table, 1}, {.name = "token_embd",
                                        .gather = true,
                                        .multiply = tied,
                                        .max_rows = options_.max_logit_rows}));
  NIBBLE_ASSIGN_OR_RETURN(model.output_norm_, LoadNorm("output_norm.weight"));
  if (tied) return absl::OkStatus();
  const Part output = {"output", config_.vocab_size};
  NIBBLE_ASSIGN_OR_RETURN(
      Linear linear, MakeLinear("", {&output, 1}, config_.hidden_size, false));
  model.output_ = std::make_unique<Linear>(std::move(linear));
  return absl::OkStatus();
}

absl::StatusOr<Model::Layer> Model::Loader::LoadLayer(int32_t index) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config_.hidden_size;
  const int64_t ffn = config_.feed_forward_size;
  const Part qkv[] = {
      {"attn_q", q_size()}, {"attn_k", kv_size()}, {"attn_v", kv_size()}};
  const Part attn_out[] = {{"attn_output", hidden}};
  const Part gate_up[] = {{"ffn_gate", ffn}, {"ffn_up", ffn}};
  const Part down[] = {{"ffn_down", hidden}};
  const bool qkv_bias = config_.architecture == Architecture::kQwen2;

  Layer layer;
  NIBBLE_ASSIGN_OR_RETURN(layer.attention_norm,
                          LoadNorm(prefix + "attn_norm.weight"));
  NIBBLE_ASSIGN_OR_RETURN(layer.qkv, MakeLinear(prefix, qkv, hidden, qkv_bias));
  NIBBLE_ASSIGN_OR_RETURN(layer.attn_out,
                          MakeLinear(prefix, attn_out, q_size(), false));
  NIBBLE_ASSIGN_OR_RETURN(layer.ffn_norm, LoadNorm(prefix + "ffn_norm.weight"));
  NIBBLE_ASSIGN_OR_RETURN(layer.gate_up,
                          MakeLinear(prefix, gate_up, hidden, false));
  NIBBLE_ASSIGN_OR_RETURN(layer.down, MakeLinear(prefix, down, ffn, false));
  return layer;
}

absl::StatusOr<std::unique_ptr<Buffer>> Model::Loader::AllocateFloats(
    int64_t rows, int64_t cols) {
  const std::optional<int64_t> elements = CheckedMul(rows, cols);
  const std::optional<int64_t> bytes =
      elements ? CheckedMul<int64_t>(*elements, sizeof(float)) : std::nullopt;
  if (!bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a buffer of ", rows, " x ", cols, " floats overflows 64 bits"));
  }
  return backend_.Allocate(*bytes);
}

absl::StatusOr<std::unique_ptr<Model::Scratch>> Model::Loader::MakeScratch() {
  const int64_t rows = options_.max_batch_rows;
  const int64_t logit_rows = options_.max_logit_rows;
  const int64_t hidden = config_.hidden_size;
  const int64_t ffn = config_.feed_forward_size;
  auto scratch = std::make_unique<Scratch>();
  NIBBLE_ASSIGN_OR_RETURN(scratch->hidden, AllocateFloats(rows, hidden));
  NIBBLE_ASSIGN_OR_RETURN(scratch->qkv,
                          AllocateFloats(rows, q_size() + 2 * kv_size()));
  NIBBLE_ASSIGN_OR_RETURN(scratch->gate_up, AllocateFloats(rows, 2 * ffn));
  NIBBLE_ASSIGN_OR_RETURN(scratch->last, AllocateFloats(logit_rows, hidden));
  NIBBLE_ASSIGN_OR_RETURN(scratch->logits,
                          AllocateFloats(logit_rows, config_.vocab_size));
  NIBBLE_ASSIGN_OR_RETURN(scratch->normed,
                          backend_.MakeActivations(rows, hidden));
  NIBBLE_ASSIGN_OR_RETURN(scratch->attended,
                          backend_.MakeActivations(rows, q_size()));
  NIBBLE_ASSIGN_OR_RETURN(scratch->gated, backend_.MakeActivations(rows, ffn));
  NIBBLE_ASSIGN_OR_RETURN(scratch->last_normed,
                          backend_.MakeActivations(logit_rows, hidden));
  return scratch;
}

absl::StatusOr<std::unique_ptr<Model>> Model::Load(
    const Checkpoint& checkpoint, kernels::Backend& backend,
    const ModelOptions& options) {
  if (options.max_batch_rows < 1 || options.max_logit_rows < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_batch_rows = ", options.max_batch_rows, " and max_logit_rows = ",
        options.max_logit_rows, ", both must be at least 1"));
  }
  std::unique_ptr<Model> model(
      new Model(checkpoint.config(), backend, options));
  Loader loader(checkpoint, backend, options);
  NIBBLE_RETURN_IF_ERROR(loader.LoadEmbeddings(*model));
  checkpoint.ReleasePages();
  for (int32_t i = 0; i < checkpoint.config().layers; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(Layer layer, loader.LoadLayer(i));
    model->layers_.push_back(std::move(layer));
    // Its weights were repacked: they shall not be in memory twice.
    checkpoint.ReleasePages();
  }
  NIBBLE_RETURN_IF_ERROR(loader.CheckAllUsed());
  checkpoint.ReleasePages();  // tensors' names
  NIBBLE_ASSIGN_OR_RETURN(model->scratch_, loader.MakeScratch());
  return model;
}

}  // namespace nibble::model
