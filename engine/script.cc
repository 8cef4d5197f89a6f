#include "engine/script.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace nibble::engine {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxDelayUs = 3'600'000'000;  // an hour
constexpr size_t kMaxVocabulary = 1 << 20;

constexpr char kChatMl[] =
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

absl::Status Wrong(std::string_view field, std::string_view problem) {
  std::string message(field);
  return absl::InvalidArgumentError(message.append(": ").append(problem));
}

// One JSON object and where it stands in the file, for errors.
class Object final {
 public:
  // `value` must outlive the object.
  static absl::StatusOr<Object> From(const Json& value, std::string path) {
    if (!value.is_object()) return Wrong(path, "an object is expected");
    return Object(value, std::move(path));
  }

  // Field names as people write them: "scripts[1].ids".
  std::string Name(std::string_view key) const {
    if (path_.empty()) return std::string(key);
    return path_ + "." + std::string(key);
  }

  const Json* Find(std::string_view key) const {
    const auto found = value_->find(std::string(key));
    return found == value_->end() ? nullptr : &*found;
  }

  // Refuses misspelled fields.
  absl::Status AllowOnly(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, unused] : value_->items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        return Wrong(Name(key), "there is no such field");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Int(std::string_view key, int64_t otherwise,
                              int64_t low, int64_t high) const {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    // Unsigned numbers beyond int64 would wrap to negative ones.
    const bool fits =
        value->is_number_integer() &&
        (!value->is_number_unsigned() ||
         value->get<uint64_t>() <=
             static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high) {
      return Wrong(Name(key),
                   absl::StrCat(value->dump(), " is not a number in [", low,
                                ", ", high, "]"));
    }
    return value->get<int64_t>();
  }

  absl::StatusOr<bool> Bool(std::string_view key) const {
    const Json* value = Find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return Wrong(Name(key), "true or false expected");
    return value->get<bool>();
  }

  absl::StatusOr<std::optional<std::string>> String(
      std::string_view key) const {
    const Json* value = Find(key);
    if (value == nullptr) return std::optional<std::string>();
    if (!value->is_string()) return Wrong(Name(key), "a string is expected");
    return std::optional<std::string>(value->get<std::string>());
  }

 private:
  Object(const Json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  const Json* value_;
  std::string path_;
};

absl::StatusOr<const Json*> ArrayAt(const Json& value, std::string_view path) {
  if (!value.is_array()) return Wrong(path, "an array is expected");
  if (value.empty()) return Wrong(path, "the array is empty");
  return &value;
}

std::string Indexed(std::string_view path, size_t i) {
  return absl::StrCat(std::string(path), "[", i, "]");
}

// Reads the vocabulary, then the scripts that refer to it.
class Parser final {
 public:
  absl::StatusOr<ScriptFile> Parse(const Json& json);

 private:
  absl::Status ReadVocabulary(const Object& root);
  absl::Status ReadToken(const Json& value, const std::string& path);
  absl::Status ReadSpelling(const Object& token, std::string& spelling);
  void AddToken(std::string spelling, model::TokenKind kind);
  void AddMissingBytes();
  absl::Status ReadScripts(const Object& root);
  absl::Status ReadScript(const Object& object);
  absl::Status ReadThen(const Object& object, Script& script) const;
  absl::Status ReadCondition(const Object& object, Script& script) const;
  absl::StatusOr<int32_t> ReadId(const Json& value,
                                 const std::string& path) const;
  absl::StatusOr<float> ReadLogit(const Json& value,
                                  const std::string& path) const;
  absl::StatusOr<std::vector<float>> ReadLogits(const Json& value,
                                                const std::string& path) const;
  absl::Status ReadHash(const Json& value, const std::string& path,
                        Script& script) const;
  absl::Status ReadDelays(const Object& root);

  int32_t vocab_size() const {
    return static_cast<int32_t>(file_.tokenizer.tokens.size());
  }

