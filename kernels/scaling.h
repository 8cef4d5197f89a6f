// Where the scale of a tensor's FP8 codes comes from. Rows and blocks always
// take the greatest value of their own; a whole tensor's is known only after a
// pass over it, which two recipes save.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/activation_codes.h"

namespace nibble::kernels {

// A tensor's greatest magnitude over the last calls, in a ring. By value, used
// by one thread.
class MaxHistory final {
 public:
  explicit MaxHistory(int length);  // > 0

  // Numbers that are not finite are left out: one bad tensor would spoil the
  // scale of the next `length`.
  void Record(float greatest);
  bool empty() const { return recorded_ == 0; }
  float Greatest() const;  // 0 where empty

 private:
  std::vector<float> ring_;
  int64_t recorded_ = 0;
};

// The scale of one tensor from call to call. By value, used by one thread.
//
//   current   from the tensor itself: nothing clips, one more pass
//   delayed   from the greatest of the last calls (NVIDIA Transformer Engine's
//             recipe keeps 1,024); of the first call from itself
//   static    from a maximum measured on other data (ActivationMaxima)
//
// A scale is greatest / the format's greatest number, never below that of
// kLeastMax.
class TensorScale final {
 public:
  static TensorScale Current(Fp8 format);
  static TensorScale Delayed(Fp8 format, int history);
  static TensorScale Static(Fp8 format, float greatest);  // finite, >= 0

  // The scale for a tensor whose greatest magnitude is `greatest`, which is
  // recorded for later ones. NaN under the current recipe where that is not
  // finite.
  float ScaleFor(float greatest);

 private:
  enum class Recipe : uint8_t { kCurrent, kDelayed, kStatic };
  TensorScale(Recipe recipe, Fp8 format, int history);

  Recipe recipe_;
  Fp8 format_;
  MaxHistory history_;
};

// The greatest magnitudes of a model's activations on calibration data, by the
// name of the layer that reads them, and the text file that keeps them beside
// the model. By value, used by one thread.
//
// The file: a line "nibble activation maxima 1", then "<maximum> <name>" a
// line.
class ActivationMaxima final {
 public:
  // Keeps the greater of what is known and `greatest`. False, and nothing kept,
  // where that is not finite or is negative.
  bool Observe(std::string_view name, float greatest);
  // NOT_FOUND names a layer that was never observed.
  absl::StatusOr<float> Find(std::string_view name) const;
  int64_t size() const { return static_cast<int64_t>(maxima_.size()); }

  std::string ToString() const;
  // Reads what ToString printed. INVALID_ARGUMENT names the line it cannot
  // read.
  static absl::StatusOr<ActivationMaxima> Parse(std::string_view text);
  // A reader sees the whole old or the whole new file. NOT_FOUND where the file
  // or its folder is not there.
  absl::Status Save(const std::string& path) const;
  static absl::StatusOr<ActivationMaxima> Load(const std::string& path);

 private:
  std::map<std::string, float, std::less<>> maxima_;
};

}  // namespace nibble::kernels
