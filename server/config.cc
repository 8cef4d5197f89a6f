#include "server/config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "CLI/CLI.hpp"
#include "server/address.h"
#include "server/version.h"

namespace nibble::server {
namespace {

constexpr int kWrongFlag = 2;
constexpr size_t kMaxModelNameBytes = 128;
constexpr std::string_view kScripted = "scripted:";
constexpr int64_t kMiB = 1 << 20;

// "max-queue" -> "NIBBLE_MAX_QUEUE".
std::string EnvironmentName(std::string_view flag) {
  std::string name = "NIBBLE_";
  for (const char c : flag) {
    name += c == '-' ? '_' : static_cast<char>(c - ('a' <= c && c <= 'z') * 32);
  }
  return name;
}

CLI::Option* Named(CLI::Option* option, std::string_view flag) {
  return option->envname(EnvironmentName(flag));
}

// A whole number in [min, max].
template <typename T>
void AddInteger(CLI::App& app, const std::string& flag, T& value, T min, T max,
                const std::string& help) {
  const std::string range = "a whole number from " + std::to_string(min) +
                            " to " + std::to_string(max);
  auto check = [range, min, max](std::string& text) -> std::string {
    int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || number < min || number > max) {
      return "'" + text + "' is not " + range;
    }
    return "";
  };
  Named(app.add_option("--" + flag, value, help), flag)
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Validator(check, "", flag));
}

// Seconds, fractions allowed, kept in milliseconds.
void AddSeconds(CLI::App& app, const std::string& flag,
                std::chrono::milliseconds& value, double max_seconds,
                const std::string& help) {
  auto store = [&value, max_seconds](const std::string& text) -> std::string {
    double seconds = -1;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, seconds);
    if (error != std::errc() || rest != end ||
        !(seconds >= 0 && seconds <= max_seconds)) {
      return "'" + text + "' is not a number of seconds from 0 to " +
             std::to_string(static_cast<int64_t>(max_seconds));
    }
    value = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
    return "";
  };
  const double seconds = static_cast<double>(value.count()) / 1000;
  std::string shown = std::to_string(seconds);
  shown.erase(shown.find_last_not_of('0') + 1);
  if (shown.back() == '.') shown.pop_back();
  Named(app.add_option_function<std::string>(
            "--" + flag,
            [flag, store](const std::string& text) {
              const std::string problem = store(text);
              if (!problem.empty()) {
                throw CLI::ValidationError("--" + flag, problem);
              }
            },
            help),
        flag)
      ->type_name("SECONDS")
      ->default_str(shown);
}

// One of the keys of `choices`.
template <typename T>
void AddChoice(CLI::App& app, const std::string& flag, T& value,
               const std::vector<std::pair<std::string, T>>& choices,
               const std::string& help) {
  std::string names;
  std::string current;
  for (const auto& [name, choice] : choices) {
    names += (names.empty() ? "" : "|") + name;
    if (choice == value && current.empty()) current = name;
  }
  auto store = [&value, choices, names, flag](const std::string& text) {
    for (const auto& [name, choice] : choices) {
      if (name == text) {
        value = choice;
        return;
      }
    }
    throw CLI::ValidationError("--" + flag,
                               "'" + text + "' is not one of " + names);
  };
  Named(app.add_option_function<std::string>("--" + flag, store, help), flag)
      ->type_name(names)
      ->default_str(current);
}

bool IsModelNameByte(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') ||
         ('0' <= c && c <= '9') ||
         std::string_view("._-/:+@").find(c) != std::string_view::npos;
}

// NAME=PATH, NAME=scripted:PATH, or a path alone, whose stem is the name.
ModelArg ParseModel(const std::string& text) {
  ModelArg arg;
  const size_t equals = text.find('=');
  if (equals != std::string::npos) {
    arg.name = text.substr(0, equals);
    arg.path = text.substr(equals + 1);
  } else {
    arg.path = text;
    std::string_view file = text;
    if (file.substr(0, kScripted.size()) == kScripted) {
      file.remove_prefix(kScripted.size());
    }
    arg.name = std::filesystem::path(file).stem().string();
  }
  if (arg.path.empty() || arg.path == kScripted) {
    throw CLI::ValidationError("--model", "'" + text + "' names no file");
  }
  const bool valid =
      !arg.name.empty() && arg.name.size() <= kMaxModelNameBytes &&
      std::all_of(arg.name.begin(), arg.name.end(), IsModelNameByte);
  if (!valid) {
    throw CLI::ValidationError(
        "--model", "the name '" + arg.name + "' of '" + text +
                       "' is not 1 to " + std::to_string(kMaxModelNameBytes) +
                       " of the characters a-z A-Z 0-9 . _ - / : + @; give "
                       "NAME=PATH");
  }
  return arg;
}

