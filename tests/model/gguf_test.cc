// Sound files, and typed access to their metadata.
#include "model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/support/gguf_writer.h"

namespace nibble::model {
namespace {

using test::Bytes;
using test::GgufWriter;
using test::StringBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A file and the text it borrows.
struct Parsed {
  explicit Parsed(const GgufWriter& writer)
      : text(writer.Build()),
        file(GgufFile::Parse(std::as_bytes(std::span(text)), "m.gguf")) {}
  const GgufFile& operator*() const { return *file; }
  const GgufFile* operator->() const { return &*file; }
  std::string text;
  absl::StatusOr<GgufFile> file;
};

template <typename T>
std::string Error(const absl::StatusOr<T>& result) {
  EXPECT_FALSE(result.ok());
  return std::string(result.status().message());
}

TEST(Gguf, EveryKindOfValue) {
  GgufWriter writer;
  writer.Raw("u8", 0, Bytes<uint8_t>(200))
      .Raw("i8", 1, Bytes<int8_t>(-100))
      .Raw("u16", 2, Bytes<uint16_t>(60000))
      .Raw("i16", 3, Bytes<int16_t>(-30000))
      .Uint32("u32", 4000000000u)
      .Int32("i32", -2000000000)
      .Raw("i64", 11, Bytes<int64_t>(INT64_MIN))
      .Uint64("u64", uint64_t{1} << 62)
      .Float32("f32", 0.5f)
      .Raw("f64", 12, Bytes(1e300))
      .Bool("true", true)
      .Bool("false", false)
      .String("string", "text")
      .String("empty", "")
      .Strings("strings", {"a", "", "\xFF", "bcd"})
      .Floats("floats", {1.5f, -2.0f})
      .Int32s("ints", {-1, 7});
  const Parsed file(writer);
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->keys().size(), 17u);
  EXPECT_EQ(file->alignment_bytes(), 32u);
  constexpr GgufRange<int64_t> kAny = {INT64_MIN, INT64_MAX};
  EXPECT_EQ(*file->Integer("u8", kAny), 200);
  EXPECT_EQ(*file->Integer("i8", kAny), -100);
  EXPECT_EQ(*file->Integer("u16", kAny), 60000);
  EXPECT_EQ(*file->Integer("i16", kAny), -30000);
  EXPECT_EQ(*file->Integer("u32", kAny), 4000000000);
  EXPECT_EQ(*file->Integer("i32", kAny), -2000000000);
  EXPECT_EQ(*file->Integer("i64", kAny), INT64_MIN);
  EXPECT_EQ(*file->Integer("u64", kAny), int64_t{1} << 62);
  EXPECT_EQ(*file->Number("f32", {0, 1}), 0.5);
  EXPECT_EQ(*file->Number("f64", {0, 1e301}), 1e300);
  EXPECT_EQ(*file->Number("i8", {-1000, 0}), -100);
  EXPECT_TRUE(*file->BoolOr("true", false));
  EXPECT_FALSE(*file->BoolOr("false", true));
  EXPECT_EQ(*file->String("string"), "text");
  EXPECT_EQ(*file->String("empty"), "");
  EXPECT_THAT(*file->Strings("strings"), ElementsAre("a", "", "\xFF", "bcd"));
  EXPECT_THAT(*file->Floats("floats"), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(*file->Floats("ints"), ElementsAre(-1.0f, 7.0f));
  EXPECT_THAT(*file->Integers("ints", kAny), ElementsAre(-1, 7));
}

TEST(Gguf, MissingKeys) {
  const Parsed file{GgufWriter()};
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  EXPECT_EQ(*file->IntegerOr("x", 5, {0, 9}), 5);
  EXPECT_EQ(*file->NumberOr("x", 0.5, {0, 9}), 0.5);
  EXPECT_TRUE(*file->BoolOr("x", true));
  EXPECT_EQ(*file->StringOr("x", "y"), "y");
  EXPECT_EQ(file->Integer("x", {0, 9}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Error(file->Integer("x", {0, 9})),
            "m.gguf: key \"x\" is missing, expected an integer");
  EXPECT_EQ(Error(file->Number("x", {0, 9})),
            "m.gguf: key \"x\" is missing, expected a number");
  EXPECT_EQ(Error(file->String("x")),
            "m.gguf: key \"x\" is missing, expected a string");
  EXPECT_EQ(Error(file->Strings("x")),
            "m.gguf: key \"x\" is missing, expected an array of strings");
}

TEST(Gguf, WrongTypes) {
  const Parsed file(GgufWriter()
                        .String("string", "text")
                        .Float32("float", 1)
                        .Bool("bool", true)
                        .Int32s("ints", {1, 2, 3})
                        .Strings("strings", {"a"}));
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  EXPECT_EQ(Error(file->Integer("string", {0, 9})),
            "m.gguf: key \"string\" is a value of type string, expected an "
            "integer");
  EXPECT_THAT(Error(file->Integer("float", {0, 9})), HasSubstr("float32"));
  EXPECT_THAT(Error(file->Integer("bool", {0, 9})), HasSubstr("boolean"));
  EXPECT_EQ(Error(file->Integer("ints", {0, 9})),
            "m.gguf: key \"ints\" is an array of 3 int32 values, expected an "
            "integer");
  EXPECT_THAT(Error(file->IntegerOr("float", 1, {0, 9})),
              HasSubstr("expected an integer"));
  EXPECT_THAT(Error(file->Number("string", {0, 9})),
              HasSubstr("expected a number"));
  EXPECT_THAT(Error(file->BoolOr("float", true)),
              HasSubstr("expected a boolean"));
  EXPECT_THAT(Error(file->String("float")), HasSubstr("expected a string"));
  EXPECT_THAT(Error(file->Strings("string")),
              HasSubstr("expected an array of strings"));
  EXPECT_THAT(Error(file->Strings("ints")),
              HasSubstr("expected an array of strings"));
  EXPECT_THAT(Error(file->Integers("strings", {0, 9})),
              HasSubstr("expected an array of integers"));
  EXPECT_THAT(Error(file->Floats("strings")),
              HasSubstr("expected an array of numbers"));
}

TEST(Gguf, OutOfRange) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Parsed file(
      GgufWriter()
          .Uint32("ten", 10)
          .Uint64("huge", UINT64_MAX)
          .Float32("nan", kNan)
          .Float32("inf", kInf)
          .Int32s("ints", {1, 20})
          .Floats("nans", {0, kNan})
          .Raw("wide", 9,
               Bytes<uint32_t>(12) + Bytes<uint64_t>(1) + Bytes(1e300)));
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  EXPECT_EQ(Error(file->Integer("ten", {1, 9})),
            "m.gguf: key \"ten\" is 10, expected 1 to 9");
  EXPECT_THAT(Error(file->Integer("ten", {11, 12})), HasSubstr("11 to 12"));
  EXPECT_THAT(Error(file->Integer("huge", {INT64_MIN, INT64_MAX})),
              HasSubstr("is 18446744073709551615"));
  EXPECT_THAT(Error(file->Number("ten", {0, 9.5})),
              HasSubstr("expected 0 to 9.5"));
  EXPECT_THAT(Error(file->Number("nan", {-kInf, kInf})), HasSubstr("is nan"));
  EXPECT_THAT(Error(file->Number("inf", {-kInf, kInf})), HasSubstr("is inf"));
  EXPECT_EQ(Error(file->Integers("ints", {0, 9})),
            "m.gguf: key \"ints\" at index 1 is 20, expected 0 to 9");
  EXPECT_THAT(Error(file->Floats("nans")), HasSubstr("at index 1 is nan"));
  EXPECT_THAT(Error(file->Floats("wide")), HasSubstr("at index 0 is 1e+300"));
}

TEST(Gguf, TensorsOfEveryFormat) {
  GgufWriter writer;
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    writer.Tensor({.name = std::string(info.name),
                   .dims = {512, 3},
                   .type = TensorTypeOfFormat(info.format),
                   .bytes = test::RandomWeights(info.format, 3, 512, 7)});
  }
  const Parsed file(writer);
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  ASSERT_EQ(file->tensors().size(), kernels::kFormatTable.size());
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    const GgufTensor* tensor = file->FindTensor(info.name);
    ASSERT_NE(tensor, nullptr) << info.name;
    EXPECT_EQ(tensor->format, info.format);
    EXPECT_EQ(tensor->offset_bytes % 32, 0u);
    const kernels::WeightView view = tensor->View();
    EXPECT_EQ(view.n, 3);
    EXPECT_EQ(view.k, 512);
    const std::string_view bytes(reinterpret_cast<const char*>(view.data),
                                 view.Bytes());
    EXPECT_EQ(bytes, test::RandomWeights(info.format, 3, 512, 7)) << info.name;
  }
  EXPECT_EQ(file->FindTensor("none"), nullptr);
}

