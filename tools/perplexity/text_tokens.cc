#include "tools/perplexity/text_tokens.h"

#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nibble::tools {
namespace {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path + ": cannot be opened");
  std::string text((std::istreambuf_iterator<char>(file)),
                   std::istreambuf_iterator<char>());
  if (file.bad()) return absl::DataLossError(path + ": cannot be read");
  return text;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> TokenizeFile(
    const std::string& path, const model::Tokenizer& tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<std::vector<int32_t>> tokens = tokenizer.Encode(text, {});
  if (!tokens.ok()) {
    return absl::Status(tokens.status().code(),
                        absl::StrCat(path, ": ", tokens.status().message()));
  }
  return tokens;
}

}  // namespace nibble::tools
