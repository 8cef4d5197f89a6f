#include "engine/scripted_model.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checked_math.h"
#include "base/status.h"
#include "engine/script.h"
#include "kernels/reference/sampling.h"

namespace nibble::engine {
namespace {

// Rows of one step that are sampled at least, like a real model's.
constexpr int32_t kMinLogitRows = 128;
// Without a wish for pages: 4 bytes each token, so 64 MiB at most.
constexpr int64_t kMaxDefaultTokens = 16 << 20;
// The logit of the token an ids script gives; the others have default_logit.
constexpr float kScriptedLogit = 0.0f;
// Hash scripts spread the logits over [0, kHashSpread).
constexpr float kHashSpread = 10.0f;
constexpr int32_t kEmptySlot = -1;

// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable
// Pseudorandom Number Generators", OOPSLA 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Uniform in [0, 1): the upper 24 bits, which a float holds exactly.
float UnitFloat(uint64_t bits) {
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

// Owned by an engine; Step on the engine thread only.
class ScriptedModel final : public ModelRunner {
 public:
  ScriptedModel(ScriptFile file, std::unique_ptr<model::Tokenizer> tokenizer,
                RunnerInfo info)
      : file_(std::move(file)),
        tokenizer_(std::move(tokenizer)),
        info_(std::move(info)),
        slots_(static_cast<size_t>(info_.pages) *
                   static_cast<size_t>(info_.page_size),
               kEmptySlot),
        logits_(static_cast<size_t>(info_.vocab_size)) {}

  const RunnerInfo& info() const override { return info_; }
  const model::Tokenizer& tokenizer() const override { return *tokenizer_; }
  void Step(const model::Batch& batch, std::span<const kernels::SampleRow> rows,
            std::span<kernels::SampleResult> results) override;

 private:
  void Delay(const model::Batch& batch);
  // Stores the rows' tokens where a real model would store keys and values.
  void WriteSlots(const model::Batch& batch);
  const Script& ScriptFor(std::span<const int32_t> prompt) const;
  bool Matches(const ScriptCondition& when,
               std::span<const int32_t> prompt) const;
  void SetLogits(const Script& script, const kernels::SampleRow& row,
                 uint64_t prefix_hash);
  void SetLogitsOf(int32_t id);
  void SetHashLogits(const Script& script, uint64_t prefix_hash);
  // The hash of a row's sequence up to the row, read through its pages.
  uint64_t PrefixHash(const model::Batch& batch, int32_t sequence, int32_t row,
                      uint64_t seed) const;

  ScriptFile file_;
  std::unique_ptr<model::Tokenizer> tokenizer_;
  RunnerInfo info_;
  // [pages * page_size]: 2 * token, plus 1 if a decode row wrote it.
  std::vector<int32_t> slots_;
  std::vector<float> logits_;  // [vocab], of one row
  kernels::reference::Sampler sampler_;
  int64_t steps_ = 0;
};

void ScriptedModel::Step(const model::Batch& batch,
                         std::span<const kernels::SampleRow> rows,
                         std::span<kernels::SampleResult> results) {
  NIBBLE_CHECK_EQ(rows.size(), batch.logit_rows.size());
  NIBBLE_CHECK_EQ(rows.size(), results.size());
  NIBBLE_CHECK_LE(batch.rows(), info_.max_batch_rows);
  Delay(batch);
  WriteSlots(batch);
  int32_t sequence = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t row = batch.logit_rows[i];
    while (batch.row_begin[static_cast<size_t>(sequence) + 1] <= row) {
      ++sequence;
    }
    const Script& script = ScriptFor(rows[i].prompt_tokens);
    const uint64_t hash =
        script.kind == Script::Kind::kHash
            ? PrefixHash(batch, sequence, row, script.hash_seed)
            : 0;
    SetLogits(script, rows[i], hash);
    sampler_.Sample(logits_, rows[i], &results[i]);
  }
}

void ScriptedModel::Delay(const model::Batch& batch) {
  ++steps_;
  const int32_t prompt_rows = batch.rows() - batch.decode_rows;
  std::chrono::microseconds delay =
      file_.delays.step + file_.delays.prefill_per_token * prompt_rows;
  if (steps_ == file_.delays.block_at_step) delay += file_.delays.block;
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

void ScriptedModel::WriteSlots(const model::Batch& batch) {
  for (int32_t row = 0; row < batch.rows(); ++row) {
    const auto i = static_cast<size_t>(row);
    const auto slot = static_cast<size_t>(batch.slots[i]);
    NIBBLE_CHECK_LT(slot, slots_.size());
    slots_[slot] = batch.tokens[i] * 2 + (row < batch.decode_rows ? 1 : 0);
  }
}

const Script& ScriptedModel::ScriptFor(std::span<const int32_t> prompt) const {
  for (const Script& script : file_.scripts) {
    if (Matches(script.when, prompt)) return script;
  }
  return file_.scripts.back();
}

bool ScriptedModel::Matches(const ScriptCondition& when,
                            std::span<const int32_t> prompt) const {
  if (when.prompt_tokens.has_value() &&
      static_cast<size_t>(*when.prompt_tokens) != prompt.size()) {
    return false;
  }
  if (!when.prompt_begins && !when.prompt_contains) return true;
  const std::string text = tokenizer_->Decode(prompt, /*special=*/true);
  return (!when.prompt_begins || text.starts_with(*when.prompt_begins)) &&
         (!when.prompt_contains ||
          text.find(*when.prompt_contains) != std::string::npos);
}

void ScriptedModel::SetLogits(const Script& script,
                              const kernels::SampleRow& row,
                              uint64_t prefix_hash) {
  if (script.kind == Script::Kind::kHash) {
    SetHashLogits(script, prefix_hash);
    return;
  }
  if (row.forced_token >= 0) {  // a prompt row: nothing is scripted for it
    std::fill(logits_.begin(), logits_.end(), 0.0f);
    return;
  }
  const size_t length = script.kind == Script::Kind::kIds
                            ? script.ids.size()
                            : script.logits.size();
  uint64_t at = row.position;
  if (at >= length) {
    if (script.then == Script::Then::kEos) {
      SetLogitsOf(*file_.tokenizer.eos);
      return;
    }
    at %= length;
  }
  if (script.kind == Script::Kind::kIds) {
    SetLogitsOf(script.ids[at]);
  } else {
    logits_ = script.logits[at];
  }
}

void ScriptedModel::SetLogitsOf(int32_t id) {
  std::fill(logits_.begin(), logits_.end(), file_.default_logit);
  logits_[static_cast<size_t>(id)] = kScriptedLogit;
}

void ScriptedModel::SetHashLogits(const Script& script, uint64_t prefix_hash) {
  const auto period = static_cast<uint64_t>(script.hash_eos_period);
  if (period > 0 && prefix_hash % period == 0) {
    SetLogitsOf(*file_.tokenizer.eos);
    return;
  }
  for (int32_t id = 0; id < info_.vocab_size; ++id) {
    logits_[static_cast<size_t>(id)] =
        tokenizer_->IsSpecial(id)
            ? file_.default_logit
            : kHashSpread *
                  UnitFloat(Mix(prefix_hash + static_cast<uint64_t>(id)));
  }
}

uint64_t ScriptedModel::PrefixHash(const model::Batch& batch, int32_t sequence,
                                   int32_t row, uint64_t seed) const {
  const auto pages =
      static_cast<size_t>(batch.page_begin[static_cast<size_t>(sequence)]);
  const int32_t end = batch.positions[static_cast<size_t>(row)];
  uint64_t hash = Mix(seed);
  for (int32_t position = 0; position <= end; ++position) {
    const auto page = static_cast<size_t>(
        batch
            .page_ids[pages + static_cast<size_t>(position / info_.page_size)]);
    const size_t slot = page * static_cast<size_t>(info_.page_size) +
                        static_cast<size_t>(position % info_.page_size);
    hash = Mix(hash ^ static_cast<uint64_t>(slots_[slot] + 1));
  }
  return hash;
}

absl::StatusOr<RunnerInfo> MakeInfo(const ScriptFile& file,
                                    std::string_view origin,
                                    const LoadOptions& options) {
  RunnerInfo info;
  info.name = file.name;
  info.architecture = "scripted";
  info.file_type = "json";
  info.backend = "scripted";
  info.device = "script";
  info.vocab_size = static_cast<int32_t>(file.tokenizer.tokens.size());
  info.context_length = file.context_length;
  info.page_size = file.page_size > 0 ? file.page_size : options.page_size;
  info.max_batch_rows =
      file.max_batch_rows > 0 ? file.max_batch_rows : options.max_batch_rows;
  info.max_logit_rows = std::max(options.max_sequences, kMinLogitRows);
  const int64_t wanted_tokens = std::min(
      int64_t{options.max_sequences} * file.context_length, kMaxDefaultTokens);
  info.pages = file.pages > 0 ? file.pages : options.kv_pages;
  if (info.pages == 0) {
    info.pages =
        static_cast<int32_t>(DivideUp<int64_t>(wanted_tokens, info.page_size));
  }
  const std::optional<int64_t> slots = CheckedMul<int64_t>(
      int64_t{info.pages} * info.page_size, int64_t{sizeof(int32_t)});
  if (!slots.has_value() || *slots > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("scripted model ", std::string(origin),
                     ": pages: ", info.pages, " pages of ", info.page_size,
                     " tokens are more than a scripted model holds"));
  }
  info.kv_bytes = *slots;
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ParseScriptedModel(
    std::string_view json, std::string_view origin,
    const LoadOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(ScriptFile file, ParseScriptFile(json, origin));
  NIBBLE_ASSIGN_OR_RETURN(RunnerInfo info, MakeInfo(file, origin, options));
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<model::Tokenizer> tokenizer,
                          model::Tokenizer::Create(file.tokenizer));
  return std::unique_ptr<ModelRunner>(std::make_unique<ScriptedModel>(
      std::move(file), std::move(tokenizer), std::move(info)));
}

absl::StatusOr<std::unique_ptr<ModelRunner>> LoadScriptedModel(
    const std::string& path, const LoadOptions& options) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    return absl::NotFoundError(
        absl::StrCat("scripted model ", path, ": ", std::strerror(errno)));
  }
  const std::string json{std::istreambuf_iterator<char>(stream),
                         std::istreambuf_iterator<char>()};
  if (stream.bad()) {
    return absl::InvalidArgumentError(
        absl::StrCat("scripted model ", path, ": cannot be read"));
  }
  return ParseScriptedModel(json, path, options);
}

}  // namespace nibble::engine
