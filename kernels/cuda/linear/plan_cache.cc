#include "kernels/cuda/linear/plan_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ios>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"

namespace nibble::kernels::cuda {
namespace {

constexpr std::string_view kHeader =
    "# How fast each way to run a linear layer was on this machine. Made by "
    "Nibble;\n# may be deleted: what is missing is measured again.\n";
constexpr std::string_view kArrow = " => ";

// A plan takes some 500 bytes: thousands of layers of all models together.
// More than that is not a file of ours.
constexpr int64_t kMaxFileBytes = 16 << 20;

// A name as a device or a build may have it, kept to one line and readable.
std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (c < ' ' || c > '~') c = '?';
  }
  for (size_t at = line.find(kArrow); at != std::string::npos;
       at = line.find(kArrow, at)) {
    line[at + 1] = '-';
  }
  return line;
}

absl::Status SystemError(std::string_view call, const std::string& path) {
  return absl::InternalError(
      absl::StrCat(std::string(call), " ", path, ": ", std::strerror(errno)));
}

// An open file, and with it its lock. Lives on a stack.
class FileDescriptor final {
 public:
  FileDescriptor(const std::string& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

absl::Status WriteFile(const std::string& path, std::string_view text) {
  const FileDescriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() < 0) return SystemError("open", path);
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("write", path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  // Or a crash could leave the new name on an empty file.
  if (fsync(file.get()) != 0) return SystemError("fsync", path);
  return absl::OkStatus();
}

// A name that no other thread or process writes to.
std::string TemporaryName(const std::string& path) {
  static std::atomic<int> count{0};
  return absl::StrCat(path, ".", getpid(), ".", count++, ".tmp");
}

}  // namespace

std::string PlanKey::ToString() const {
  return absl::StrCat("gpu=", OneLine(gpu), " cuda=", OneLine(cuda),
                      " build=", OneLine(build), " n=", n, " k=", k,
                      " layout=", OneLine(layout), " x=", OneLine(x_dtype),
                      " epilogue=", OneLine(epilogue), " max_rows=", max_rows);
}

PlanCache::PlanCache(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) ReadInto(plans_);
}

std::optional<LinearPlan> PlanCache::Find(const PlanKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto plan = plans_.find(key.ToString());
  if (plan == plans_.end()) return std::nullopt;
  return LinearPlan::Parse(plan->second).value();  // read once before
}

void PlanCache::Store(const PlanKey& key, const LinearPlan& plan) {
  std::string text = plan.ToString();
  NIBBLE_CHECK(LinearPlan::Parse(text).ok());
  const std::lock_guard lock(mutex_);
  plans_.insert_or_assign(key.ToString(), std::move(text));
  if (path_.empty()) return;
  // Processes take turns, so that each adds to what the one before wrote. The
  // lock has a file of its own: the other is replaced, not written to.
  const FileDescriptor turn(path_ + ".lock", O_RDWR | O_CREAT);
  absl::Status status;
  if (turn.get() < 0 || flock(turn.get(), LOCK_EX) != 0) {
    status = SystemError("lock", path_);
  } else {
    ReadInto(plans_);
    status = Write(plans_);
  }
  if (!status.ok()) {
    Log(LogLevel::kWarning, "launch plans are not kept")
        .With("path", path_)
        .With("reason", std::string(status.message()));
  }
}

void PlanCache::ReadInto(Plans& plans) const {
  std::ifstream file(path_, std::ios::binary | std::ios::ate);
  if (!file) return;  // the first time there is none
  const auto warn = [this](std::string_view why, int64_t line) {
    Log(LogLevel::kWarning, "launch plans ignored")
        .With("path", path_)
        .With("line", line)
        .With("reason", why);
  };
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) {
    return warn("not a file", 0);
  }
  const int64_t bytes = file.tellg();
  if (bytes > kMaxFileBytes) {
    return warn(absl::StrCat(bytes, " bytes, the limit is ", kMaxFileBytes), 0);
  }
  file.seekg(0);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    const size_t arrow = line.find(kArrow);
    if (arrow == std::string::npos || arrow == 0) {
      warn("no plan in it", number);
      continue;
    }
    std::string text = line.substr(arrow + kArrow.size());
    if (const auto plan = LinearPlan::Parse(text); !plan.ok()) {
      warn(std::string(plan.status().message()), number);
      continue;
    }
    plans.emplace(line.substr(0, arrow), std::move(text));
  }
}

absl::Status PlanCache::Write(const Plans& plans) const {
  std::string text(kHeader);
  for (const auto& [key, plan] : plans) {
    absl::StrAppend(&text, key, std::string(kArrow), plan, "\n");
  }
  const std::string temporary = TemporaryName(path_);
  absl::Status status = WriteFile(temporary, text);
  if (status.ok() && rename(temporary.c_str(), path_.c_str()) != 0) {
    status = SystemError("rename", temporary);
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

}  // namespace nibble::kernels::cuda
