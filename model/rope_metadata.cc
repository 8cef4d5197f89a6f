#include "model/rope_metadata.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nibble::model {
namespace {

constexpr double kMaxFactor = 1e6;
// Less would shorten the context, and the smallest floats would overflow.
constexpr double kMinFactor = 1e-3;
constexpr double kMaxBase = 1e12;
// The base is raised to negative powers: at 1 all pairs turn alike.
constexpr double kMinBase = 1.001;

absl::StatusOr<double> ReadFactor(const GgufFile& file,
                                  const std::string& prefix) {
  std::string key = prefix + "scaling.factor";
  if (file.Find(key) == nullptr) key = prefix + "scale_linear";  // its old name
  NIBBLE_ASSIGN_OR_RETURN(const double factor,
                          file.NumberOr(key, 0, {0, kMaxFactor}));
  if (factor == 0) return 1.0;  // converters write 0 for "none"
  if (factor < kMinFactor) {
    return file.KeyError(
        key,
        absl::StrCat("is ", factor, ", expected 0 or at least ", kMinFactor));
  }
  return factor;
}

absl::StatusOr<std::vector<float>> ReadFrequencyDivisors(const GgufFile& file,
                                                         int64_t pairs) {
  const GgufTensor* tensor = file.FindTensor("rope_freqs.weight");
  if (tensor == nullptr) return std::vector<float>();
  const std::string what =
      absl::StrCat(file.path(), ": tensor \"rope_freqs.weight\" is ");
  if (tensor->format != kernels::QuantFormat::kF32 ||
      tensor->elements() != pairs) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, Absl(kernels::Name(tensor->format)), " [",
                     tensor->elements(), "], expected f32 [", pairs, "]"));
  }
  std::vector<float> divisors(pairs);
  std::memcpy(divisors.data(), tensor->bytes.data(), tensor->bytes.size());
  for (int64_t i = 0; i < pairs; ++i) {
    // Written so that a NaN is refused.
    if (!(divisors[i] >= kMinFactor && divisors[i] <= kMaxFactor)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, divisors[i], " at index ", i, ", expected ",
                       kMinFactor, " to ", kMaxFactor));
    }
  }
  return divisors;
}

absl::Status ReadYarn(const GgufFile& file, const std::string& prefix,
                      int32_t context_tokens, RopeSpec& spec) {
  NIBBLE_ASSIGN_OR_RETURN(
      const int64_t original,
      file.IntegerOr(prefix + "scaling.original_context_length", context_tokens,
                     {0, kMaxContextTokens}));
  spec.original_context =
      original == 0 ? context_tokens : static_cast<int32_t>(original);
  constexpr GgufRange<double> kRotations = {1e-3, 1e6};
  NIBBLE_ASSIGN_OR_RETURN(spec.beta_fast,
                          file.NumberOr(prefix + "scaling.yarn_beta_fast",
                                        spec.beta_fast, kRotations));
  NIBBLE_ASSIGN_OR_RETURN(spec.beta_slow,
                          file.NumberOr(prefix + "scaling.yarn_beta_slow",
                                        spec.beta_slow, kRotations));
  return absl::OkStatus();
}

absl::StatusOr<RopeScaling> ReadScaling(const GgufFile& file,
                                        const std::string& prefix,
                                        double factor) {
  const std::string key = prefix + "scaling.type";
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view scaling,
                          file.StringOr(key, factor == 1 ? "none" : "linear"));
  if (scaling == "none") return RopeScaling::kNone;
  if (scaling == "linear") return RopeScaling::kLinear;
  if (scaling == "yarn") return RopeScaling::kYarn;
  return file.KeyError(key, absl::StrCat("is ", Quoted(scaling),
                                         ", expected none, linear or yarn"));
}

}  // namespace

absl::StatusOr<RopeSpec> ReadRopeSpec(const GgufFile& file,
                                      std::string_view architecture,
                                      int32_t head_dim,
                                      int32_t context_tokens) {
  const std::string prefix = absl::StrCat(Absl(architecture), ".rope.");
  RopeSpec spec;
  const std::string dims_key = prefix + "dimension_count";
  NIBBLE_ASSIGN_OR_RETURN(const int64_t dims,
                          file.IntegerOr(dims_key, head_dim, {1, head_dim}));
  if (dims % 2 != 0) {
    return file.KeyError(
        dims_key, absl::StrCat("is ", dims, ", expected an even number"));
  }
  spec.rotary_dims = static_cast<int32_t>(dims);
  NIBBLE_ASSIGN_OR_RETURN(
      spec.frequency_base,
      file.NumberOr(prefix + "freq_base", spec.frequency_base,
                    {kMinBase, kMaxBase}));
  NIBBLE_ASSIGN_OR_RETURN(spec.factor, ReadFactor(file, prefix));
  NIBBLE_ASSIGN_OR_RETURN(
      spec.attention_factor,
      file.NumberOr(prefix + "scaling.attn_factor", 1, {1e-3, 1e3}));
  NIBBLE_ASSIGN_OR_RETURN(spec.scaling, ReadScaling(file, prefix, spec.factor));
  if (spec.scaling == RopeScaling::kYarn) {
    NIBBLE_RETURN_IF_ERROR(ReadYarn(file, prefix, context_tokens, spec));
  }
  NIBBLE_ASSIGN_OR_RETURN(spec.frequency_divisors,
                          ReadFrequencyDivisors(file, dims / 2));
  return spec;
}

}  // namespace nibble::model
