// Small helpers for absl::Status and absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define NIBBLE_RETURN_IF_ERROR(expr)                              \
  do {                                                            \
    if (absl::Status nibble_status = (expr); !nibble_status.ok()) \
      return nibble_status;                                       \
  } while (false)

#define NIBBLE_CONCAT_INNER_(a, b) a##b
#define NIBBLE_CONCAT_(a, b) NIBBLE_CONCAT_INNER_(a, b)

// NIBBLE_ASSIGN_OR_RETURN(auto x, F()): x is F()'s value, or return its status.
#define NIBBLE_ASSIGN_OR_RETURN(lhs, expr) \
  NIBBLE_ASSIGN_OR_RETURN_IMPL_(NIBBLE_CONCAT_(nibble_or_, __LINE__), lhs, expr)
// `lhs` may be a declaration, which takes no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define NIBBLE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
