#include "kernels/cuda/linear/pack.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/column_order.h"
#include "kernels/cuda/linear/pack_tile.h"
#include "kernels/cuda/linear/w4a16.h"
#include "kernels/little_endian.h"
#include "kernels/reference/half.h"

namespace nibble::kernels::cuda {
namespace {

// The greatest group that the kernels know.
constexpr int64_t kMaxGroup = 128;

// Tiles packed together, block by block: an AWQ tensor has the codes of 128
// rows in each 64-byte line.
constexpr int64_t kPanelTiles = 8;

template <typename... Args>
absl::Status Refuse(const WeightView& weight, const Args&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", std::string(weight.name), "' (",
                   DisplayName(weight), "): ", why...));
}

// Where a bit of a non-zero scale lies, and whose it is.
struct ScaleBit {
  int exponent = 0;
  float value = 0;
  const WeightView* weight = nullptr;
};

// The outermost bits of the non-zero FP16 or BF16 scales of several tensors.
class ScaleRange final {
 public:
  void Add(const WeightView& weight, const std::byte* array) {
    for (int64_t i = 0; i < weight.n * weight.Groups(); ++i) {
      const uint16_t bits = Load16(array + 2 * i);
      Add(weight, weight.scale_dtype == DType::kBF16
                      ? reference::BFloat16ToFloat(bits)
                      : reference::HalfToFloat(bits));
    }
  }

  // The exponent nearest to 0 such that all scales times 2^-exponent are FP16
  // numbers: whole multiples of 2^-24 below 2^16.
  absl::StatusOr<int> Exponent() const {
    if (lowest_.weight == nullptr) return 0;
    const int least = highest_.exponent - 15;
    const int most = lowest_.exponent + 24;
    if (least <= most) return std::clamp(0, least, most);
    return Refuse(*lowest_.weight, "its scale or minimum ", lowest_.value,
                  " and ", highest_.value, " of tensor '",
                  std::string(highest_.weight->name),
                  "' lie too far apart: no power of two brings both into FP16 "
                  "exactly");
  }

 private:
  void Add(const WeightView& weight, float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7fffffff;
    if (bits == 0) return;
    const auto field = static_cast<int>(bits >> 23);
    // value = mantissa * 2^unit
    const uint32_t mantissa = (bits & 0x7fffff) | (field != 0 ? 0x800000u : 0u);
    const int unit = std::max(field, 1) - 150;
    const int low = unit + std::countr_zero(mantissa);
    const int high = unit + std::bit_width(mantissa) - 1;
    if (lowest_.weight == nullptr || low < lowest_.exponent) {
      lowest_ = {low, value, &weight};
    }
    if (highest_.weight == nullptr || high > highest_.exponent) {
      highest_ = {high, value, &weight};
    }
  }

  ScaleBit lowest_;
  ScaleBit highest_;
};

bool HasBFloat16Scales(const WeightView& weight) {
  return Info(weight.format).group_elements == 0 &&
         weight.scale_dtype == DType::kBF16;
}

// The power of two that brings the scales of all parts into FP16.
absl::StatusOr<int> ScaleExponent(std::span<const WeightView> parts) {
  if (std::none_of(parts.begin(), parts.end(), HasBFloat16Scales)) return 0;
  ScaleRange range;
  for (const WeightView& part : parts) {
    if (IsBlockFormat(part.format)) {
      return Refuse(part, "stacked with tensors whose scales are BF16");
    }
    range.Add(part, part.scales);
    if (part.format == QuantFormat::kInt4) range.Add(part, part.zeros_or_mins);
  }
  return range.Exponent();
}

