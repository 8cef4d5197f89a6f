// The server's flags.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "engine/load.h"

namespace nibble::server {

// One --model: the name it is served under and what LoadRunner opens.
struct ModelArg {
  std::string name;
  std::string path;  // a GGUF file, or "scripted:FILE"
};

// Everything the flags say, ranges already checked. docs/operations.md lists
// the flags; a field without a comment is described there under its name.
struct ServerConfig {
  std::vector<ModelArg> models;
  std::vector<std::string> listen = {"127.0.0.1:8700"};
  std::string metrics = "127.0.0.1:9464";  // or "off"
  std::string port_file;                   // empty: none

  engine::Device device = engine::Device::kAuto;
  int32_t threads = 0;   // 0: the cores this process may use
  int32_t kv_pages = 0;  // 0: by the memory
  int32_t page_size = 16;
  int32_t max_batch_rows = 512;
  int32_t max_sequences = 64;
  int32_t max_queue = 256;
  int64_t max_queue_tokens = 1 << 20;
  int32_t max_context = 0;  // tokens; 0: the model's own
  int32_t default_max_new_tokens = 1024;
  bool prefix_cache = true;

  int32_t max_message_bytes = 4 << 20;
  int32_t max_connections = 4096;
  int32_t max_streams = 1024;  // of one connection
  std::chrono::milliseconds write_stall_timeout{30'000};
  std::chrono::milliseconds drain_timeout{30'000};
  std::chrono::milliseconds stall_timeout{60'000};
  std::chrono::milliseconds keepalive_time{60'000};  // 0: no pings
  std::chrono::milliseconds keepalive_timeout{20'000};
  std::chrono::milliseconds keepalive_min_interval{10'000};
  std::chrono::milliseconds max_connection_age{0};  // 0: no limit
  std::chrono::milliseconds max_connection_age_grace{60'000};

  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  bool vllm_metrics = false;
};

// The program is to end at once: --help, --version or a wrong flag.
struct ConfigExit {
  int code = 0;      // 0, or 2 for a wrong flag
  std::string text;  // for stdout when code is 0, else for stderr
};

// Reads the command line, then the environment (NIBBLE_*), then --config.
std::variant<ServerConfig, ConfigExit> ParseConfig(int argc,
                                                   const char* const* argv);

}  // namespace nibble::server
