#include "model/checkpoint.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/reference/half.h"
#include "model/gguf.h"
#include "model/tokenizer_metadata.h"

namespace nibble::model {
namespace {

using kernels::QuantFormat;
using kernels::WeightView;

// Element `i` of a tensor of 16-bit values, which need not be aligned.
uint16_t Bits16(const WeightView& tensor, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, tensor.data + i * 2, sizeof(bits));
  return bits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(
    const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint);
  NIBBLE_ASSIGN_OR_RETURN(checkpoint->file_, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(const GgufFile gguf,
                          GgufFile::Parse(checkpoint->file_->bytes(), path));
  NIBBLE_ASSIGN_OR_RETURN(checkpoint->config_, ReadModelConfig(gguf));
  NIBBLE_ASSIGN_OR_RETURN(checkpoint->tokenizer_, ReadTokenizerData(gguf));
  checkpoint->tensors_.reserve(gguf.tensors().size());
  for (const GgufTensor& tensor : gguf.tensors()) {
    checkpoint->index_.emplace(tensor.name, checkpoint->tensors_.size());
    checkpoint->tensors_.push_back(tensor.View());
  }
  return checkpoint;
}

bool Checkpoint::Has(std::string_view name) const {
  return index_.contains(Absl(name));
}

absl::StatusOr<WeightView> Checkpoint::Tensor(std::string_view name, int64_t n,
                                              int64_t k) const {
  const auto it = index_.find(Absl(name));
  if (it == index_.end()) {
    return absl::NotFoundError(
        absl::StrCat(path(), ": tensor ", Quoted(name), " is missing"));
  }
  const WeightView& tensor = tensors_[it->second];
  if (tensor.n != n || tensor.k != k) {
    return absl::InvalidArgumentError(absl::StrCat(
        path(), ": tensor ", Quoted(name), " has the shape [", tensor.n, ", ",
        tensor.k, "], expected [", n, ", ", k, "]"));
  }
  return tensor;
}

absl::StatusOr<std::vector<float>> Checkpoint::Vector(std::string_view name,
                                                      int64_t k) const {
  NIBBLE_ASSIGN_OR_RETURN(const WeightView tensor, Tensor(name, 1, k));
  std::vector<float> values(k);
  switch (tensor.format) {
    case QuantFormat::kF32:
      std::memcpy(values.data(), tensor.data, k * sizeof(float));
      return values;
    case QuantFormat::kF16:
      for (int64_t i = 0; i < k; ++i) {
        values[i] = kernels::reference::HalfToFloat(Bits16(tensor, i));
      }
      return values;
    case QuantFormat::kBF16:
      for (int64_t i = 0; i < k; ++i) {
        values[i] = kernels::reference::BFloat16ToFloat(Bits16(tensor, i));
      }
      return values;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          path(), ": tensor ", Quoted(name), " is ",
          Absl(kernels::Name(tensor.format)), ", expected f32, f16 or bf16"));
  }
}

}  // namespace nibble::model
