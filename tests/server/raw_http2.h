// A gRPC client that never reads, made of bare HTTP/2 frames: gRPC's own
// clients take in tens of kilobytes, or whole answers, before they stall.
#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "tests/server/sockets.h"

namespace nibble::server::testing {

// One call on a connection of its own, whose flow-control window is 0: the
// server can send headers and no data. Owned by a test.
class UnreadCall final {
 public:
  // Calls `method` ("nibble.v1.Generation/Generate") at a TCP address.
  UnreadCall(const std::string& address, const std::string& method,
             const google::protobuf::Message& request);

  // Whether the server resets the stream, or the connection, within ten
  // seconds of silence.
  bool IsReset();

 private:
  UniqueFd fd_;
  std::string received_;
};

}  // namespace nibble::server::testing
