// Structured logs: one line an event, key=value fields after a short message.
// Thread-safe; the sink (format, level, JSON or text) is set once in main.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace nibble {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// Chooses level and format of the process's log, which goes to stderr.
void InitLog(LogLevel level, LogFormat format);

// Collects the fields of one line and writes it when it dies:
//   Log(LogLevel::kInfo, "model loaded").With("model", name).With("ms", 12);
class Log final {
 public:
  Log(LogLevel level, std::string_view message);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  Log& With(std::string_view key, std::string_view value);
  Log& With(std::string_view key, const char* value) {
    return With(key, std::string_view(value));
  }
  Log& With(std::string_view key, const std::string& value) {
    return With(key, std::string_view(value));
  }
  Log& With(std::string_view key, bool value);
  Log& With(std::string_view key, double value);
  template <typename T>
  requires std::is_integral_v<T> Log& With(std::string_view key, T value) {
    return WithNumber(key, std::to_string(value));
  }

 private:
  Log& WithNumber(std::string_view key, std::string_view digits);

  LogLevel level_;
  bool enabled_;
  std::string line_;  // rendered so far, in the process's format
};

}  // namespace nibble
