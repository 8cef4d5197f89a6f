#include "model/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "model/gguf.h"
#include "model/rope_metadata.h"
#include "model/rope_scaling.h"

namespace nibble::model {
namespace {

using kernels::RopeParams;

// Far above any decoder known, far below what would overflow int32_t products
// of two of them times a page size.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxFeedForward = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;

struct ArchitectureInfo {
  Architecture architecture;
  std::string_view name;
  RopeParams::Pairing pairing;
};

// Converters permute llama's q and k so that rotated elements are neighbours;
// qwen2's stay as they are.
constexpr std::array kArchitectures = {
    ArchitectureInfo{Architecture::kLlama, "llama",
                     RopeParams::Pairing::kAdjacent},
    ArchitectureInfo{Architecture::kQwen2, "qwen2",
                     RopeParams::Pairing::kHalves},
};

// A key "<arch>.<suffix>" that asks for mathematics we do not have, unless its
// value is one of the two that change nothing.
struct UnsupportedKey {
  std::string_view suffix;
  double neutral;
  double also_neutral;
};

constexpr std::array kUnsupportedKeys = {
    UnsupportedKey{"expert_count", 0, 0},
    UnsupportedKey{"expert_used_count", 0, 0},
    UnsupportedKey{"expert_shared_count", 0, 0},
    UnsupportedKey{"attn_logit_softcapping", 0, 0},
    UnsupportedKey{"final_logit_softcapping", 0, 0},
    UnsupportedKey{"logit_scale", 0, 1},
    UnsupportedKey{"residual_scale", 0, 1},
    UnsupportedKey{"embedding_scale", 0, 1},
    UnsupportedKey{"use_parallel_residual", 0, 0},
    UnsupportedKey{"attention.causal", 1, 1},
    UnsupportedKey{"attention.clamp_kqv", 0, 0},
    UnsupportedKey{"attention.max_alibi_bias", 0, 0},
    UnsupportedKey{"attention.temperature_scale", 0, 0},
    UnsupportedKey{"rope.scaling.alpha", 0, 0},
    UnsupportedKey{"rope.scaling.yarn_log_multiplier", 0, 0},
    UnsupportedKey{"rope.scaling.yarn_ext_factor", 1, -1},
    UnsupportedKey{"rope.scaling.yarn_attn_factor", 1, -1},
};

// Reads one file's hyperparameters; a local of ReadModelConfig.
class ConfigReader final {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<ModelConfig> Read();

 private:
  std::string Key(std::string_view suffix) const {
    return absl::StrCat(Absl(arch_.name), ".", Absl(suffix));
  }
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", parts...));
  }
  // "<arch>.<suffix>" in 1 to `max`.
  absl::StatusOr<int32_t> Count(std::string_view suffix, int64_t max) const {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t value,
                            file_.Integer(Key(suffix), {1, max}));
    return static_cast<int32_t>(value);
  }
  absl::StatusOr<int32_t> CountOr(std::string_view suffix, int64_t fallback,
                                  int64_t max) const {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t value,
                            file_.IntegerOr(Key(suffix), fallback, {1, max}));
    return static_cast<int32_t>(value);
  }

  absl::Status CheckWholeModel() const;
  absl::Status FindArchitecture();
  absl::Status CheckUnsupported() const;
  absl::Status ReadShape();
  absl::Status ReadHeads();
  absl::Status ReadContext();
  absl::Status ReadVocab();
  void CountWeights();

  const GgufFile& file_;
  ArchitectureInfo arch_ = kArchitectures[0];
  int32_t trained_context_ = 0;  // tokens
  ModelConfig config_;
};

absl::Status ConfigReader::CheckWholeModel() const {
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view type,
                          file_.StringOr("general.type", "model"));
  if (type != "model") {
    return file_.KeyError("general.type", absl::StrCat("is ", Quoted(type),
                                                       ", expected \"model\""));
  }
  NIBBLE_ASSIGN_OR_RETURN(const int64_t parts,
                          file_.IntegerOr("split.count", 1, {0, 65535}));
  if (parts > 1) {
    return file_.KeyError("split.count",
                          absl::StrCat("is ", parts,
                                       ": the model is split over several "
                                       "files; merge them into one"));
  }
  return absl::OkStatus();
}