// What the packed scales have no room for.
absl::Status CheckE8m0Scales(const WeightView& weight) {
  if (weight.format != QuantFormat::kMxfp4) return absl::OkStatus();
  for (int64_t i = 0; i < weight.n * weight.Groups(); ++i) {
    const auto e = std::to_integer<int>(weight.scales[i]);
    if (e > kMaxE8m0 && e != 255) {
      return Refuse(weight, "scale 2^", e - 127, " is above 2^",
                    kMaxE8m0 - 127);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckParts(std::span<const WeightView> parts,
                        const PackOptions& options) {
  const WeightView& first = parts.front();
  NIBBLE_ASSIGN_OR_RETURN(const W4Layout layout, W4LayoutOf(first));
  for (const WeightView& part : parts) {
    NIBBLE_RETURN_IF_ERROR(CheckWeight(part));
    NIBBLE_RETURN_IF_ERROR(CheckE8m0Scales(part));
    NIBBLE_ASSIGN_OR_RETURN(const W4Layout other, W4LayoutOf(part));
    const std::string stacked =
        absl::StrCat(" of tensor '", std::string(first.name), "' (",
                     DisplayName(first), ") it is stacked with");
    if (part.k != first.k) {
      return Refuse(part, "k = ", part.k, ", not the ", first.k, stacked);
    }
    if (other != layout) {
      return Refuse(part, "is laid out otherwise than the weights", stacked);
    }
    if (part.tensor_scale != first.tensor_scale) {
      return Refuse(part, "tensor scale ", part.tensor_scale, ", not the ",
                    first.tensor_scale, stacked);
    }
    if (options.interleave_gate_up && part.n != first.n) {
      return Refuse(part, "n = ", part.n, ", not the ", first.n, stacked);
    }
  }
  return absl::OkStatus();
}

// Packs the tiles of one matrix; a local of PackW4. Immutable: threads share
// it.
class TilePacker final {
 public:
  TilePacker(std::span<const WeightView> parts, const PackOptions& options,
             int scale_exponent, PackedW4* packed)
      : parts_(parts),
        interleave_(options.interleave_gate_up),
        format_({packed->layout, scale_exponent, packed->x_perm}),
        blocks_per_tile_(BlocksPerTile(packed->k)),
        tiles_(Tiles(packed->n)),
        out_(packed->blocks.data()) {}

  int64_t panels() const { return CeilDiv(tiles_, kPanelTiles); }

  void PackPanel(int64_t panel) const {
    const int64_t first = panel * kPanelTiles;
    const int64_t count = std::min(kPanelTiles, tiles_ - first);
    std::vector<std::vector<TileRun>> runs;
    for (int64_t i = 0; i < count; ++i) runs.push_back(RunsOf(first + i));
    for (int64_t block = 0; block < blocks_per_tile_; ++block) {
      for (int64_t i = 0; i < count; ++i) {
        std::byte* out = out_ + ((first + i) * blocks_per_tile_ + block) *
                                    format_.layout.BlockBytes();
        PackCodes(runs[i], format_, block, out);
        PackScales(runs[i], format_, block, out + kCodeBytes);
      }
    }
  }

 private:
  std::vector<TileRun> RunsOf(int64_t tile) const {
    if (interleave_) {
      const WeightView& part = parts_[tile % 2];
      const int64_t row = tile / 2 * kTileRows;
      return {{&part, row, 0, RowsLeft(part, row, 0)}};
    }
    std::vector<TileRun> runs;
    int64_t row = tile * kTileRows;  // in the part
    int filled = 0;
    for (const WeightView& part : parts_) {
      if (row < part.n) {
        const int count = RowsLeft(part, row, filled);
        runs.push_back({&part, row, filled, count});
        filled += count;
        row += count;
        if (filled == kTileRows) break;
      }
      row -= part.n;
    }
    return runs;
  }

  static int RowsLeft(const WeightView& part, int64_t row, int filled) {
    return static_cast<int>(
        std::min<int64_t>(kTileRows - filled, part.n - row));
  }

  std::span<const WeightView> parts_;
  bool interleave_;
  BlockFormat format_;
  int64_t blocks_per_tile_;
  int64_t tiles_;
  std::byte* out_;
};

void PackTiles(const TilePacker& packer, int threads) {
  const int64_t panels = packer.panels();
  const int64_t share = CeilDiv(panels, std::max(threads, 1));
  const auto pack = [&packer, panels, share](int64_t begin) {
    const int64_t end = std::min(begin + share, panels);
    for (int64_t panel = begin; panel < end; ++panel) packer.PackPanel(panel);
  };
  std::vector<std::jthread> workers;
  for (int64_t begin = share; begin < panels; begin += share) {
    workers.emplace_back(pack, begin);
  }
  pack(0);
}

// The blocks of packed, all zeros.
absl::Status AllocateBlocks(const std::string& name, PackedW4* packed) {
  const int64_t bytes = PackedBytes(packed->layout, packed->n, packed->k);
  try {
    packed->blocks.resize(static_cast<size_t>(bytes));
  } catch (const std::exception&) {  // the only way a vector can refuse
    return absl::ResourceExhaustedError(absl::StrCat(
        "tensor '", name, "': cannot allocate ", bytes, " bytes to pack it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<W4Layout> W4LayoutOf(const WeightView& weight) {
  const int group = Info(weight.format).group_elements;  // if it is fixed
  const auto chosen =
      static_cast<int>(weight.group_elements >= weight.k
                           ? kMaxGroup
                           : std::min(weight.group_elements, kMaxGroup));
  switch (weight.format) {
    case QuantFormat::kQ4_0:
      return W4Layout{W4Code::kInt4, W4Scale::kScale, group};
    case QuantFormat::kQ4_1:
      return W4Layout{W4Code::kInt4, W4Scale::kScaleMin, group};
    case QuantFormat::kQ4_K:
      return W4Layout{W4Code::kInt4, W4Scale::kQ4K, group};
    case QuantFormat::kInt4:
      return W4Layout{W4Code::kInt4, W4Scale::kScaleMin, chosen};
    case QuantFormat::kInt4Sym:
      return W4Layout{W4Code::kInt4, W4Scale::kScale, chosen};
    case QuantFormat::kAwq:
    case QuantFormat::kGptq:
      return W4Layout{W4Code::kInt4, W4Scale::kScaleZero, chosen};
    case QuantFormat::kMxfp4:
      return W4Layout{W4Code::kE2m1, W4Scale::kE8m0, group};
    case QuantFormat::kNvfp4:
      return W4Layout{W4Code::kE2m1, W4Scale::kE4m3, group};
    default:
      return Refuse(weight, "is no format of 4-bit codes");
  }
}

absl::StatusOr<PackedW4> PackW4(std::span<const WeightView> parts,
                                const PackOptions& options) {
  NIBBLE_CHECK(!parts.empty());
  NIBBLE_CHECK(!options.interleave_gate_up || parts.size() == 2);
  NIBBLE_RETURN_IF_ERROR(CheckParts(parts, options));
  const WeightView& first = parts.front();
  PackedW4 packed;
  packed.k = first.k;
  NIBBLE_ASSIGN_OR_RETURN(packed.layout, W4LayoutOf(first));
  NIBBLE_ASSIGN_OR_RETURN(packed.x_perm, ColumnOrder(first));
  for (const WeightView& part : parts) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> order,
                            ColumnOrder(part));
    if (order != packed.x_perm) {
      return Refuse(part,
                    "act-order sorts its columns otherwise than those of "
                    "tensor '",
                    std::string(first.name), "' it is stacked with");
    }
    packed.n += part.n;
  }
  if (options.interleave_gate_up) {
    packed.n = 2 * kTileRows * CeilDiv(first.n, kTileRows);
  }
  NIBBLE_ASSIGN_OR_RETURN(const int exponent, ScaleExponent(parts));
  const int more = packed.layout.scale == W4Scale::kE4m3 ? kE5m3TensorLog2 : 0;
  packed.tensor_scale = first.tensor_scale * PowerOfTwo(exponent + more);
  NIBBLE_RETURN_IF_ERROR(AllocateBlocks(std::string(first.name), &packed));
  PackTiles(TilePacker(parts, options, exponent, &packed), options.threads);
  return packed;
}

}  // namespace nibble::kernels::cuda
