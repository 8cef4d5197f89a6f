#include "engine/inbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/errors.h"

namespace nibble::engine {
namespace {

// Retry hints stay in between; the first before anything is known.
constexpr Clock::duration kFirstRetry = std::chrono::seconds(1);
constexpr Clock::duration kShortestRetry = std::chrono::milliseconds(100);
constexpr Clock::duration kLongestRetry = std::chrono::seconds(10);

}  // namespace

Inbox::Inbox(const EngineOptions& options)
    : max_sequences_(options.max_sequences),
      max_queue_(options.max_queue),
      max_queue_tokens_(options.max_queue_tokens),
      last_end_(Clock::now()),
      end_interval_(kFirstRetry) {
  book_.last_step = last_end_;
}

absl::Status Inbox::CheckRoom(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return CheckRoomLocked(id);
}

absl::Status Inbox::CheckRoomLocked(const std::string& id) const {
  if (draining_) {
    return RejectionError(Rejection::kDraining, absl::StatusCode::kUnavailable,
                          "the server is draining: it takes no new requests");
  }
  if (live_ids_.contains(id)) {
    return RejectionError(
        Rejection::kDuplicateId, absl::StatusCode::kAlreadyExists,
        absl::StrCat("request_id: a request \"", id, "\" is live"));
  }
  const int32_t free_sequences =
      std::max(0, max_sequences_ - book_.outputs_running);
  if (book_.requests_waiting - free_sequences >= max_queue_) {
    return RetryError(
        Rejection::kQueueFull,
        absl::StrCat("the queue is full: ", book_.requests_waiting,
                     " requests wait, at most ", max_queue_, " may"),
        RetryAfter());
  }
  return absl::OkStatus();
}

absl::Status Inbox::CheckTokensLocked(int64_t tokens) const {
  // A prompt that waits alone is taken, however long: it is next.
  if (book_.requests_waiting == 0 ||
      book_.waiting_tokens + tokens <= max_queue_tokens_) {
    return absl::OkStatus();
  }
  return RetryError(
      Rejection::kQueueTokens,
      absl::StrCat("the queue is full: ", book_.waiting_tokens,
                   " prompt tokens wait, with ", tokens,
                   " more they would exceed the limit of ", max_queue_tokens_),
      RetryAfter());
}

Clock::duration Inbox::RetryAfter() const {
  return std::clamp(end_interval_, kShortestRetry, kLongestRetry);
}

absl::StatusOr<RequestHandle> Inbox::Push(
    std::unique_ptr<LiveRequest> request) {
  RequestHandle handle;
  {
    const std::lock_guard lock(mutex_);
    NIBBLE_RETURN_IF_ERROR(CheckRoomLocked(request->request.id));
    NIBBLE_RETURN_IF_ERROR(CheckTokensLocked(request->prompt_tokens()));
    if (live_ids_.empty()) book_.last_step = Clock::now();
    live_ids_.insert(request->request.id);
    ++book_.requests_waiting;
    book_.waiting_tokens += request->prompt_tokens();
    handle = next_handle_++;
    request->handle = handle;
    mail_.submitted.push_back(std::move(request));
  }
  wake_.notify_one();
  return handle;
}

void Inbox::Cancel(RequestHandle handle) {
  {
    const std::lock_guard lock(mutex_);
    if (live_ids_.empty()) return;
    mail_.cancelled.push_back(handle);
  }
  wake_.notify_one();
}

void Inbox::CancelAll() {
  {
    const std::lock_guard lock(mutex_);
    mail_.cancel_before = next_handle_;
  }
  wake_.notify_one();
}

void Inbox::Drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void Inbox::Stop() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    mail_.stop = true;
  }
  wake_.notify_one();
}

bool Inbox::HasMail() const {
  return !mail_.submitted.empty() || !mail_.cancelled.empty() ||
         mail_.cancel_before != 0 || mail_.stop;
}

Mail Inbox::Take(bool idle) {
  std::unique_lock lock(mutex_);
  while (idle && !HasMail()) wake_.wait(lock);
  return std::exchange(mail_, {});
}

void Inbox::Publish(Progress progress) {
  const std::lock_guard lock(mutex_);
  for (const std::string& id : progress.ended) live_ids_.erase(id);
  if (!progress.ended.empty()) {
    // A quarter of the newest gap: smooth, and settled after a few ends.
    const Clock::duration gap = (progress.last_step - last_end_) /
                                static_cast<int64_t>(progress.ended.size());
    if (gap > Clock::duration::zero()) {
      end_interval_ += (std::min(gap, kLongestRetry) - end_interval_) / 4;
      last_end_ = progress.last_step;
    }
  }
  for (const auto& request : mail_.submitted) {
    ++progress.requests_waiting;
    progress.waiting_tokens += request->prompt_tokens();
  }
  const Clock::time_point last_step =
      std::max(book_.last_step, progress.last_step);
  book_ = std::move(progress);
  book_.ended.clear();
  book_.last_step = last_step;
}

EngineSnapshot Inbox::snapshot() const {
  const std::lock_guard lock(mutex_);
  EngineSnapshot snapshot;
  snapshot.requests_waiting = book_.requests_waiting;
  snapshot.requests_running = book_.requests_running;
  snapshot.scheduler = book_.scheduler;
  snapshot.has_work = !live_ids_.empty();
  snapshot.last_step = book_.last_step;
  snapshot.draining = draining_;
  return snapshot;
}

}  // namespace nibble::engine
