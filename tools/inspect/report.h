// What nibble-inspect says about a file, and its two renderings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/tokenizer_data.h"

namespace nibble::inspect {

// The parts that are long.
struct ReportOptions {
  bool tensors = false;
  bool keys = false;
};

// Tensors of one format.
struct FormatCount {
  kernels::QuantFormat format = kernels::QuantFormat::kF32;
  uint64_t tensors = 0;
  uint64_t weights = 0;
  uint64_t bytes = 0;
};

// All facts of one file, before rendering. Borrows the file.
struct Report {
  const model::GgufFile* file = nullptr;
  uint64_t file_bytes = 0;
  ReportOptions options;
  std::string architecture;  // as the file spells it, "" when it does not
  absl::StatusOr<model::ModelConfig> config;
  absl::StatusOr<model::TokenizerData> tokenizer;
  // The chat format, or why there is none.
  absl::StatusOr<std::string> chat_format;
  std::vector<FormatCount> formats;  // those that occur
  absl::Status servable;             // the first reason why not
};

Report MakeReport(const model::GgufFile& file, uint64_t file_bytes,
                  const ReportOptions& options);

std::string ToText(const Report& report);
std::string ToJson(const Report& report);

}  // namespace nibble::inspect
