// What other threads leave for the engine thread, and the book of what is
// live.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/live_request.h"
#include "engine/observer.h"

namespace nibble::engine {

// Everything that came since the engine thread looked last.
struct Mail {
  std::vector<std::unique_ptr<LiveRequest>> submitted;
  std::vector<RequestHandle> cancelled;
  // Every request before this handle is cancelled.
  RequestHandle cancel_before = 0;
  bool stop = false;
};

// What the engine thread reports after each turn. The counts leave out what
// still lies in the inbox.
struct Progress {
  int32_t requests_waiting = 0;
  int32_t requests_running = 0;
  int32_t outputs_running = 0;     // live outputs of running requests
  int64_t waiting_tokens = 0;      // prompt tokens of waiting requests
  std::vector<std::string> ended;  // ids of requests that are over
  scheduler::SchedulerStats scheduler;
  Clock::time_point last_step{};
};

// The one place where other threads and the engine thread meet. Owned by the
// Engine; any thread, under one mutex that is never held while anything else
// is called. Admission is decided here, so that limits hold whoever submits.
class Inbox final {
 public:
  explicit Inbox(const EngineOptions& options);

  // Why a request of this id would be refused now, whatever its length: worth
  // knowing before it is tokenized.
  absl::Status CheckRoom(const std::string& id) const;

  // Admits a request and gives it its handle, or says why not. A request
  // counts as waiting until a row of it is computed; those that find a free
  // sequence do not count against max_queue.
  absl::StatusOr<RequestHandle> Push(std::unique_ptr<LiveRequest> request);

  void Cancel(RequestHandle handle);
  void CancelAll();
  void Drain();
  void Stop();

  // Engine thread: takes what came; waits for something when `idle`.
  Mail Take(bool idle);
  // Engine thread: books the state after a turn. Call it before the sinks hear
  // of it, so that whoever sees a request end also finds its id free.
  void Publish(Progress progress);

  EngineSnapshot snapshot() const;

 private:
  absl::Status CheckRoomLocked(const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTokensLocked(int64_t tokens) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasMail() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Clock::duration RetryAfter() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int32_t max_sequences_;
  const int32_t max_queue_;
  const int64_t max_queue_tokens_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Mail mail_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  RequestHandle next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_set<std::string> live_ids_ ABSL_GUARDED_BY(mutex_);
  // The last Progress, with what came since added to its waiting counts.
  Progress book_ ABSL_GUARDED_BY(mutex_);
  // How often requests end, smoothed, for retry hints.
  Clock::time_point last_end_ ABSL_GUARDED_BY(mutex_);
  Clock::duration end_interval_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::engine