TEST(Gguf, OneToFourDimensions) {
  const Parsed file(GgufWriter()
                        .Zeros("1", {5})
                        .Zeros("2", {5, 2})
                        .Zeros("3", {5, 2, 3})
                        .Zeros("4", {5, 2, 3, 4}));
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  EXPECT_EQ(file->FindTensor("1")->View().n, 1);
  EXPECT_EQ(file->FindTensor("2")->View().n, 2);
  EXPECT_EQ(file->FindTensor("3")->View().n, 6);
  EXPECT_EQ(file->FindTensor("4")->View().n, 24);
  EXPECT_EQ(file->FindTensor("4")->elements(), 120);
  EXPECT_EQ(file->FindTensor("4")->num_dims, 4u);
}

TEST(Gguf, Version2AndOtherAlignments) {
  for (const uint32_t alignment : {8u, 16u, 64u, 65536u}) {
    GgufWriter writer;
    writer.version = 2;
    writer.alignment_bytes = alignment;
    writer.Uint32("general.alignment", alignment)
        .Zeros("a", {3})
        .Zeros("b", {1});
    const Parsed file(writer);
    ASSERT_TRUE(file.file.ok()) << file.file.status();
    EXPECT_EQ(file->alignment_bytes(), alignment);
    EXPECT_EQ(file->FindTensor("b")->offset_bytes -
                  file->FindTensor("a")->offset_bytes,
              std::max(alignment, 16u));
  }
}

