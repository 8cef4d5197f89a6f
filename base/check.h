// Checks for programmer errors: they survive NDEBUG and abort with the place
// and the values. What an input can trigger is an absl::Status instead.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace nibble::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line,
                                     const std::string& what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

template <typename A, typename B>
[[noreturn]] void CheckOpFailed(const char* file, int line, const char* expr,
                                const A& a, const B& b) {
  std::ostringstream text;
  text << expr << " (" << a << " vs " << b << ")";
  CheckFailed(file, line, text.str());
}

}  // namespace nibble::internal

#define NIBBLE_CHECK(condition)                                        \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::nibble::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define NIBBLE_CHECK_OP_(a, op, b)                                             \
  do {                                                                         \
    const auto& nibble_check_a = (a);                                          \
    const auto& nibble_check_b = (b);                                          \
    if (!(nibble_check_a op nibble_check_b)) [[unlikely]]                      \
      ::nibble::internal::CheckOpFailed(__FILE__, __LINE__, #a " " #op " " #b, \
                                        nibble_check_a, nibble_check_b);       \
  } while (false)

#define NIBBLE_CHECK_EQ(a, b) NIBBLE_CHECK_OP_(a, ==, b)
#define NIBBLE_CHECK_NE(a, b) NIBBLE_CHECK_OP_(a, !=, b)
#define NIBBLE_CHECK_LE(a, b) NIBBLE_CHECK_OP_(a, <=, b)
#define NIBBLE_CHECK_LT(a, b) NIBBLE_CHECK_OP_(a, <, b)
#define NIBBLE_CHECK_GE(a, b) NIBBLE_CHECK_OP_(a, >=, b)
#define NIBBLE_CHECK_GT(a, b) NIBBLE_CHECK_OP_(a, >, b)

// For hot loops: compiled out of release builds, still type-checked there.
#ifdef NDEBUG
#define NIBBLE_DCHECK(condition) \
  do {                           \
    if (false) {                 \
      (void)(condition);         \
    }                            \
  } while (false)
#else
#define NIBBLE_DCHECK(condition) NIBBLE_CHECK(condition)
#endif
