#include "model/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "base/utf8.h"
#include "model/byte_reader.h"

namespace nibble::model {
namespace {

// The specification's limits.
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kMinAlignment = 8;
constexpr int64_t kDefaultAlignment = 32;
// Ours: a page of the largest machines.
constexpr int64_t kMaxAlignment = 65536;

// The least a key takes: length, one character, type, a one-byte value.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
// The least a tensor takes: length, one character, n_dims, a dim, type, offset.
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

// Reads one file front to back; a local of GgufFile::Parse.
class GgufParser final {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string path)
      : bytes_(bytes), reader_(bytes) {
    file_.path_ = std::move(path);
  }

  absl::StatusOr<GgufFile> Parse() {
    NIBBLE_RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < num_keys_; ++i) {
      NIBBLE_RETURN_IF_ERROR(ReadKey(i));
    }
    NIBBLE_RETURN_IF_ERROR(ReadAlignment());
    // Tensors wait for the end of the directory: their data begins after it.
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      NIBBLE_RETURN_IF_ERROR(ReadTensor(i));
    }
    NIBBLE_RETURN_IF_ERROR(PlaceTensors());
    NIBBLE_RETURN_IF_ERROR(CheckOverlap());
    return std::move(file_);
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path_, ": ", parts...));
  }

  absl::Status Truncated(std::string_view what) const {
    return Error("the file ends inside ", Absl(what), " (at byte ",
                 reader_.position(), " of ", bytes_.size(), ")");
  }

  absl::Status ReadHeader();
  absl::Status CheckVersion(uint32_t version);
  absl::Status ReadKey(uint64_t index);
  absl::StatusOr<GgufValue> ReadValue(std::string_view key);
  absl::StatusOr<GgufValue> ReadArray(std::string_view key);
  absl::Status CheckBools(std::string_view key, const GgufValue& value) const;
  absl::StatusOr<std::string_view> ReadName(const std::string& what,
                                            uint64_t max_bytes);
  absl::Status ReadAlignment();
  absl::Status ReadTensor(uint64_t index);
  absl::Status ReadDims(GgufTensor& tensor);
  absl::Status PlaceTensors();
  absl::Status CheckOverlap() const;

  std::span<const std::byte> bytes_;
  ByteReader reader_;
  GgufFile file_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
};

absl::Status GgufParser::CheckVersion(uint32_t version) {
  if (version == 2 || version == 3) return absl::OkStatus();
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= 3) {
    return Error("is a big-endian GGUF file; only little-endian is supported");
  }
  return Error("is GGUF version ", version, "; versions 2 and 3 are supported");
}