TEST(Gguf, TensorsInAnyOrderWithHoles) {
  GgufWriter writer;
  writer.Tensor({.name = "late", .dims = {2}, .bytes = "", .offset_bytes = 128})
      .Tensor({.name = "early", .dims = {2}, .bytes = "", .offset_bytes = 0});
  std::string text = writer.Build();
  text.resize((text.size() + 31) / 32 * 32 + 136, '\0');
  const auto file = GgufFile::Parse(std::as_bytes(std::span(text)), "m.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->FindTensor("late")->offset_bytes -
                file->FindTensor("early")->offset_bytes,
            128u);
}

TEST(Gguf, MessagesHoldNoControlCharacters) {
  EXPECT_EQ(Quoted("a\x1b[2Jb\n"), "\"a\\u001b[2Jb\\n\"");
  EXPECT_EQ(Quoted("\x7f\xC2\x9B\"\\"), "\"\\u007f\\u009b\\\"\\\\\"");
  EXPECT_EQ(Quoted("\xFFz\xC3\xA4"), "\"\xEF\xBF\xBDz\xC3\xA4\"");
}

TEST(Gguf, LongTextsAreCutBetweenCharacters) {
  const std::string fits(80, 'x');
  EXPECT_EQ(Quoted(fits), "\"" + fits + "\"");
  EXPECT_EQ(Quoted(fits + "x"), "\"" + fits + "...\"");
  const std::string most(79, 'x');
  EXPECT_EQ(Quoted(most + "\xC3\xA4"), "\"" + most + "...\"");
}

TEST(Gguf, ValuesAsText) {
  const Parsed file(GgufWriter()
                        .Uint32("int", 7)
                        .Bool("bool", true)
                        .String("string", "a\"b")
                        .Strings("strings", {"a", "b"})
                        .Int32s("many", std::vector<int32_t>(20, 1)));
  ASSERT_TRUE(file.file.ok()) << file.file.status();
  EXPECT_EQ(ToString(*file->Find("int")), "7");
  EXPECT_EQ(ToString(*file->Find("bool")), "true");
  EXPECT_EQ(ToString(*file->Find("string")), "\"a\\\"b\"");
  EXPECT_EQ(ToString(*file->Find("strings")), "[\"a\", \"b\"]");
  EXPECT_EQ(ToString(*file->Find("many")),
            "[1, 1, 1, 1, 1, 1, 1, 1, ... 20 values]");
}

TEST(Gguf, TypeNumbersRoundTrip) {
  for (const kernels::FormatInfo& info : kernels::kFormatTable) {
    EXPECT_EQ(FormatOfTensorType(TensorTypeOfFormat(info.format)), info.format);
  }
  EXPECT_EQ(TensorTypeName(16), "iq2_xxs (16)");
  EXPECT_EQ(TensorTypeName(4711), "4711");
}

}  // namespace
}  // namespace nibble::model
