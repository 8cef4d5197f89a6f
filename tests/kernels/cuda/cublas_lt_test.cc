#include "kernels/cuda/cublas_lt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::kernels::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CublasLt, AnAbsentLibraryIsNotFoundByName) {
  const auto library = CublasLt::Open("/nonexistent/libcublasLt.so.99");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()),
              HasSubstr("/nonexistent/libcublasLt.so.99"));
}

TEST(CublasLt, AFolderIsSearchedForEachVersion) {
  const auto library = CublasLt::Open("/nonexistent");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  const std::string message(library.status().message());
  EXPECT_THAT(message, HasSubstr("/nonexistent/libcublasLt.so.13"));
  EXPECT_THAT(message, HasSubstr("/nonexistent/libcublasLt.so.12"));
}

TEST(CublasLt, AnotherLibraryIsNotTakenForIt) {
  const auto library = CublasLt::Open("libc.so.6");
  EXPECT_EQ(library.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(library.status().message()),
              HasSubstr("cublasLtGetVersion"));
}

}  // namespace
}  // namespace nibble::kernels::cuda
