// Plain TCP clients for tests.
#pragma once

#include <string>

#include "server/address.h"

namespace nibble::server::testing {

// A blocking connection to "127.0.0.1:PORT" or "[::1]:PORT"; fails the test if
// it is refused.
UniqueFd ConnectTo(const std::string& address);

// Sends all of it; false when the peer has closed.
bool SendAll(const UniqueFd& fd, const std::string& bytes);

// Reads until the peer closes, for ten seconds at most.
std::string ReadToEnd(const UniqueFd& fd);

// Whether the peer closes within ten seconds.
bool IsClosed(const UniqueFd& fd);

}  // namespace nibble::server::testing
