#include "tests/support/gguf_writer.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"

namespace nibble::test {

using model::GgufType;

std::string StringBytes(std::string_view text) {
  return Bytes<uint64_t>(text.size()) + std::string(text);
}

namespace {

uint32_t Number(GgufType type) { return static_cast<uint32_t>(type); }

std::string ArrayHeader(GgufType element, uint64_t count) {
  return Bytes(Number(element)) + Bytes(count);
}

}  // namespace

GgufWriter& GgufWriter::Raw(std::string_view key, uint32_t type,
                            std::string_view payload) {
  keys_.push_back({std::string(key), type, std::string(payload)});
  return *this;
}

GgufWriter& GgufWriter::Uint32(std::string_view key, uint32_t value) {
  return Raw(key, Number(GgufType::kUint32), Bytes(value));
}

GgufWriter& GgufWriter::Int32(std::string_view key, int32_t value) {
  return Raw(key, Number(GgufType::kInt32), Bytes(value));
}

GgufWriter& GgufWriter::Uint64(std::string_view key, uint64_t value) {
  return Raw(key, Number(GgufType::kUint64), Bytes(value));
}

GgufWriter& GgufWriter::Float32(std::string_view key, float value) {
  return Raw(key, Number(GgufType::kFloat32), Bytes(value));
}

GgufWriter& GgufWriter::Bool(std::string_view key, bool value) {
  return Raw(key, Number(GgufType::kBool), Bytes<uint8_t>(value ? 1 : 0));
}

GgufWriter& GgufWriter::String(std::string_view key, std::string_view value) {
  return Raw(key, Number(GgufType::kString), StringBytes(value));
}

GgufWriter& GgufWriter::Strings(std::string_view key,
                                const std::vector<std::string>& values) {
  std::string payload = ArrayHeader(GgufType::kString, values.size());
  for (const std::string& value : values) payload += StringBytes(value);
  return Raw(key, Number(GgufType::kArray), payload);
}

GgufWriter& GgufWriter::Floats(std::string_view key,
                               const std::vector<float>& values) {
  std::string payload = ArrayHeader(GgufType::kFloat32, values.size());
  for (const float value : values) payload += Bytes(value);
  return Raw(key, Number(GgufType::kArray), payload);
}

GgufWriter& GgufWriter::Int32s(std::string_view key,
                               const std::vector<int32_t>& values) {
  std::string payload = ArrayHeader(GgufType::kInt32, values.size());
  for (const int32_t value : values) payload += Bytes(value);
  return Raw(key, Number(GgufType::kArray), payload);
}

GgufWriter& GgufWriter::Remove(std::string_view key) {
  std::erase_if(keys_, [key](const Key& entry) { return entry.name == key; });
  return *this;
}

GgufWriter& GgufWriter::Tensor(TensorToWrite tensor) {
  tensors_.push_back(std::move(tensor));
  return *this;
}

GgufWriter& GgufWriter::Zeros(std::string_view name,
                              std::vector<uint64_t> dims) {
  uint64_t elements = 1;
  for (const uint64_t dim : dims) elements *= dim;
  return Tensor({.name = std::string(name),
                 .dims = std::move(dims),
                 .bytes = std::string(elements * sizeof(float), '\0')});
}

GgufWriter& GgufWriter::RemoveTensor(std::string_view name) {
  std::erase_if(tensors_,
                [name](const TensorToWrite& t) { return t.name == name; });
  return *this;
}

std::vector<uint64_t> GgufWriter::Offsets() const {
  std::vector<uint64_t> offsets;
  uint64_t end = 0;
  for (const TensorToWrite& tensor : tensors_) {
    const uint64_t begin = RoundUp(end, alignment_bytes);
    offsets.push_back(tensor.offset_bytes.value_or(begin));
    if (!tensor.offset_bytes) end = begin + tensor.bytes.size();
  }
  return offsets;
}

std::string GgufWriter::BuildDirectory() const {
  std::string out = magic + Bytes(version) +
                    Bytes(num_tensors.value_or(tensors_.size())) +
                    Bytes(num_keys.value_or(keys_.size()));
  for (const Key& key : keys_) {
    out += StringBytes(key.name) + Bytes(key.type) + key.payload;
  }
  const std::vector<uint64_t> offsets = Offsets();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorToWrite& tensor = tensors_[i];
    out += StringBytes(tensor.name) +
           Bytes(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) out += Bytes(dim);
    out += Bytes(tensor.type) + Bytes(offsets[i]);
  }
  return out;
}

std::string GgufWriter::Build() const {
  std::string out = BuildDirectory();
  const uint64_t data_begin = RoundUp<uint64_t>(out.size(), alignment_bytes);
  const std::vector<uint64_t> offsets = Offsets();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    // Data at an offset a test chose is that test's to add.
    if (tensors_[i].offset_bytes) continue;
    out.resize(data_begin + offsets[i], '\0');
    out += tensors_[i].bytes;
  }
  return out;
}

TemporaryFile::TemporaryFile(std::string_view content) {
  const char* root = std::getenv("TMPDIR");
  path_ = std::string(root != nullptr ? root : "/tmp") + "/nibble-XXXXXX";
  const int fd = mkstemp(path_.data());
  NIBBLE_CHECK(fd >= 0);
  std::FILE* file = fdopen(fd, "wb");
  NIBBLE_CHECK(file != nullptr);
  NIBBLE_CHECK_EQ(std::fwrite(content.data(), 1, content.size(), file),
                  content.size());
  NIBBLE_CHECK_EQ(std::fclose(file), 0);
}

TemporaryFile::~TemporaryFile() { std::remove(path_.c_str()); }

}  // namespace nibble::test