absl::Status ConfigReader::FindArchitecture() {
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view name,
                          file_.String("general.architecture"));
  std::string supported;
  for (const ArchitectureInfo& info : kArchitectures) {
    if (info.name == name) {
      arch_ = info;
      config_.architecture = info.architecture;
      return absl::OkStatus();
    }
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", Absl(info.name));
  }
  return Error("architecture ", Quoted(name),
               " is not supported (supported: ", supported, ")");
}

absl::Status ConfigReader::CheckUnsupported() const {
  for (const UnsupportedKey& unsupported : kUnsupportedKeys) {
    const std::string key = Key(unsupported.suffix);
    const GgufValue* value = file_.Find(key);
    if (value == nullptr) continue;
    double number = 0;
    if (value->type == GgufType::kBool) {
      NIBBLE_ASSIGN_OR_RETURN(const bool flag, file_.BoolOr(key, false));
      number = flag ? 1 : 0;
    } else {
      constexpr double kMax = std::numeric_limits<double>::max();
      NIBBLE_ASSIGN_OR_RETURN(number, file_.Number(key, {-kMax, kMax}));
    }
    if (number != unsupported.neutral && number != unsupported.also_neutral) {
      return file_.KeyError(
          key, absl::StrCat("is ", number, ", which is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadShape() {
  NIBBLE_ASSIGN_OR_RETURN(config_.layers, Count("block_count", kMaxLayers));
  NIBBLE_ASSIGN_OR_RETURN(config_.hidden_size,
                          Count("embedding_length", kMaxHidden));
  NIBBLE_ASSIGN_OR_RETURN(config_.feed_forward_size,
                          Count("feed_forward_length", kMaxFeedForward));
  // An epsilon near 1 would drown the mean square it is added to.
  NIBBLE_ASSIGN_OR_RETURN(
      const double epsilon,
      file_.Number(Key("attention.layer_norm_rms_epsilon"), {1e-12, 0.1}));
  config_.rms_epsilon = static_cast<float>(epsilon);
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadHeads() {
  NIBBLE_ASSIGN_OR_RETURN(config_.heads,
                          Count("attention.head_count", kMaxHeads));
  NIBBLE_ASSIGN_OR_RETURN(config_.kv_heads, CountOr("attention.head_count_kv",
                                                    config_.heads, kMaxHeads));
  if (config_.heads % config_.kv_heads != 0) {
    return Error("key ", Quoted(Key("attention.head_count")), " is ",
                 config_.heads, ", expected a multiple of ",
                 Quoted(Key("attention.head_count_kv")), ", ",
                 config_.kv_heads);
  }
  const std::string key = Key("attention.key_length");
  if (file_.Find(key) == nullptr && config_.hidden_size % config_.heads != 0) {
    return Error("key ", Quoted(Key("embedding_length")), " is ",
                 config_.hidden_size, ", expected a multiple of ",
                 Quoted(Key("attention.head_count")), ", ", config_.heads,
                 ", as ", Quoted(key), " is missing");
  }
  NIBBLE_ASSIGN_OR_RETURN(
      config_.head_dim,
      CountOr("attention.key_length", config_.hidden_size / config_.heads,
              kMaxHeadDim));
  if (config_.head_dim > kMaxHeadDim) {
    return Error("the heads have ", config_.head_dim,
                 " dimensions (embedding_length / head_count), at most ",
                 kMaxHeadDim, " are supported");
  }
  NIBBLE_ASSIGN_OR_RETURN(
      const int32_t value_dim,
      CountOr("attention.value_length", config_.hidden_size / config_.heads,
              kMaxHeadDim));
  if (value_dim != config_.head_dim) {
    return Error("the values of a head have ", value_dim, " dimensions (key ",
                 Quoted(Key("attention.value_length")),
                 "), expected those of its keys, ", config_.head_dim);
  }
  constexpr double kMax = std::numeric_limits<double>::max();
  NIBBLE_ASSIGN_OR_RETURN(
      const double scale,
      file_.NumberOr(Key("attention.scale"), 0, {-kMax, kMax}));
  const double usual = 1 / std::sqrt(config_.head_dim);
  if (scale != 0 && std::abs(scale - usual) > 1e-6 * usual) {
    return file_.KeyError(Key("attention.scale"),
                          absl::StrCat("is ", scale, "; only ", usual,
                                       " (1 / sqrt(head size)) is supported"));
  }
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadContext() {
  NIBBLE_ASSIGN_OR_RETURN(config_.context_length,
                          Count("context_length", kMaxContextTokens));
  trained_context_ = config_.context_length;
  NIBBLE_ASSIGN_OR_RETURN(
      const int64_t window,
      file_.IntegerOr(Key("attention.sliding_window"), 0, {0, UINT32_MAX}));
  if (window > 0 && window < config_.context_length) {
    // Within the window, sliding attention is plain attention: serving only
    // that much context is exact.
    Log(LogLevel::kWarning, "context limited to the sliding window")
        .With("file", file_.path())
        .With("window_tokens", window)
        .With("trained_tokens", config_.context_length);
    config_.context_length = static_cast<int32_t>(window);
  }
  return absl::OkStatus();
}

absl::Status ConfigReader::ReadVocab() {
  const GgufTensor* embedding = file_.FindTensor("token_embd.weight");
  if (embedding == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        file_.path(), ": tensor \"token_embd.weight\" is missing"));
  }
  const kernels::WeightView view = embedding->View();
  if (embedding->num_dims != 2 || view.k != config_.hidden_size) {
    return Error("tensor \"token_embd.weight\" has ", embedding->num_dims,
                 " dimensions and rows of ", view.k,
                 " elements, expected 2 and ", config_.hidden_size);
  }
  if (view.n > kMaxVocab) {
    return Error("tensor \"token_embd.weight\" has ", view.n, " rows, at most ",
                 kMaxVocab, " are supported");
  }
  config_.vocab_size = static_cast<int32_t>(view.n);
  NIBBLE_ASSIGN_OR_RETURN(const int32_t stated,
                          CountOr("vocab_size", config_.vocab_size, kMaxVocab));
  if (stated != config_.vocab_size) {
    return Error("key ", Quoted(Key("vocab_size")), " is ", stated,
                 ", expected the rows of tensor \"token_embd.weight\", ",
                 config_.vocab_size);
  }
  config_.tied_embeddings = file_.FindTensor("output.weight") == nullptr;
  return absl::OkStatus();
}

void ConfigReader::CountWeights() {
  std::array<uint64_t, kernels::kNumFormats> weights = {};
  for (const GgufTensor& tensor : file_.tensors()) {
    const auto elements = static_cast<uint64_t>(tensor.elements());
    config_.parameters += elements;
    config_.weight_bytes += tensor.bytes.size();
    weights[static_cast<size_t>(tensor.format)] += elements;
  }
  const auto most = std::max_element(weights.begin(), weights.end());
  const auto format = static_cast<kernels::QuantFormat>(most - weights.begin());
  config_.file_type = std::string(kernels::Name(format));
}

absl::StatusOr<ModelConfig> ConfigReader::Read() {
  NIBBLE_RETURN_IF_ERROR(CheckWholeModel());
  NIBBLE_RETURN_IF_ERROR(FindArchitecture());
  NIBBLE_RETURN_IF_ERROR(CheckUnsupported());
  NIBBLE_RETURN_IF_ERROR(ReadShape());
  NIBBLE_RETURN_IF_ERROR(ReadHeads());
  NIBBLE_RETURN_IF_ERROR(ReadContext());
  NIBBLE_RETURN_IF_ERROR(ReadVocab());
  NIBBLE_ASSIGN_OR_RETURN(
      const RopeSpec rope,
      ReadRopeSpec(file_, arch_.name, config_.head_dim, trained_context_));
  config_.rope = MakeRope(rope);
  config_.rope.pairing = arch_.pairing;
  CountWeights();
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view name,
                          file_.StringOr("general.name", ""));
  config_.name = SanitizeUtf8(name);
  return std::move(config_);
}

}  // namespace

std::string_view Name(Architecture architecture) {
  for (const ArchitectureInfo& info : kArchitectures) {
    if (info.architecture == architecture) return info.name;
  }
  return "";
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  return ConfigReader(file).Read();
}

}  // namespace nibble::model
