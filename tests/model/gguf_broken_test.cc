// Broken files: each kind is refused, with a message that names the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "model/gguf.h"
#include "tests/support/gguf_writer.h"

namespace nibble::model {
namespace {

using test::Bytes;
using test::GgufWriter;
using test::StringBytes;
using ::testing::HasSubstr;

constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

// What Parse says about exactly these bytes (so that a sanitizer sees any
// read beyond them).
std::string Refusal(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  const std::vector<std::byte> exact(bytes.begin(), bytes.end());
  const auto file = GgufFile::Parse(exact, "m.gguf");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument)
      << file.status();
  const std::string message(file.status().message());
  EXPECT_EQ(message.substr(0, 8), "m.gguf: ");
  return message;
}

std::string Refusal(const GgufWriter& writer) {
  return Refusal(writer.Build());
}

GgufWriter WithTensor(test::TensorToWrite tensor) {
  GgufWriter writer;
  writer.Tensor(std::move(tensor));
  return writer;
}

TEST(GgufBroken, NotGguf) {
  EXPECT_THAT(Refusal("GGU"), HasSubstr("is not a GGUF file: 3 bytes"));
  EXPECT_THAT(Refusal("\x7f"
                      "ELF and more"),
              HasSubstr("begins with \"\\u007fELF\""));
}

TEST(GgufBroken, Versions) {
  for (const uint32_t version : {0u, 1u, 4u, 77u}) {
    GgufWriter writer;
    writer.version = version;
    EXPECT_THAT(Refusal(writer),
                HasSubstr("is GGUF version " + std::to_string(version) +
                          "; versions 2 and 3 are supported"));
  }
}

TEST(GgufBroken, BigEndian) {
  GgufWriter writer;
  writer.version = __builtin_bswap32(3);
  EXPECT_THAT(Refusal(writer), HasSubstr("big-endian"));
}

TEST(GgufBroken, CountsBeyondTheFile) {
  for (const uint64_t count : {uint64_t{3}, uint64_t{1} << 60, UINT64_MAX}) {
    GgufWriter tensors;
    tensors.num_tensors = count;
    EXPECT_THAT(Refusal(tensors.Build() + "12345678"),
                HasSubstr("the header says " + std::to_string(count) +
                          " tensors, but 8 bytes hold at most 0"));
    GgufWriter keys;
    keys.num_keys = count;
    EXPECT_THAT(Refusal(keys), HasSubstr("the header says " +
                                         std::to_string(count) + " keys"));
  }
}

TEST(GgufBroken, KeyNames) {
  EXPECT_THAT(Refusal(GgufWriter().Uint32("", 1)),
              HasSubstr("key number 0 has an empty name"));
  EXPECT_THAT(Refusal(GgufWriter().Uint32("a", 1).Uint32("\xC0\xAF", 1)),
              HasSubstr("key number 1 has a name that is not UTF-8"));
  EXPECT_THAT(Refusal(GgufWriter().Uint32(std::string(65536, 'k'), 1)),
              HasSubstr("key number 0 has a name of 65536 bytes, at most "
                        "65535"));
  GgufWriter endless;
  endless.num_keys = 1;
  EXPECT_THAT(Refusal(endless.Build() + Bytes(UINT64_MAX) + "0123456789"),
              HasSubstr("name of 18446744073709551615 bytes"));
  EXPECT_THAT(Refusal(endless.Build() + Bytes<uint64_t>(100) + "0123456789"),
              HasSubstr("the file ends inside the name of key number 0"));
}

TEST(GgufBroken, DuplicateKeys) {
  EXPECT_THAT(
      Refusal(GgufWriter().Uint32("a", 1).Bool("b", true).Uint32("a", 1)),
      HasSubstr("key \"a\" occurs twice"));
}

TEST(GgufBroken, ValueTypes) {
  for (const uint32_t type : {13u, 255u, UINT32_MAX}) {
    EXPECT_THAT(Refusal(GgufWriter().Raw("a", type, "12345678")),
                HasSubstr("key \"a\" has the unknown value type " +
                          std::to_string(type)));
    EXPECT_THAT(
        Refusal(GgufWriter().Raw(
            "a", kArray, Bytes(type) + Bytes<uint64_t>(1) + "12345678")),
        HasSubstr("key \"a\" is an array of the unknown value type " +
                  std::to_string(type)));
  }
}

TEST(GgufBroken, StringLengths) {
  for (const uint64_t length : {uint64_t{5}, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_THAT(Refusal(GgufWriter().Raw("a", kString, Bytes(length) + "1234")),
                HasSubstr("key \"a\" is a string of " + std::to_string(length) +
                          " bytes, but only 4"));
  }
}

TEST(GgufBroken, ArrayLengths) {
  for (const uint32_t type : {0u, 2u, 4u, 6u, 7u, 8u, 10u, 12u}) {
    for (const uint64_t count :
         {uint64_t{9}, uint64_t{1} << 61, uint64_t{1} << 63, UINT64_MAX}) {
      EXPECT_THAT(Refusal(GgufWriter().Raw(
                      "a", kArray, Bytes(type) + Bytes(count) + "\1\1\1\1")),
                  HasSubstr("key \"a\" is an array of " +
                            std::to_string(count) + " elements, but only 4"));
    }
  }
}

TEST(GgufBroken, StringsOfAnArray) {
  const std::string two = Bytes(kString) + Bytes<uint64_t>(2);
  for (const uint64_t length : {uint64_t{9}, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_THAT(
        Refusal(GgufWriter().Raw(
            "a", kArray, two + StringBytes("") + Bytes(length) + "12345678")),
        HasSubstr("key \"a\": string 1 of 2 reaches past the end"));
  }
}

TEST(GgufBroken, NestedArrays) {
  const std::string nested = Bytes(kArray) + Bytes<uint64_t>(1) +
                             Bytes<uint32_t>(0) + Bytes<uint64_t>(1) + "x";
  EXPECT_THAT(Refusal(GgufWriter().Raw("a", kArray, nested)),
              HasSubstr("key \"a\" is an array of arrays"));
}

TEST(GgufBroken, Booleans) {
  EXPECT_THAT(Refusal(GgufWriter().Raw("a", 7, "\2")),
              HasSubstr("key \"a\" has the boolean value 2"));
  EXPECT_THAT(
      Refusal(GgufWriter().Raw(
          "a", kArray, Bytes<uint32_t>(7) + Bytes<uint64_t>(2) + "\1\xFF")),
      HasSubstr("key \"a\" has the boolean value 255"));
}

TEST(GgufBroken, Alignment) {
  for (const uint32_t alignment : {0u, 1u, 3u, 4u, 131072u, 0x80000000u}) {
    EXPECT_THAT(Refusal(GgufWriter().Uint32("general.alignment", alignment)),
                HasSubstr("key \"general.alignment\" is " +
                          std::to_string(alignment) + ", expected"));
  }
  EXPECT_THAT(Refusal(GgufWriter().Uint32("general.alignment", 48)),
              HasSubstr("is 48, expected a power of two"));
  EXPECT_THAT(Refusal(GgufWriter().String("general.alignment", "32")),
              HasSubstr("expected an integer"));
}

TEST(GgufBroken, TensorNames) {
  EXPECT_THAT(Refusal(GgufWriter().Zeros("", {1})),
              HasSubstr("tensor number 0 has an empty name"));
  EXPECT_THAT(Refusal(GgufWriter().Zeros("a", {1}).Zeros("\xFF", {1})),
              HasSubstr("tensor number 1 has a name that is not UTF-8"));
  EXPECT_THAT(Refusal(GgufWriter().Zeros(std::string(65, 't'), {1})),
              HasSubstr("has a name of 65 bytes, at most 64"));
}

TEST(GgufBroken, DuplicateTensors) {
  EXPECT_THAT(Refusal(GgufWriter().Zeros("a", {1}).Zeros("a", {1})),
              HasSubstr("tensor \"a\" occurs twice"));
}

TEST(GgufBroken, NumberOfDimensions) {
  EXPECT_THAT(Refusal(GgufWriter().Zeros("a", {}).Zeros("b", {1})),
              HasSubstr("tensor \"a\" has 0 dimensions, expected 1 to 4"));
  EXPECT_THAT(Refusal(GgufWriter().Zeros("a", {1, 1, 1, 1, 1})),
              HasSubstr("tensor \"a\" has 5 dimensions"));
}

TEST(GgufBroken, ZeroDimensions) {
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    const uint32_t type = TensorTypeOfFormat(info.format);
    EXPECT_THAT(Refusal(WithTensor({.name = "a", .dims = {0}, .type = type})),
                HasSubstr("tensor \"a\": dimension 0 is 0"));
    EXPECT_THAT(
        Refusal(WithTensor({.name = "a", .dims = {256, 0}, .type = type})),
        HasSubstr("tensor \"a\": dimension 1 is 0"));
  }
}

TEST(GgufBroken, SizesThatOverflow) {
  constexpr uint64_t kBig = (uint64_t{1} << 42) + 1;
  EXPECT_THAT(Refusal(WithTensor({.name = "a", .dims = {kBig, 1 << 22}})),
              HasSubstr("tensor \"a\": dimension 1 is 4194304: the number of "
                        "elements overflows"));
  for (const uint64_t dim : {uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_THAT(Refusal(WithTensor({.name = "a", .dims = {dim}})),
                HasSubstr("overflows"));
  }
  // The elements fit 63 bits, the bytes do not fit 64.
  EXPECT_THAT(Refusal(WithTensor({.name = "a", .dims = {uint64_t{1} << 62}})),
              HasSubstr("tensor \"a\": more than 2^64 bytes"));
  EXPECT_THAT(Refusal(WithTensor(
                  {.name = "a", .dims = {1 << 30, 1 << 15, 1 << 15, 4}})),
              HasSubstr("tensor \"a\": more than 2^64 bytes"));
}

TEST(GgufBroken, TensorTypes) {
  EXPECT_THAT(Refusal(WithTensor({.name = "a", .dims = {256}, .type = 16})),
              HasSubstr("tensor \"a\" has the type iq2_xxs (16), which is "
                        "not supported"));
  EXPECT_THAT(Refusal(WithTensor({.name = "a", .dims = {256}, .type = 4711})),
              HasSubstr("tensor \"a\" has the type 4711"));
  for (uint32_t type = 0; type < 300; ++type) {
    if (!FormatOfTensorType(type)) {
      Refusal(WithTensor({.name = "a", .dims = {256}, .type = type}));
    }
  }
}

TEST(GgufBroken, RowsOfPartialBlocks) {
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    if (info.block_elements == 1) continue;
    for (const int less : {1, info.block_elements / 2}) {
      const auto k = static_cast<uint64_t>(2 * info.block_elements - less);
      EXPECT_THAT(Refusal(WithTensor({.name = "a",
                                      .dims = {k, 4},
                                      .type = TensorTypeOfFormat(info.format),
                                      .bytes = std::string(4096, '\0')})),
                  HasSubstr("tensor \"a\" (" + std::string(info.name) +
                            ") has rows of " + std::to_string(k) +
                            " elements, expected a multiple of " +
                            std::to_string(info.block_elements)));
    }
  }
}

TEST(GgufBroken, Offsets) {
  for (const uint64_t offset : {uint64_t{1}, uint64_t{16}, UINT64_MAX}) {
    EXPECT_THAT(
        Refusal(WithTensor({.name = "a", .dims = {1}, .offset_bytes = offset})),
        HasSubstr("tensor \"a\" begins at offset " + std::to_string(offset)));
  }
  for (const uint64_t offset :
       {uint64_t{32}, uint64_t{1} << 40, ~uint64_t{31}}) {
    EXPECT_THAT(
        Refusal(WithTensor({.name = "a", .dims = {1}, .offset_bytes = offset})),
        HasSubstr("tensor \"a\": 4 bytes of data at offset " +
                  std::to_string(offset) + " reach past the end"));
  }
}

TEST(GgufBroken, DataCutShort) {
  std::string text = GgufWriter().Zeros("a", {8}).Zeros("b", {8}).Build();
  text.pop_back();
  EXPECT_THAT(Refusal(text), HasSubstr("tensor \"b\": 32 bytes of data at "
                                       "offset 32 reach past the end"));
}

TEST(GgufBroken, OverlappingTensors) {
  const GgufWriter same = GgufWriter().Zeros("a", {16}).Tensor(
      {.name = "b", .dims = {8}, .offset_bytes = 0});
  EXPECT_THAT(Refusal(same), HasSubstr("overlap"));
  const GgufWriter partly = GgufWriter().Zeros("a", {16}).Tensor(
      {.name = "b", .dims = {8}, .offset_bytes = 32});
  EXPECT_THAT(Refusal(partly), HasSubstr("tensors \"a\" and \"b\" overlap"));
}

}  // namespace
}  // namespace nibble::model
