// Reading a file's bytes in order without ever passing its end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

namespace nibble::model {

static_assert(std::endian::native == std::endian::little,
              "file numbers are copied as they lie: little-endian");

// A cursor over borrowed bytes; each read says whether there was enough left
// and moves only then. A local value of whoever parses.
class ByteReader final {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  [[nodiscard]] std::optional<T> Read() {
    static_assert(std::is_arithmetic_v<T>);
    if (remaining() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  [[nodiscard]] std::optional<std::span<const std::byte>> Take(
      uint64_t length) {
    if (length > remaining()) return std::nullopt;
    const auto part = bytes_.subspan(position_, length);
    position_ += length;
    return part;
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace nibble::model