  ScriptFile file_;
  absl::flat_hash_map<std::string, int32_t> ids_;  // by spelling
};

absl::StatusOr<ScriptFile> Parser::Parse(const Json& json) {
  NIBBLE_ASSIGN_OR_RETURN(const Object root, Object::From(json, ""));
  NIBBLE_RETURN_IF_ERROR(root.AllowOnly(
      {"name", "context_length", "pages", "page_size", "max_batch_rows",
       "vocabulary", "all_bytes", "add_bos", "chat_template", "default_logit",
       "scripts", "ids", "logits", "hash", "then", "delays"}));
  NIBBLE_ASSIGN_OR_RETURN(const auto name, root.String("name"));
  file_.name = name.value_or("scripted");
  const auto read = [&](std::string_view key, int64_t otherwise, int32_t& out) {
    absl::StatusOr<int64_t> value = root.Int(key, otherwise, 1, kMaxInt32);
    if (value.ok()) out = static_cast<int32_t>(*value);
    return value.status();
  };
  NIBBLE_RETURN_IF_ERROR(read("context_length", 2048, file_.context_length));
  NIBBLE_RETURN_IF_ERROR(read("pages", 0, file_.pages));
  NIBBLE_RETURN_IF_ERROR(read("page_size", 0, file_.page_size));
  NIBBLE_RETURN_IF_ERROR(read("max_batch_rows", 0, file_.max_batch_rows));
  if (const Json* value = root.Find("default_logit")) {
    NIBBLE_ASSIGN_OR_RETURN(file_.default_logit,
                            ReadLogit(*value, "default_logit"));
  }
  NIBBLE_RETURN_IF_ERROR(ReadVocabulary(root));
  NIBBLE_RETURN_IF_ERROR(ReadScripts(root));
  NIBBLE_RETURN_IF_ERROR(ReadDelays(root));
  return std::move(file_);
}

absl::Status Parser::ReadVocabulary(const Object& root) {
  model::TokenizerData& data = file_.tokenizer;
  data.type = model::TokenizerType::kLongestMatch;
  const Json* value = root.Find("vocabulary");
  if (value == nullptr) return Wrong("vocabulary", "the field is missing");
  NIBBLE_ASSIGN_OR_RETURN(const Json* array, ArrayAt(*value, "vocabulary"));
  if (array->size() > kMaxVocabulary) {
    return Wrong("vocabulary", absl::StrCat(array->size(), " entries, at most ",
                                            kMaxVocabulary, " are taken"));
  }
  for (size_t i = 0; i < array->size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(ReadToken((*array)[i], Indexed("vocabulary", i)));
  }
  NIBBLE_ASSIGN_OR_RETURN(const bool all_bytes, root.Bool("all_bytes"));
  if (all_bytes) AddMissingBytes();
  NIBBLE_ASSIGN_OR_RETURN(data.add_bos, root.Bool("add_bos"));
  if (data.add_bos && !data.bos.has_value()) {
    return Wrong("add_bos", "no vocabulary entry is marked bos");
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto chat, root.String("chat_template"));
  data.chat_template = chat.value_or("");
  if (data.chat_template == "chatml") data.chat_template = kChatMl;
  return absl::OkStatus();
}

absl::Status Parser::ReadToken(const Json& value, const std::string& path) {
  model::TokenizerData& data = file_.tokenizer;
  std::string spelling;
  if (value.is_string()) {
    spelling = value.get<std::string>();
    if (spelling.empty()) return Wrong(path, "the token is empty");
    if (ids_.contains(spelling)) return Wrong(path, "the token is there twice");
    AddToken(std::move(spelling), model::TokenKind::kNormal);
    return absl::OkStatus();
  }
  NIBBLE_ASSIGN_OR_RETURN(const Object token, Object::From(value, path));
  NIBBLE_RETURN_IF_ERROR(
      token.AllowOnly({"text", "bytes", "special", "eos", "bos"}));
  NIBBLE_RETURN_IF_ERROR(ReadSpelling(token, spelling));
  if (ids_.contains(spelling)) return Wrong(path, "the token is there twice");
  NIBBLE_ASSIGN_OR_RETURN(const bool special, token.Bool("special"));
  NIBBLE_ASSIGN_OR_RETURN(const bool eos, token.Bool("eos"));
  NIBBLE_ASSIGN_OR_RETURN(const bool bos, token.Bool("bos"));
  const int32_t id = vocab_size();
  if (eos && data.eos.has_value()) {
    data.end_of_generation.push_back(id);
  } else if (eos) {
    data.eos = id;
  }
  if (bos && data.bos.has_value()) {
    return Wrong(token.Name("bos"), "another entry is marked bos already");
  }
  if (bos) data.bos = id;
  AddToken(std::move(spelling), special || eos || bos
                                    ? model::TokenKind::kControl
                                    : model::TokenKind::kNormal);
  return absl::OkStatus();
}

absl::Status Parser::ReadSpelling(const Object& token, std::string& spelling) {
  NIBBLE_ASSIGN_OR_RETURN(const auto text, token.String("text"));
  NIBBLE_ASSIGN_OR_RETURN(const auto bytes, token.String("bytes"));
  if (text.has_value() == bytes.has_value()) {
    return Wrong(token.Name("text"), "either text or bytes is expected");
  }
  if (text.has_value()) {
    spelling = *text;
  } else {
    const bool hex =
        bytes->size() % 2 == 0 &&
        std::all_of(bytes->begin(), bytes->end(), [](char c) {
          return absl::ascii_isxdigit(static_cast<unsigned char>(c));
        });
    if (!hex) {
      return Wrong(token.Name("bytes"), "pairs of hex digits are expected");
    }
    spelling = absl::HexStringToBytes(*bytes);
  }
  if (spelling.empty()) return Wrong(token.Name("text"), "the token is empty");
  return absl::OkStatus();
}

void Parser::AddToken(std::string spelling, model::TokenKind kind) {
  ids_.emplace(spelling, vocab_size());
  file_.tokenizer.tokens.push_back(std::move(spelling));
  file_.tokenizer.kinds.push_back(kind);
}

void Parser::AddMissingBytes() {
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling(1, static_cast<char>(byte));
    if (!ids_.contains(spelling)) {
      AddToken(std::move(spelling), model::TokenKind::kNormal);
    }
  }
}

