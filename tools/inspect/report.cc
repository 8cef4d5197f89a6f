#include "tools/inspect/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/utf8.h"
#include "model/chat_template.h"
#include "model/tokenizer_metadata.h"

namespace nibble::inspect {
namespace {

using model::Absl;
using nlohmann::ordered_json;

std::vector<FormatCount> CountFormats(const model::GgufFile& file) {
  std::vector<FormatCount> counts(kernels::kNumFormats);
  for (const model::GgufTensor& tensor : file.tensors()) {
    FormatCount& count = counts[static_cast<size_t>(tensor.format)];
    count.format = tensor.format;
    ++count.tensors;
    count.weights += static_cast<uint64_t>(tensor.elements());
    count.bytes += tensor.bytes.size();
  }
  std::erase_if(counts, [](const FormatCount& c) { return c.tensors == 0; });
  std::sort(counts.begin(), counts.end(),
            [](const FormatCount& a, const FormatCount& b) {
              return a.bytes > b.bytes;
            });
  return counts;
}

absl::StatusOr<std::string> ChatFormatName(
    const model::TokenizerData& tokenizer) {
  const auto text = [&tokenizer](std::optional<int32_t> id) {
    return id ? tokenizer.tokens[*id] : std::string();
  };
  const auto recognised = model::ChatTemplate::Recognise(
      tokenizer.chat_template, text(tokenizer.bos), text(tokenizer.eos));
  if (!recognised.ok()) return recognised.status();
  return std::string(recognised->format_name());
}

std::string_view TypeName(model::TokenizerType type) {
  switch (type) {
    case model::TokenizerType::kByteLevelBpe:
      return "byte-level BPE";
    case model::TokenizerType::kSentencePiece:
      return "SentencePiece";
    case model::TokenizerType::kLongestMatch:
      return "longest match";
  }
  return "";
}

std::string Shape(const model::GgufTensor& tensor) {
  return absl::StrJoin(tensor.dims.begin(),
                       tensor.dims.begin() + tensor.num_dims, " x ");
}

// One "label  value" line.
void Line(std::string& out, std::string_view label, std::string_view value) {
  absl::StrAppendFormat(&out, "%-18s %s\n", Absl(label), Absl(value));
}

std::string Megabytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

void ConfigText(const model::ModelConfig& config, std::string& out) {
  Line(out, "parameters", absl::StrCat(config.parameters));
  Line(out, "weights",
       absl::StrCat(Megabytes(config.weight_bytes), ", mostly ",
                    config.file_type));
  Line(out, "layers", absl::StrCat(config.layers));
  Line(out, "hidden size", absl::StrCat(config.hidden_size));
  Line(out, "feed-forward size", absl::StrCat(config.feed_forward_size));
  Line(out, "heads",
       absl::StrCat(config.heads, " (", config.kv_heads,
                    " of keys and values), size ", config.head_dim));
  Line(out, "rotary dimensions",
       absl::StrCat(2 * config.rope.inverse_frequency.size()));
  Line(out, "context", absl::StrCat(config.context_length, " tokens"));
  Line(out, "vocabulary", absl::StrCat(config.vocab_size));
  Line(out, "embeddings", config.tied_embeddings ? "tied" : "separate");
}

void TokenizerText(const Report& report, std::string& out) {
  const model::TokenizerData& tokenizer = *report.tokenizer;
  if (tokenizer.tokens.empty()) {
    Line(out, "tokenizer", "none: serves token ids only");
    return;
  }
  std::string kind(TypeName(tokenizer.type));
  if (!tokenizer.pre.empty()) {
    absl::StrAppend(&kind, ", rules ", model::Quoted(tokenizer.pre));
  }
  absl::StrAppend(&kind, ", ", tokenizer.tokens.size(), " tokens");
  if (!tokenizer.merges.empty()) {
    absl::StrAppend(&kind, ", ", tokenizer.merges.size(), " merges");
  }
  Line(out, "tokenizer", kind);
  const auto token = [&](std::string_view label, std::optional<int32_t> id) {
    if (!id) return;
    Line(out, label,
         absl::StrCat(*id, " ", model::Quoted(tokenizer.tokens[*id])));
  };
  token("BOS", tokenizer.bos);
  token("EOS", tokenizer.eos);
  std::vector<std::string> ends;
  for (const int32_t id : tokenizer.end_of_generation) {
    ends.push_back(model::Quoted(tokenizer.tokens[id]));
  }
  Line(out, "ends a text", absl::StrJoin(ends, ", "));
  Line(out, "adds BOS, EOS",
       absl::StrCat(tokenizer.add_bos ? "yes" : "no", ", ",
                    tokenizer.add_eos ? "yes" : "no"));
  Line(out, "chat template",
       report.chat_format.ok()
           ? *report.chat_format
           : std::string(report.chat_format.status().message()));
}

ordered_json ConfigJson(const model::ModelConfig& config) {
  return {{"name", config.name},
          {"file_type", config.file_type},
          {"parameters", config.parameters},
          {"weight_bytes", config.weight_bytes},
          {"layers", config.layers},
          {"hidden_size", config.hidden_size},
          {"feed_forward_size", config.feed_forward_size},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"rotary_dims", 2 * config.rope.inverse_frequency.size()},
          {"context_length", config.context_length},
          {"vocab_size", config.vocab_size},
          {"rms_epsilon", config.rms_epsilon},
          {"tied_embeddings", config.tied_embeddings}};
}

ordered_json TokenizerJson(const Report& report) {
  const model::TokenizerData& tokenizer = *report.tokenizer;
  const auto id = [](std::optional<int32_t> value) {
    return value ? ordered_json(*value) : ordered_json(nullptr);
  };
  ordered_json json = {{"type", std::string(TypeName(tokenizer.type))},
                       {"pre", tokenizer.pre},
                       {"tokens", tokenizer.tokens.size()},
                       {"merges", tokenizer.merges.size()},
                       {"bos", id(tokenizer.bos)},
                       {"eos", id(tokenizer.eos)},
                       {"end_of_generation", tokenizer.end_of_generation},
                       {"add_bos", tokenizer.add_bos},
                       {"add_eos", tokenizer.add_eos}};
  json["chat_format"] = report.chat_format.ok()
                            ? ordered_json(*report.chat_format)
                            : ordered_json(nullptr);
  return json;
}

ordered_json TensorJson(const model::GgufTensor& tensor) {
  return {{"name", std::string(tensor.name)},
          {"format", std::string(kernels::Name(tensor.format))},
          {"dims", std::vector<int64_t>(tensor.dims.begin(),
                                        tensor.dims.begin() + tensor.num_dims)},
          {"offset_bytes", tensor.offset_bytes},
          {"bytes", tensor.bytes.size()}};
}

}  // namespace