// Flags that hold what CLI11 cannot check alone, while it parses.
struct RawFlags {
  std::vector<std::string> models;
  std::string prefill = "auto";
  std::string numerics = "stable";
  std::string metrics_compat = "none";
};

void CheckAddress(const std::string& flag, const std::string& text) {
  const auto address = ParseAddress(text);
  if (!address.ok()) {
    throw CLI::ValidationError("--" + flag,
                               std::string(address.status().message()));
  }
}

void Finish(const RawFlags& raw, ServerConfig& config) {
  for (const std::string& text : raw.models) {
    ModelArg arg = ParseModel(text);
    for (const ModelArg& other : config.models) {
      if (other.name == arg.name) {
        throw CLI::ValidationError(
            "--model", "the name '" + arg.name + "' is given twice");
      }
    }
    config.models.push_back(std::move(arg));
  }
  if (config.models.empty()) {
    throw CLI::ValidationError("--model", "give at least one NAME=PATH");
  }
  for (const std::string& listen : config.listen) {
    CheckAddress("listen", listen);
  }
  if (config.metrics != "off") {
    CheckAddress("metrics", config.metrics);
    if (ParseAddress(config.metrics)->is_unix()) {
      throw CLI::ValidationError(
          "--metrics", "'" + config.metrics + "' is not HOST:PORT or off");
    }
  }
  if (config.max_batch_rows < config.max_sequences) {
    throw CLI::ValidationError(
        "--max-batch-rows",
        std::to_string(config.max_batch_rows) + " is less than the " +
            std::to_string(config.max_sequences) +
            " of --max-sequences; each running sequence needs a row");
  }
}

void AddModelFlags(CLI::App& app, RawFlags& raw, ServerConfig& config) {
  Named(app.add_option("--model", raw.models,
                       "A model to serve: NAME=FILE.gguf, NAME=scripted:FILE, "
                       "or a file alone, whose stem is then the name. May be "
                       "repeated; in NIBBLE_MODEL they are separated by ';'."),
        "model")
      ->type_name("NAME=PATH")
      ->delimiter(';')
      ->allow_extra_args(false);
  AddChoice<engine::Device>(app, "device", config.device,
                            {{"auto", engine::Device::kAuto},
                             {"cpu", engine::Device::kCpu},
                             {"reference", engine::Device::kReference},
                             {"cuda", engine::Device::kCuda}},
                            "Where models run. auto: a GPU if there is one, "
                            "else the CPU. reference: slow scalar code, to "
                            "compare with.");
  AddInteger(app, "threads", config.threads, 0, 1024,
             "CPU threads a model computes with; 0: the cores this process "
             "may use.");
  AddInteger(app, "kv-pages", config.kv_pages, 0, 1 << 24,
             "Pages of the key/value cache of each model; 0: enough for "
             "--max-sequences whole contexts, within a quarter of the memory.");
  AddInteger(app, "page-size", config.page_size, 1, 1024,
             "Tokens in one page.");
  AddInteger(app, "max-batch-rows", config.max_batch_rows, 1, 65536,
             "Tokens computed in one step at most; a longer prompt is "
             "computed in several.");
  AddInteger(app, "max-sequences", config.max_sequences, 1, 4096,
             "Outputs of each model generated at the same time at most.");
  AddInteger(app, "max-context", config.max_context, 0, 1 << 24,
             "Tokens of one request at most, prompt and answer; 0: what the "
             "model was made for.");
  AddInteger(app, "default-max-new-tokens", config.default_max_new_tokens, 1,
             1 << 24,
             "Tokens generated at most for a request that does not say.");
  AddChoice<bool>(app, "prefix-cache", config.prefix_cache,
                  {{"on", true}, {"off", false}},
                  "Keep the pages of finished prompts for later requests that "
                  "begin alike.");
  AddChoice<std::string>(
      app, "prefill", raw.prefill, {{"auto", "auto"}},
      "Weights that prompts are computed with. auto: the fastest the device "
      "has.");
  AddChoice<std::string>(
      app, "numerics", raw.numerics, {{"stable", "stable"}},
      "stable: the text of a request does not depend on what else runs or on "
      "what the cache holds.");
}

void AddLimitFlags(CLI::App& app, ServerConfig& config) {
  AddInteger(app, "max-queue", config.max_queue, 0, 1 << 20,
             "Requests of each model waiting at most; more are refused with "
             "RESOURCE_EXHAUSTED. 0: none may wait.");
  AddInteger<int64_t>(app, "max-queue-tokens", config.max_queue_tokens, 0,
                      int64_t{1} << 40,
                      "Prompt tokens of each model waiting at most.");
  AddInteger(app, "max-message-bytes", config.max_message_bytes, 1024,
             static_cast<int32_t>(1024 * kMiB),
             "Bytes of one request message at most.");
  AddInteger(app, "max-connections", config.max_connections, 1, 1 << 20,
             "gRPC connections at most; more are closed at once.");
  AddInteger(app, "max-streams", config.max_streams, 1, 1 << 20,
             "Calls open on one connection at most; more wait in the client.");
}