absl::Status GgufParser::ReadHeader() {
  const auto magic = reader_.Take(4);
  if (!magic) return Error("is not a GGUF file: ", bytes_.size(), " bytes");
  if (AsText(*magic) != "GGUF") {
    return Error("is not a GGUF file: it begins with ", Quoted(AsText(*magic)));
  }
  const auto version = reader_.Read<uint32_t>();
  if (!version) return Truncated("the header");
  NIBBLE_RETURN_IF_ERROR(CheckVersion(*version));
  file_.version_ = *version;
  const auto tensors = reader_.Read<uint64_t>();
  const auto keys = reader_.Read<uint64_t>();
  if (!tensors || !keys) return Truncated("the header");
  num_tensors_ = *tensors;
  num_keys_ = *keys;
  if (num_keys_ > reader_.remaining() / kMinKeyBytes) {
    return Error("the header says ", num_keys_, " keys, but ",
                 reader_.remaining(), " bytes hold at most ",
                 reader_.remaining() / kMinKeyBytes);
  }
  if (num_tensors_ > reader_.remaining() / kMinTensorBytes) {
    return Error("the header says ", num_tensors_, " tensors, but ",
                 reader_.remaining(), " bytes hold at most ",
                 reader_.remaining() / kMinTensorBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string_view> GgufParser::ReadName(const std::string& what,
                                                      uint64_t max_bytes) {
  const auto length = reader_.Read<uint64_t>();
  if (!length) return Truncated("the name of " + what);
  if (*length == 0) return Error(what, " has an empty name");
  if (*length > max_bytes) {
    return Error(what, " has a name of ", *length, " bytes, at most ",
                 max_bytes, " are allowed");
  }
  const auto bytes = reader_.Take(*length);
  if (!bytes) return Truncated("the name of " + what);
  const std::string_view name = AsText(*bytes);
  if (!IsValidUtf8(name)) {
    return Error(what, " has a name that is not UTF-8: ", Quoted(name));
  }
  return name;
}

absl::Status GgufParser::ReadKey(uint64_t index) {
  NIBBLE_ASSIGN_OR_RETURN(
      const std::string_view name,
      ReadName(absl::StrCat("key number ", index), kMaxKeyBytes));
  NIBBLE_ASSIGN_OR_RETURN(const GgufValue value, ReadValue(name));
  if (!file_.key_index_.emplace(Absl(name), file_.keys_.size()).second) {
    return Error("key ", Quoted(name), " occurs twice");
  }
  file_.keys_.push_back({name, value});
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> GgufParser::ReadValue(std::string_view key) {
  const std::string what = absl::StrCat("key ", Quoted(key));
  const auto number = reader_.Read<uint32_t>();
  if (!number) return Truncated(what);
  if (*number > kMaxGgufType) {
    return Error(what, " has the unknown value type ", *number);
  }
  GgufValue value;
  value.type = static_cast<GgufType>(*number);
  if (value.type == GgufType::kArray) return ReadArray(key);
  uint64_t length = FixedBytes(value.type);
  if (value.type == GgufType::kString) {
    const auto string_length = reader_.Read<uint64_t>();
    if (!string_length) return Truncated(what);
    length = *string_length;
    if (length > reader_.remaining()) {
      return Error(what, " is a string of ", length, " bytes, but only ",
                   reader_.remaining(), " are left in the file");
    }
  }
  const auto bytes = reader_.Take(length);
  if (!bytes) return Truncated(what);
  value.bytes = *bytes;
  if (value.type == GgufType::kBool) {
    NIBBLE_RETURN_IF_ERROR(CheckBools(key, value));
  }
  return value;
}

absl::StatusOr<GgufValue> GgufParser::ReadArray(std::string_view key) {
  const std::string what = absl::StrCat("key ", Quoted(key));
  const auto number = reader_.Read<uint32_t>();
  const auto count = reader_.Read<uint64_t>();
  if (!number || !count) return Truncated(what);
  if (*number > kMaxGgufType) {
    return Error(what, " is an array of the unknown value type ", *number);
  }
  GgufValue value;
  value.type = GgufType::kArray;
  value.element = static_cast<GgufType>(*number);
  value.count = *count;
  if (value.element == GgufType::kArray) {
    return Error(what, " is an array of arrays, which is not supported");
  }
  const bool strings = value.element == GgufType::kString;
  // A string takes at least its length.
  const uint64_t least = strings ? 8 : FixedBytes(value.element);
  if (value.count > reader_.remaining() / least) {
    return Error(what, " is an array of ", value.count, " elements, but only ",
                 reader_.remaining(), " bytes are left in the file");
  }
  const uint64_t begin = reader_.position();
  if (!strings) {
    value.bytes = *reader_.Take(value.count * least);
    if (value.element == GgufType::kBool) {
      NIBBLE_RETURN_IF_ERROR(CheckBools(key, value));
    }
    return value;
  }
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto length = reader_.Read<uint64_t>();
    if (!length || !reader_.Take(*length)) {
      return Error(what, ": string ", i, " of ", value.count,
                   " reaches past the end of the file");
    }
  }
  value.bytes = bytes_.subspan(begin, reader_.position() - begin);
  return value;
}

absl::Status GgufParser::CheckBools(std::string_view key,
                                    const GgufValue& value) const {
  for (const std::byte byte : value.bytes) {
    if (byte > std::byte{1}) {
      return Error("key ", Quoted(key), " has the boolean value ",
                   std::to_integer<int>(byte), ", expected 0 or 1");
    }
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadAlignment() {
  NIBBLE_ASSIGN_OR_RETURN(
      const int64_t alignment,
      file_.IntegerOr("general.alignment", kDefaultAlignment,
                      {kMinAlignment, kMaxAlignment}));
  if ((alignment & (alignment - 1)) != 0) {
    return Error("key \"general.alignment\" is ", alignment,
                 ", expected a power of two");
  }
  file_.alignment_ = static_cast<uint32_t>(alignment);
  return absl::OkStatus();
}

absl::Status GgufParser::ReadDims(GgufTensor& tensor) {
  const std::string what = absl::StrCat("tensor ", Quoted(tensor.name));
  const auto num_dims = reader_.Read<uint32_t>();
  if (!num_dims) return Truncated(what);
  if (*num_dims < 1 || *num_dims > kMaxDims) {
    return Error(what, " has ", *num_dims, " dimensions, expected 1 to ",
                 kMaxDims);
  }
  tensor.num_dims = *num_dims;
  tensor.dims.fill(1);
  std::optional<int64_t> elements = 1;
  for (uint32_t i = 0; i < *num_dims; ++i) {
    const auto dim = reader_.Read<uint64_t>();
    if (!dim) return Truncated(what);
    if (*dim == 0) return Error(what, ": dimension ", i, " is 0");
    constexpr auto kMaxDim =
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (*dim <= kMaxDim) {
      tensor.dims[i] = static_cast<int64_t>(*dim);
      elements = CheckedMul(*elements, tensor.dims[i]);
    } else {
      elements = std::nullopt;
    }
    if (!elements) {
      return Error(what, ": dimension ", i, " is ", *dim,
                   ": the number of elements overflows");
    }
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensor(uint64_t index) {
  GgufTensor tensor;
  NIBBLE_ASSIGN_OR_RETURN(
      tensor.name,
      ReadName(absl::StrCat("tensor number ", index), kMaxTensorNameBytes));
  const std::string what = absl::StrCat("tensor ", Quoted(tensor.name));
  if (!file_.tensor_index_.emplace(Absl(tensor.name), file_.tensors_.size())
           .second) {
    return Error(what, " occurs twice");
  }
  NIBBLE_RETURN_IF_ERROR(ReadDims(tensor));
  const auto type = reader_.Read<uint32_t>();
  const auto offset = reader_.Read<uint64_t>();
  if (!type || !offset) return Truncated(what);
  const auto format = FormatOfTensorType(*type);
  if (!format) {
    return Error(what, " has the type ", TensorTypeName(*type),
                 ", which is not supported");
  }
  tensor.format = *format;
  tensor.offset_bytes = *offset;  // within the data, until PlaceTensors
  const int block = kernels::Info(*format).block_elements;
  if (tensor.dims[0] % block != 0) {
    return Error(what, " (", Absl(kernels::Name(*format)), ") has rows of ",
                 tensor.dims[0], " elements, expected a multiple of ", block);
  }
  if (*offset % file_.alignment_ != 0) {
    return Error(what, " begins at offset ", *offset,
                 ", expected a multiple of the alignment, ", file_.alignment_);
  }
  file_.tensors_.push_back(tensor);
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors() {
  // The position is at most the file's size, far from overflow.
  const uint64_t data_begin =
      RoundUp<uint64_t>(reader_.position(), file_.alignment_);
  for (GgufTensor& tensor : file_.tensors_) {
    const kernels::FormatInfo& format = kernels::Info(tensor.format);
    const auto size = CheckedMul<uint64_t>(
        static_cast<uint64_t>(tensor.elements() / format.block_elements),
        format.block_bytes);
    const auto begin = CheckedAdd(data_begin, tensor.offset_bytes);
    const auto end = size && begin ? CheckedAdd(*begin, *size) : std::nullopt;
    if (!end || *end > bytes_.size()) {
      return Error("tensor ", Quoted(tensor.name), ": ",
                   size ? absl::StrCat(*size) : "more than 2^64",
                   " bytes of data at offset ", tensor.offset_bytes,
                   " reach past the end of the file, ", bytes_.size(),
                   " bytes");
    }
    tensor.offset_bytes = *begin;
    tensor.bytes = bytes_.subspan(*begin, *size);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckOverlap() const {
  std::vector<const GgufTensor*> order;
  order.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) {
              return a->offset_bytes < b->offset_bytes;
            });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = *order[i - 1];
    if (before.offset_bytes + before.bytes.size() > order[i]->offset_bytes) {
      return Error("tensors ", Quoted(before.name), " and ",
                   Quoted(order[i]->name), " overlap");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes,
                                         std::string path) {
  return GgufParser(bytes, std::move(path)).Parse();
}

kernels::WeightView GgufTensor::View() const {
  return {.name = name,
          .format = format,
          .n = dims[1] * dims[2] * dims[3],
          .k = dims[0],
          .data = bytes.data()};
}

}  // namespace nibble::model