absl::Status Parser::ReadScripts(const Object& root) {
  const Json* value = root.Find("scripts");
  if (value == nullptr) return ReadScript(root);
  for (const std::string_view key : {"ids", "logits", "hash", "then"}) {
    if (root.Find(key) != nullptr) {
      return Wrong(key, "it belongs into an entry of \"scripts\"");
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(const Json* array, ArrayAt(*value, "scripts"));
  for (size_t i = 0; i < array->size(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const Object object,
                            Object::From((*array)[i], Indexed("scripts", i)));
    NIBBLE_RETURN_IF_ERROR(
        object.AllowOnly({"when", "ids", "logits", "hash", "then"}));
    NIBBLE_RETURN_IF_ERROR(ReadScript(object));
  }
  if (!file_.scripts.back().when.always()) {
    return Wrong(Indexed("scripts", array->size() - 1),
                 "the last script answers every other prompt, it has no when");
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadScript(const Object& object) {
  const Json* ids = object.Find("ids");
  const Json* logits = object.Find("logits");
  const Json* hash = object.Find("hash");
  if ((ids != nullptr) + (logits != nullptr) + (hash != nullptr) != 1) {
    return Wrong(object.Name("ids"),
                 "exactly one of ids, logits and hash is expected");
  }
  Script script;
  NIBBLE_RETURN_IF_ERROR(ReadCondition(object, script));
  if (ids != nullptr) {
    const std::string path = object.Name("ids");
    NIBBLE_ASSIGN_OR_RETURN(const Json* array, ArrayAt(*ids, path));
    for (size_t i = 0; i < array->size(); ++i) {
      NIBBLE_ASSIGN_OR_RETURN(const int32_t id,
                              ReadId((*array)[i], Indexed(path, i)));
      script.ids.push_back(id);
    }
  } else if (logits != nullptr) {
    script.kind = Script::Kind::kLogits;
    const std::string path = object.Name("logits");
    NIBBLE_ASSIGN_OR_RETURN(const Json* array, ArrayAt(*logits, path));
    for (size_t i = 0; i < array->size(); ++i) {
      NIBBLE_ASSIGN_OR_RETURN(std::vector<float> row,
                              ReadLogits((*array)[i], Indexed(path, i)));
      script.logits.push_back(std::move(row));
    }
  } else {
    script.kind = Script::Kind::kHash;
    NIBBLE_RETURN_IF_ERROR(ReadHash(*hash, object.Name("hash"), script));
  }
  NIBBLE_RETURN_IF_ERROR(ReadThen(object, script));
  file_.scripts.push_back(std::move(script));
  return absl::OkStatus();
}

absl::Status Parser::ReadThen(const Object& object, Script& script) const {
  const bool has_eos = file_.tokenizer.eos.has_value();
  script.then = has_eos ? Script::Then::kEos : Script::Then::kRepeat;
  NIBBLE_ASSIGN_OR_RETURN(const auto then, object.String("then"));
  if (!then.has_value()) return absl::OkStatus();
  if (*then == "repeat") {
    script.then = Script::Then::kRepeat;
  } else if (*then != "eos") {
    return Wrong(object.Name("then"), "\"eos\" or \"repeat\" is expected");
  } else if (!has_eos) {
    return Wrong(object.Name("then"), "no vocabulary entry is marked eos");
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadCondition(const Object& object, Script& script) const {
  const Json* value = object.Find("when");
  if (value == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const Object when,
                          Object::From(*value, object.Name("when")));
  NIBBLE_RETURN_IF_ERROR(
      when.AllowOnly({"prompt_begins", "prompt_contains", "prompt_tokens"}));
  NIBBLE_ASSIGN_OR_RETURN(script.when.prompt_begins,
                          when.String("prompt_begins"));
  NIBBLE_ASSIGN_OR_RETURN(script.when.prompt_contains,
                          when.String("prompt_contains"));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t tokens,
                          when.Int("prompt_tokens", 0, 1, kMaxInt32));
  if (tokens > 0) script.when.prompt_tokens = static_cast<int32_t>(tokens);
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Parser::ReadId(const Json& value,
                                       const std::string& path) const {
  if (value.is_string()) {
    const auto found = ids_.find(value.get<std::string>());
    if (found != ids_.end()) return found->second;
    return Wrong(path, absl::StrCat(value.dump(), " is not in the vocabulary"));
  }
  const bool fits = value.is_number_unsigned() &&
                    value.get<uint64_t>() < static_cast<uint64_t>(vocab_size());
  if (!fits) {
    return Wrong(path, absl::StrCat(value.dump(), " is not a token id in [0, ",
                                    vocab_size(), ")"));
  }
  return static_cast<int32_t>(value.get<uint64_t>());
}

absl::StatusOr<float> Parser::ReadLogit(const Json& value,
                                        const std::string& path) const {
  if (value.is_number()) return static_cast<float>(value.get<double>());
  if (value == "nan") return std::numeric_limits<float>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<float>::infinity();
  if (value == "-inf") return -std::numeric_limits<float>::infinity();
  return Wrong(path, absl::StrCat(value.dump(),
                                  " is not a number, \"nan\", \"inf\" or "
                                  "\"-inf\""));
}

absl::StatusOr<std::vector<float>> Parser::ReadLogits(
    const Json& value, const std::string& path) const {
  const auto size = static_cast<size_t>(vocab_size());
  std::vector<float> row(size, file_.default_logit);
  if (value.is_array()) {
    if (value.size() > size) {
      return Wrong(path, absl::StrCat(value.size(),
                                      " logits, the vocabulary has ", size));
    }
    for (size_t i = 0; i < value.size(); ++i) {
      NIBBLE_ASSIGN_OR_RETURN(row[i], ReadLogit(value[i], Indexed(path, i)));
    }
    return row;
  }
  if (!value.is_object()) {
    return Wrong(path, "an array or an object by token is expected");
  }
  for (const auto& [key, logit] : value.items()) {
    const std::string name = absl::StrCat(path, "[\"", key, "\"]");
    const auto spelled = ids_.find(key);
    size_t id = 0;
    if (spelled != ids_.end()) {
      id = static_cast<size_t>(spelled->second);
    } else {
      const char* end = key.data() + key.size();
      const auto [at, error] = std::from_chars(key.data(), end, id);
      if (error != std::errc() || at != end || id >= size) {
        return Wrong(name, "there is no such token");
      }
    }
    NIBBLE_ASSIGN_OR_RETURN(row[id], ReadLogit(logit, name));
  }
  return row;
}

absl::Status Parser::ReadHash(const Json& value, const std::string& path,
                              Script& script) const {
  NIBBLE_ASSIGN_OR_RETURN(const Object hash, Object::From(value, path));
  NIBBLE_RETURN_IF_ERROR(hash.AllowOnly({"seed", "eos_period"}));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t seed,
                          hash.Int("seed", 0, 0, kMaxInt32));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t period,
                          hash.Int("eos_period", 0, 0, kMaxInt32));
  if (period > 0 && !file_.tokenizer.eos.has_value()) {
    return Wrong(hash.Name("eos_period"), "no vocabulary entry is marked eos");
  }
  script.hash_seed = static_cast<uint64_t>(seed);
  script.hash_eos_period = static_cast<int32_t>(period);
  return absl::OkStatus();
}

absl::Status Parser::ReadDelays(const Object& root) {
  const Json* value = root.Find("delays");
  if (value == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const Object delays, Object::From(*value, "delays"));
  NIBBLE_RETURN_IF_ERROR(
      delays.AllowOnly({"step_us", "prefill_us_per_token", "block_at_step"}));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t step,
                          delays.Int("step_us", 0, 0, kMaxDelayUs));
  NIBBLE_ASSIGN_OR_RETURN(
      const int64_t prefill,
      delays.Int("prefill_us_per_token", 0, 0, kMaxDelayUs));
  file_.delays.step = std::chrono::microseconds(step);
  file_.delays.prefill_per_token = std::chrono::microseconds(prefill);
  const Json* block = delays.Find("block_at_step");
  if (block == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const Object at,
                          Object::From(*block, "delays.block_at_step"));
  NIBBLE_RETURN_IF_ERROR(at.AllowOnly({"step", "ms"}));
  NIBBLE_ASSIGN_OR_RETURN(file_.delays.block_at_step,
                          at.Int("step", 1, 1, kMaxInt32));
  NIBBLE_ASSIGN_OR_RETURN(const int64_t ms,
                          at.Int("ms", 0, 0, kMaxDelayUs / 1000));
  file_.delays.block = std::chrono::milliseconds(ms);
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseJson(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace

absl::StatusOr<ScriptFile> ParseScriptFile(std::string_view json,
                                           std::string_view origin) {
  const auto with_origin = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(
        absl::StrCat("scripted model ", std::string(origin), ": ",
                     std::string(status.message())));
  };
  absl::StatusOr<Json> parsed = ParseJson(json);
  if (!parsed.ok()) return with_origin(parsed.status());
  absl::StatusOr<ScriptFile> file = Parser().Parse(*parsed);
  if (!file.ok()) return with_origin(file.status());
  return file;
}

}  // namespace nibble::engine