void AddTimeFlags(CLI::App& app, ServerConfig& config) {
  constexpr double kDay = 86'400;
  AddSeconds(app, "write-stall-timeout", config.write_stall_timeout, kDay,
             "A stream whose client reads nothing for so long is cancelled; "
             "0: never.");
  AddSeconds(app, "drain-timeout", config.drain_timeout, kDay,
             "After SIGTERM, running requests get so long to finish; then "
             "they are cancelled.");
  AddSeconds(app, "stall-timeout", config.stall_timeout, kDay,
             "A model that has work and ends no step for so long is reported "
             "NOT_SERVING; 0: never.");
  AddSeconds(app, "keepalive-time", config.keepalive_time, kDay,
             "Ping a silent client after so long; 0: never.");
  AddSeconds(app, "keepalive-timeout", config.keepalive_timeout, kDay,
             "Close a connection whose ping is not answered for so long.");
  AddSeconds(app, "keepalive-min-interval", config.keepalive_min_interval, kDay,
             "Clients may ping this often; more often ends the connection.");
  AddSeconds(app, "max-connection-age", config.max_connection_age, 365 * kDay,
             "Ask clients to reconnect after so long, so that load balancers "
             "spread them; 0: never.");
  AddSeconds(app, "max-connection-age-grace", config.max_connection_age_grace,
             365 * kDay,
             "Calls get so long to end when the connection's age is reached.");
}

void AddServiceFlags(CLI::App& app, RawFlags& raw, ServerConfig& config) {
  Named(app.add_option("--listen", config.listen,
                       "Where to serve gRPC: HOST:PORT, [IPV6]:PORT or "
                       "unix:PATH; port 0 takes a free one. May be repeated; "
                       "in NIBBLE_LISTEN they are separated by ';'."),
        "listen")
      ->type_name("ADDRESS")
      ->delimiter(';')
      ->allow_extra_args(false)
      ->default_str("127.0.0.1:8700");
  Named(app.add_option("--metrics", config.metrics,
                       "Where to serve /metrics, /healthz and /livez over "
                       "HTTP: HOST:PORT, or off."),
        "metrics")
      ->type_name("ADDRESS|off")
      ->capture_default_str();
  Named(app.add_option("--port-file", config.port_file,
                       "Write the bound addresses to this file once the "
                       "models are loaded: a line a --listen, then one for "
                       "--metrics."),
        "port-file")
      ->type_name("PATH");
  AddChoice<LogLevel>(app, "log-level", config.log_level,
                      {{"debug", LogLevel::kDebug},
                       {"info", LogLevel::kInfo},
                       {"warning", LogLevel::kWarning},
                       {"error", LogLevel::kError}},
                      "Log lines below this level are left out.");
  AddChoice<LogFormat>(app, "log-format", config.log_format,
                       {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
                       "How log lines look.");
  AddChoice<std::string>(app, "metrics-compat", raw.metrics_compat,
                         {{"none", "none"}, {"vllm", "vllm"}},
                         "vllm: show the metrics that vLLM has under its names "
                         "(vllm:...) as well.");
}

}  // namespace

std::variant<ServerConfig, ConfigExit> ParseConfig(int argc,
                                                   const char* const* argv) {
  ServerConfig config;
  RawFlags raw;
  CLI::App app(
      "nibble-server serves quantized language models over gRPC.\n"
      "Each flag may also be set in the environment (--max-queue as "
      "NIBBLE_MAX_QUEUE) or in the file of --config (max-queue = 8); the "
      "command line wins, then the environment.",
      "nibble-server");
  try {
    app.set_version_flag("--version", "nibble-server " + std::string(kVersion));
    Named(app.set_config("--config", "", "Read flags from this file (TOML)."),
          "config");
    app.allow_config_extras(false);
    AddModelFlags(app, raw, config);
    AddServiceFlags(app, raw, config);
    AddLimitFlags(app, config);
    AddTimeFlags(app, config);
    app.parse(argc, argv);
    Finish(raw, config);
    config.vllm_metrics = raw.metrics_compat == "vllm";
  } catch (const CLI::CallForHelp&) {
    return ConfigExit{0, app.help()};
  } catch (const CLI::CallForVersion&) {
    return ConfigExit{0, app.version() + "\n"};
  } catch (const CLI::Error& error) {
    return ConfigExit{kWrongFlag, std::string("nibble-server: ") +
                                      error.what() +
                                      "\nRun with --help for the flags.\n"};
  }
  return config;
}

}  // namespace nibble::server
