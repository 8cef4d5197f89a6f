#include "engine/errors.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace nibble::engine {
namespace {

constexpr char kFieldPayload[] = "nibble.field";
constexpr char kRejectionPayload[] = "nibble.rejection";
constexpr char kRetryPayload[] = "nibble.retry_us";
constexpr absl::string_view kNumberPrefix = "nibble.number.";

std::optional<std::string> Payload(const absl::Status& status,
                                   const char* name) {
  const absl::optional<absl::Cord> payload = status.GetPayload(name);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

int64_t ToNumber(const std::string& digits) {
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::optional<int64_t> NumberPayload(const absl::Status& status,
                                     const char* name) {
  const std::optional<std::string> digits = Payload(status, name);
  if (!digits.has_value()) return std::nullopt;
  return ToNumber(*digits);
}

}  // namespace

absl::Status FieldError(std::string_view field, std::string_view problem) {
  std::string message(field);
  message.append(": ").append(problem);
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFieldPayload, absl::Cord(std::string(field)));
  return WithRejection(std::move(status), Rejection::kInvalid);
}

absl::Status RejectionError(Rejection rejection, absl::StatusCode code,
                            std::string_view message) {
  return WithRejection(
      absl::Status(code, absl::string_view(message.data(), message.size())),
      rejection);
}

absl::Status RetryError(Rejection rejection, std::string_view message,
                        Clock::duration retry_after) {
  absl::Status status =
      RejectionError(rejection, absl::StatusCode::kResourceExhausted, message);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(retry_after);
  status.SetPayload(
      kRetryPayload,
      absl::Cord(absl::StrCat(static_cast<int64_t>(micros.count()))));
  return status;
}

absl::Status WithNumber(absl::Status status, std::string_view name,
                        int64_t number) {
  status.SetPayload(absl::StrCat(kNumberPrefix, std::string(name)),
                    absl::Cord(absl::StrCat(number)));
  return status;
}

absl::Status WithRejection(absl::Status status, Rejection rejection) {
  status.SetPayload(kRejectionPayload,
                    absl::Cord(absl::StrCat(static_cast<int>(rejection))));
  return status;
}

std::string ErrorField(const absl::Status& status) {
  return Payload(status, kFieldPayload).value_or("");
}

std::map<std::string, int64_t> ErrorNumbers(const absl::Status& status) {
  std::map<std::string, int64_t> numbers;
  status.ForEachPayload([&](absl::string_view name, const absl::Cord& digits) {
    if (absl::ConsumePrefix(&name, kNumberPrefix)) {
      numbers[std::string(name)] = ToNumber(std::string(digits));
    }
  });
  return numbers;
}

Rejection ErrorRejection(const absl::Status& status) {
  const std::optional<int64_t> number =
      NumberPayload(status, kRejectionPayload);
  return static_cast<Rejection>(
      number.value_or(static_cast<int64_t>(Rejection::kInvalid)));
}

std::optional<Clock::duration> ErrorRetryAfter(const absl::Status& status) {
  const std::optional<int64_t> micros = NumberPayload(status, kRetryPayload);
  if (!micros.has_value()) return std::nullopt;
  return std::chrono::microseconds(*micros);
}

}  // namespace nibble::engine
