// Where an engine sends what a request produced.
#pragma once

#include "engine/request.h"

namespace nibble::engine {

// Receives one request's results: OnPrompt at most once and first, OnDelta any
// number of times, then exactly one OnFinish, always last. Owned by the
// caller of Submit, who keeps it alive until OnFinish has returned. Called by
// the engine thread; must not block and must not call the engine back except
// for Cancel.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnPrompt(PromptInfo prompt) = 0;
  virtual void OnDelta(Delta delta) = 0;
  virtual void OnFinish(RequestResult result) = 0;
};

}  // namespace nibble::engine
