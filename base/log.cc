#include "base/log.h"

#include <atomic>
#include <cmath>
#include <memory>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace nibble {
namespace {

std::atomic<LogFormat> g_format{LogFormat::kText};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Never destroyed: threads may log while the process exits.
spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger(
        "nibble", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->flush_on(spdlog::level::debug);
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%f %L %v");
    return made;
  }();
  return *logger;
}

// Appends text as the inside of a JSON string; control characters escaped, so
// a line stays a line whatever a client sends.
void AppendEscaped(std::string& out, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
}

bool IsPlain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte == 0x7f || c == '"' || c == '\\' || c == '=') {
      return false;
    }
  }
  return true;
}

}  // namespace

void InitLog(LogLevel level, LogFormat format) {
  g_format = format;
  Logger().set_level(ToSpdlog(level));
  if (format == LogFormat::kJson) {
    Logger().set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%f%z","level":"%l",%v})");
  } else {
    Logger().set_pattern("%Y-%m-%dT%H:%M:%S.%f %L %v");
  }
}

Log::Log(LogLevel level, std::string_view message)
    : level_(level), enabled_(Logger().should_log(ToSpdlog(level))) {
  if (!enabled_) return;
  if (g_format == LogFormat::kJson) {
    line_ = "\"message\":\"";
    AppendEscaped(line_, message);
    line_ += '"';
  } else {
    AppendEscaped(line_, message);
  }
}

Log::~Log() {
  if (enabled_) Logger().log(ToSpdlog(level_), "{}", line_);
}

Log& Log::With(std::string_view key, std::string_view value) {
  if (!enabled_) return *this;
  if (g_format == LogFormat::kText && IsPlain(value)) {
    return WithNumber(key, value);
  }
  std::string quoted = "\"";
  AppendEscaped(quoted, value);
  quoted += '"';
  return WithNumber(key, quoted);
}

Log& Log::With(std::string_view key, bool value) {
  return WithNumber(key, value ? "true" : "false");
}

Log& Log::With(std::string_view key, double value) {
  if (!std::isfinite(value)) return With(key, std::string_view("non-finite"));
  return WithNumber(key, fmt::format("{:.6g}", value));
}

Log& Log::WithNumber(std::string_view key, std::string_view digits) {
  if (!enabled_) return *this;
  if (g_format == LogFormat::kJson) {
    line_ += ",\"";
    AppendEscaped(line_, key);
    line_ += "\":";
  } else {
    line_ += ' ';
    line_ += key;
    line_ += '=';
  }
  line_ += digits;
  return *this;
}

}  // namespace nibble
