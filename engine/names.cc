#include <string_view>

#include "engine/observer.h"
#include "engine/request.h"

namespace nibble::engine {

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContextFull:
      return "context_full";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view Name(Rejection rejection) {
  switch (rejection) {
    case Rejection::kQueueFull:
      return "queue_full";
    case Rejection::kQueueTokens:
      return "queue_tokens";
    case Rejection::kQueueTime:
      return "queue_time";
    case Rejection::kDeadline:
      return "deadline";
    case Rejection::kTooLong:
      return "too_long";
    case Rejection::kNeverFits:
      return "never_fits";
    case Rejection::kInvalid:
      return "invalid";
    case Rejection::kDuplicateId:
      return "duplicate_id";
    case Rejection::kDraining:
      return "draining";
  }
  return "unknown";
}

}  // namespace nibble::engine
