#include "model/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "tests/support/gguf_writer.h"

namespace nibble::model {
namespace {

using ::testing::HasSubstr;

std::string Message(const std::string& path, absl::StatusCode code) {
  const auto file = MappedFile::Open(path);
  EXPECT_EQ(file.status().code(), code) << file.status();
  return std::string(file.status().message());
}

TEST(MappedFile, HoldsTheBytes) {
  const test::TemporaryFile temporary("some bytes");
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->path(), temporary.path());
  ASSERT_EQ((*file)->bytes().size(), 10u);
  EXPECT_EQ(std::memcmp((*file)->bytes().data(), "some bytes", 10), 0);
}

TEST(MappedFile, HoldsTheBytesAfterReleasingPages) {
  const std::string content(100'000, 'y');
  const test::TemporaryFile temporary(content);
  const auto file = MappedFile::Open(temporary.path());
  ASSERT_TRUE(file.ok()) << file.status();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(std::memcmp((*file)->bytes().data(), content.data(), 100'000), 0);
    (*file)->ReleasePages();
  }
}

TEST(MappedFile, OutlivesItsName) {
  auto temporary = std::make_unique<test::TemporaryFile>("x");
  const auto file = MappedFile::Open(temporary->path());
  ASSERT_TRUE(file.ok()) << file.status();
  temporary.reset();
  EXPECT_EQ((*file)->bytes()[0], std::byte{'x'});
}

TEST(MappedFile, Missing) {
  const std::string path = "/nonexistent/model.gguf";
  EXPECT_THAT(Message(path, absl::StatusCode::kNotFound), HasSubstr(path));
  const test::TemporaryFile temporary("x");
  Message(temporary.path() + "/below-a-file", absl::StatusCode::kNotFound);
}

TEST(MappedFile, NotPermitted) {
  const test::TemporaryFile temporary("x");
  ASSERT_EQ(chmod(temporary.path().c_str(), 0), 0);
  // Root may read anything: become nobody while the file is opened.
  constexpr uid_t kNobody = 65534;
  const uid_t self = geteuid();
  ASSERT_EQ(seteuid(self == 0 ? kNobody : self), 0);
  const std::string message =
      Message(temporary.path(), absl::StatusCode::kPermissionDenied);
  ASSERT_EQ(seteuid(self), 0);
  EXPECT_THAT(message, HasSubstr(temporary.path()));
}

TEST(MappedFile, Directory) {
  EXPECT_THAT(Message("/", absl::StatusCode::kInvalidArgument),
              HasSubstr("/: is a directory"));
}

TEST(MappedFile, Empty) {
  const test::TemporaryFile temporary("");
  EXPECT_THAT(Message(temporary.path(), absl::StatusCode::kInvalidArgument),
              HasSubstr(temporary.path() + ": is empty"));
}

TEST(MappedFile, FifoDoesNotBlock) {
  const test::TemporaryFile temporary("x");
  const std::string path = temporary.path() + ".fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(Message(path, absl::StatusCode::kInvalidArgument),
              HasSubstr("not a regular file"));
  std::filesystem::remove(path);
}

TEST(MappedFile, NameTooLong) {
  Message("/" + std::string(5000, 'a'), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble::model
