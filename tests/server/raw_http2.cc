#include "tests/server/raw_http2.h"

#include <sys/socket.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace nibble::server::testing {
namespace {

// RFC 9113, sections 4.1 and 6.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
};
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr size_t kFrameHeaderBytes = 9;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) {
    text += static_cast<char>(value >> (8 * i));
  }
  return text;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream,
                  const std::string& payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) +
         static_cast<char>(type) + static_cast<char>(flags) +
         BigEndian(stream, 4) + payload;
}

// A literal header field without indexing (RFC 7541, section 6.2.2); both
// lengths are below 127.
std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

}  // namespace

UnreadCall::UnreadCall(const std::string& address, const std::string& method,
                       const google::protobuf::Message& request)
    : fd_(ConnectTo(address)) {
  constexpr uint32_t kInitialWindowSize = 4;
  const std::string message = request.SerializeAsString();
  const std::string headers =
      Header(":method", "POST") + Header(":scheme", "http") +
      Header(":path", "/" + method) + Header(":authority", "test") +
      Header("content-type", "application/grpc") + Header("te", "trailers");
  EXPECT_TRUE(SendAll(
      fd_, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
               Frame(kSettings, 0, 0,
                     BigEndian(kInitialWindowSize, 2) + BigEndian(0, 4)) +
               Frame(kHeaders, kEndHeaders, 1, headers) +
               Frame(kData, kEndStream, 1,
                     std::string(1, '\0') +
                         BigEndian(static_cast<uint32_t>(message.size()), 4) +
                         message)));
}

bool UnreadCall::IsReset() {
  char buffer[4096];
  while (true) {
    while (received_.size() >= kFrameHeaderBytes) {
      const auto byte = [&](size_t i) {
        return static_cast<size_t>(static_cast<unsigned char>(received_[i]));
      };
      const size_t length = byte(0) << 16 | byte(1) << 8 | byte(2);
      if (received_.size() < kFrameHeaderBytes + length) break;
      if (received_[3] == kResetStream) return true;
      received_.erase(0, kFrameHeaderBytes + length);
    }
    const ssize_t count = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (count == 0) return true;
    if (count < 0) return false;  // ten seconds of silence
    received_.append(buffer, static_cast<size_t>(count));
  }
}

}  // namespace nibble::server::testing
