#include "tests/model/naive_decoder.h"

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/reference/dequant.h"

namespace nibble::test {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;  // [n][k]

// A local of NaiveLogits.
class NaiveDecoder final {
 public:
  NaiveDecoder(const model::Checkpoint& checkpoint, double rope_base)
      : checkpoint_(checkpoint),
        config_(checkpoint.config()),
        rope_base_(rope_base),
        keys_(config_.layers),
        values_(config_.layers) {}

  Vector Next(int32_t token) {
    Vector x = Load("token_embd.weight")[token];
    for (int layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = absl::StrCat("blk.", layer, ".");
      const Vector attended =
          Attend(layer, Norm(x, prefix + "attn_norm.weight"));
      Add(x, Multiply(prefix + "attn_output", attended));
      const Vector normed = Norm(x, prefix + "ffn_norm.weight");
      Vector gate = Multiply(prefix + "ffn_gate", normed);
      const Vector up = Multiply(prefix + "ffn_up", normed);
      for (size_t i = 0; i < gate.size(); ++i) {
        gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      }
      Add(x, Multiply(prefix + "ffn_down", gate));
    }
    ++position_;
    const Vector last = Norm(x, "output_norm.weight");
    return Multiply(checkpoint_.Has("output.weight") ? "output" : "token_embd",
                    last);
  }

 private:
  // Dequantized on first use.
  const Matrix& Load(const std::string& name) {
    Matrix& matrix = matrices_[name];
    if (!matrix.empty()) return matrix;
    for (const kernels::WeightView& tensor : checkpoint_.tensors()) {
      if (tensor.name != name) continue;
      std::vector<float> row(tensor.k);
      for (int64_t i = 0; i < tensor.n; ++i) {
        kernels::reference::DequantizeRow(tensor.format, tensor.Row(i),
                                          tensor.k, row.data());
        matrix.emplace_back(row.begin(), row.end());
      }
    }
    NIBBLE_CHECK(!matrix.empty());
    return matrix;
  }

  static void Add(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Vector Multiply(const std::string& name, const Vector& x) {
    Vector y;
    for (const Vector& row : Load(name + ".weight")) {
      double sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += row[i] * x[i];
      y.push_back(sum);
    }
    if (checkpoint_.Has(name + ".bias")) Add(y, Load(name + ".bias")[0]);
    return y;
  }

  Vector Norm(const Vector& x, const std::string& name) {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double mean = squares / static_cast<double>(x.size());
    const Vector& weight = Load(name)[0];
    Vector y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y[i] = x[i] / std::sqrt(mean + config_.rms_epsilon) * weight[i];
    }
    return y;
  }

  // Turns pair i of a head by position * base^(-2 i / dim): neighbours in
  // GGUF's order for Llama, the two halves for Qwen2.
  void Rotate(double* head) const {
    const int dim = config_.head_dim;
    const bool halves = config_.architecture == model::Architecture::kQwen2;
    for (int i = 0; i < dim / 2; ++i) {
      const double angle = position_ * std::pow(rope_base_, -2.0 * i / dim);
      double& a = head[halves ? i : 2 * i];
      double& b = head[halves ? i + dim / 2 : 2 * i + 1];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }

  Vector Attend(int layer, const Vector& normed) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    const int dim = config_.head_dim;
    Vector q = Multiply(prefix + "attn_q", normed);
    Vector k = Multiply(prefix + "attn_k", normed);
    for (int h = 0; h < config_.heads; ++h) Rotate(&q[h * dim]);
    for (int h = 0; h < config_.kv_heads; ++h) Rotate(&k[h * dim]);
    keys_[layer].push_back(k);
    values_[layer].push_back(Multiply(prefix + "attn_v", normed));
    Vector out(q.size());
    for (int h = 0; h < config_.heads; ++h) {
      const int kv = h / (config_.heads / config_.kv_heads) * dim;
      Vector weights;
      double total = 0;
      for (const Vector& key : keys_[layer]) {
        double score = 0;
        for (int d = 0; d < dim; ++d) score += q[h * dim + d] * key[kv + d];
        weights.push_back(std::exp(score / std::sqrt(dim)));
        total += weights.back();
      }
      for (size_t t = 0; t < weights.size(); ++t) {
        for (int d = 0; d < dim; ++d) {
          out[h * dim + d] += weights[t] / total * values_[layer][t][kv + d];
        }
      }
    }
    return out;
  }

  const model::Checkpoint& checkpoint_;
  const model::ModelConfig& config_;
  double rope_base_;
  std::map<std::string, Matrix> matrices_;
  std::vector<Matrix> keys_;    // [layer][position]
  std::vector<Matrix> values_;  // [layer][position]
  int position_ = 0;
};

}  // namespace

std::vector<std::vector<double>> NaiveLogits(
    const model::Checkpoint& checkpoint, double rope_base,
    std::span<const int32_t> tokens) {
  NaiveDecoder decoder(checkpoint, rope_base);
  std::vector<std::vector<double>> logits;
  for (const int32_t token : tokens) logits.push_back(decoder.Next(token));
  return logits;
}

}  // namespace nibble::test
