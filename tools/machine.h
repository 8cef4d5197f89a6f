// What the machine is, for the reports of the tools.
#pragma once

#include <string>

namespace nibble::tools {

// The processor's name and how many this process may use, e.g.
// "Intel(R) Xeon(R) Platinum 8480C, 2 CPUs".
std::string MachineName();

}  // namespace nibble::tools