Report MakeReport(const model::GgufFile& file, uint64_t file_bytes,
                  const ReportOptions& options) {
  Report report{.file = &file,
                .file_bytes = file_bytes,
                .options = options,
                .architecture = "",
                .config = model::ReadModelConfig(file),
                .tokenizer = model::ReadTokenizerData(file),
                .chat_format = absl::FailedPreconditionError("no vocabulary"),
                .formats = CountFormats(file),
                .servable = absl::OkStatus()};
  if (const auto name = file.String("general.architecture"); name.ok()) {
    report.architecture = SanitizeUtf8(*name);
  }
  if (report.tokenizer.ok() && !report.tokenizer->tokens.empty()) {
    report.chat_format = ChatFormatName(*report.tokenizer);
  }
  report.servable.Update(report.config.status());
  report.servable.Update(report.tokenizer.status());
  return report;
}

std::string ToText(const Report& report) {
  const model::GgufFile& file = *report.file;
  std::string out;
  Line(out, "file",
       absl::StrCat(file.path(), ", ", Megabytes(report.file_bytes),
                    ", GGUF version ", file.version()));
  Line(out, "architecture", model::Printable(report.architecture));
  if (report.config.ok()) {
    if (!report.config->name.empty()) {
      Line(out, "name", model::Printable(report.config->name));
    }
    ConfigText(*report.config, out);
  }
  if (report.tokenizer.ok()) TokenizerText(report, out);
  Line(out, "tensors", absl::StrCat(file.tensors().size()));
  for (const FormatCount& count : report.formats) {
    absl::StrAppendFormat(&out, "  %-6s %6d tensors %14d weights %12s\n",
                          Absl(kernels::Name(count.format)), count.tensors,
                          count.weights, Megabytes(count.bytes));
  }
  if (report.options.tensors) {
    out += "\n";
    for (const model::GgufTensor& tensor : file.tensors()) {
      absl::StrAppendFormat(&out, "%-34s %-6s %-18s %12d bytes\n",
                            model::Quoted(tensor.name),
                            Absl(kernels::Name(tensor.format)), Shape(tensor),
                            tensor.bytes.size());
    }
  }
  if (report.options.keys) {
    out += "\n";
    for (const model::GgufKey& key : file.keys()) {
      absl::StrAppend(&out, model::Quoted(key.name), " = ",
                      model::ToString(key.value), "\n");
    }
  }
  return out;
}

std::string ToJson(const Report& report) {
  const model::GgufFile& file = *report.file;
  ordered_json json = {{"file", file.path()},
                       {"file_bytes", report.file_bytes},
                       {"gguf_version", file.version()},
                       {"alignment_bytes", file.alignment_bytes()},
                       {"architecture", report.architecture},
                       {"servable", report.servable.ok()}};
  if (!report.servable.ok()) {
    json["error"] = std::string(report.servable.message());
  }
  if (report.config.ok()) json["config"] = ConfigJson(*report.config);
  if (report.tokenizer.ok()) json["tokenizer"] = TokenizerJson(report);
  json["formats"] = ordered_json::array();
  for (const FormatCount& count : report.formats) {
    json["formats"].push_back(
        {{"format", std::string(kernels::Name(count.format))},
         {"tensors", count.tensors},
         {"weights", count.weights},
         {"bytes", count.bytes}});
  }
  if (report.options.tensors) {
    json["tensors"] = ordered_json::array();
    for (const model::GgufTensor& tensor : file.tensors()) {
      json["tensors"].push_back(TensorJson(tensor));
    }
  }
  if (report.options.keys) {
    json["keys"] = ordered_json::object();
    for (const model::GgufKey& key : file.keys()) {
      json["keys"][std::string(key.name)] = model::ToString(key.value);
    }
  }
  // A path or a value need not be UTF-8: replace, do not throw.
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace nibble::inspect
