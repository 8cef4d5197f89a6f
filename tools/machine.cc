#include "tools/machine.h"

#include <sys/utsname.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_count.h"

namespace nibble::tools {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    // "model name	: Intel(R) ..."; not every architecture has it.
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  utsname name;
  return uname(&name) == 0 ? name.machine : "unknown processor";
}

}  // namespace

std::string MachineName() {
  const int cpus = kernels::cpu::UsableCpus();
  return absl::StrCat(ProcessorName(), ", ", cpus,
                      cpus == 1 ? " CPU" : " CPUs");
}

}  // namespace nibble::tools
