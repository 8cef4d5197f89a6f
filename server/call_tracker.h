// The generation calls that are open.
#pragma once

#include <mutex>
#include <unordered_set>
#include <vector>

#include "engine/request.h"
#include "grpc/grpc.h"

namespace nibble::server {

// A call as the tracker sees it: between Add and Remove it is alive.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Cancels the call's requests if its client has not read for too long.
  // Called by the monitor thread under the tracker's lock, so that the call
  // cannot go away meanwhile; must not block or call the tracker. Returns the
  // call, with a reference, if it must be reset: that runs reactions at once,
  // so only after the lock.
  virtual grpc_call* CheckStall(engine::Clock::time_point now) = 0;
};

// Owned by the server. Thread-safe. A drain waits until it is empty.
class CallTracker final {
 public:
  void Add(LiveCall* call) {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  void Remove(LiveCall* call) {
    const std::lock_guard lock(mutex_);
    calls_.erase(call);
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return calls_.size();
  }
  void CheckStalls(engine::Clock::time_point now) {
    std::vector<grpc_call*> resets;
    {
      const std::lock_guard lock(mutex_);
      for (LiveCall* call : calls_) {
        grpc_call* reset = call->CheckStall(now);
        if (reset != nullptr) resets.push_back(reset);
      }
    }
    for (grpc_call* call : resets) {
      grpc_call_cancel(call, nullptr);
      grpc_call_unref(call);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<LiveCall*> calls_;  // guarded by mutex_
};

}  // namespace nibble::server
