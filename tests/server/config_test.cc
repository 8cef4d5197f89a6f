#include "server/config.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/test_server.h"

namespace nibble::server::testing {
namespace {

std::variant<ServerConfig, ConfigExit> Parse(std::vector<std::string> flags) {
  std::vector<const char*> argv = {"nibble-server"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  return ParseConfig(static_cast<int>(argv.size()), argv.data());
}

ServerConfig Good(std::vector<std::string> flags) {
  flags.push_back("--model=m=file.gguf");
  auto parsed = Parse(std::move(flags));
  if (auto* exit = std::get_if<ConfigExit>(&parsed)) {
    ADD_FAILURE() << exit->text;
    return {};
  }
  return std::get<ServerConfig>(std::move(parsed));
}

// The message of flags that are refused.
std::string Bad(std::vector<std::string> flags) {
  auto parsed = Parse(std::move(flags));
  const auto* exit = std::get_if<ConfigExit>(&parsed);
  if (exit == nullptr) return "accepted";
  EXPECT_EQ(exit->code, 2);
  return exit->text;
}

// Sets an environment variable for as long as it lives.
class Environment final {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Config, DefaultsWork) {
  const ServerConfig config = Good({});
  EXPECT_EQ(config.listen, std::vector<std::string>{"127.0.0.1:8700"});
  EXPECT_EQ(config.metrics, "127.0.0.1:9464");
  EXPECT_EQ(config.device, engine::Device::kAuto);
  EXPECT_EQ(config.page_size, 16);
  EXPECT_EQ(config.max_message_bytes, 4 << 20);
  EXPECT_EQ(config.write_stall_timeout, std::chrono::seconds(30));
  EXPECT_FALSE(config.vllm_metrics);
}

TEST(Config, FlagsAreRead) {
  const ServerConfig config = Good({"--listen",
                                    "[::1]:1",
                                    "--listen=unix:/tmp/x",
                                    "--metrics",
                                    "off",
                                    "--device",
                                    "reference",
                                    "--threads",
                                    "3",
                                    "--kv-pages=100",
                                    "--page-size=8",
                                    "--max-batch-rows=64",
                                    "--max-sequences=5",
                                    "--max-queue=0",
                                    "--max-queue-tokens=9",
                                    "--max-context=77",
                                    "--default-max-new-tokens=12",
                                    "--prefill=auto",
                                    "--numerics=stable",
                                    "--max-message-bytes=8388608",
                                    "--write-stall-timeout=1.5",
                                    "--drain-timeout=0",
                                    "--log-format=json",
                                    "--log-level=warning",
                                    "--metrics-compat=vllm",
                                    "--prefix-cache=off"});
  EXPECT_EQ(config.listen,
            (std::vector<std::string>{"[::1]:1", "unix:/tmp/x"}));
  EXPECT_EQ(config.metrics, "off");
  EXPECT_EQ(config.device, engine::Device::kReference);
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.kv_pages, 100);
  EXPECT_EQ(config.page_size, 8);
  EXPECT_EQ(config.max_batch_rows, 64);
  EXPECT_EQ(config.max_sequences, 5);
  EXPECT_EQ(config.max_queue, 0);
  EXPECT_EQ(config.max_queue_tokens, 9);
  EXPECT_EQ(config.max_context, 77);
  EXPECT_EQ(config.default_max_new_tokens, 12);
  EXPECT_EQ(config.max_message_bytes, 8 << 20);
  EXPECT_EQ(config.write_stall_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(config.drain_timeout, std::chrono::milliseconds(0));
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.log_level, LogLevel::kWarning);
  EXPECT_TRUE(config.vllm_metrics);
  EXPECT_FALSE(config.prefix_cache);
}

TEST(Config, ModelsHaveNames) {
  auto parsed =
      Parse({"--model", "a=x/y.gguf", "--model=dir/small.q4.gguf", "--model",
             "s=scripted:z.json", "--model", "scripted:dir/t.json"});
  const auto& config = std::get<ServerConfig>(parsed);
  ASSERT_EQ(config.models.size(), 4u);
  EXPECT_EQ(config.models[0].name, "a");
  EXPECT_EQ(config.models[0].path, "x/y.gguf");
  EXPECT_EQ(config.models[1].name, "small.q4");
  EXPECT_EQ(config.models[2].path, "scripted:z.json");
  EXPECT_EQ(config.models[3].name, "t");
  EXPECT_EQ(config.models[3].path, "scripted:dir/t.json");
}

TEST(Config, WhatIsWrongIsNamed) {
  const std::string model = "--model=m=x";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--model"},
      {{"--model=a=x", "--model=a=y"}, "'a' is given twice"},
      {{"--model=a b=x"}, "'a b'"},
      {{"--model=" + std::string(129, 'a') + "=x"}, "128"},
      {{"--model=a="}, "names no file"},
      {{"--model=scripted:"}, "names no file"},
      {{model, "--threads=-1"},
       "--threads: '-1' is not a whole number from 0 "
       "to 1024"},
      {{model, "--threads=two"}, "'two'"},
      {{model, "--threads=2.5"}, "'2.5'"},
      {{model, "--page-size=0"}, "--page-size: '0'"},
      {{model, "--max-queue=99999999999999999999"}, "--max-queue"},
      {{model, "--device=tpu"},
       "--device: 'tpu' is not one of auto|cpu|reference|cuda"},
      {{model, "--numerics=fast"}, "--numerics: 'fast'"},
      {{model, "--prefill=int8"}, "--prefill: 'int8'"},
      {{model, "--drain-timeout=-1"}, "--drain-timeout: '-1'"},
      {{model, "--drain-timeout=nan"}, "--drain-timeout: 'nan'"},
      {{model, "--drain-timeout=1e9"}, "86400"},
      {{model, "--listen=8700"}, "--listen: '8700' has no port"},
      {{model, "--metrics=unix:/x"}, "--metrics"},
      {{model, "--log-format=xml"}, "text|json"},
      {{model, "--max-batch-rows=4", "--max-sequences=5"}, "--max-batch-rows"},
      {{model, "--no-such-flag"}, "--no-such-flag"},
      {{model, "stray"}, "stray"},
      {{model, "--config=/nowhere.toml"}, "/nowhere.toml"},
  };
  for (const auto& [flags, expected] : cases) {
    EXPECT_NE(Bad(flags).find(expected), std::string::npos) << expected << "\n"
                                                            << Bad(flags);
  }
}

TEST(Config, EnvironmentAndFileStandBehindTheCommandLine) {
  TemporaryDirectory directory;
  const std::string file = directory.Write(
      "nibble.toml",
      "max-queue = 1\nmax-sequences = 2\npage-size = 32\n"
      "drain-timeout = 2.5\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n");
  const Environment queue("NIBBLE_MAX_QUEUE", "10");
  const Environment sequences("NIBBLE_MAX_SEQUENCES", "20");
  const Environment stall("NIBBLE_STALL_TIMEOUT", "7");
  ServerConfig config = Good({"--config", file, "--max-queue=100"});
  EXPECT_EQ(config.max_queue, 100);
  EXPECT_EQ(config.page_size, 32);
  EXPECT_EQ(config.drain_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(config.stall_timeout, std::chrono::seconds(7));
  EXPECT_EQ(config.listen,
            (std::vector<std::string>{"127.0.0.1:1", "127.0.0.1:2"}));
  config = Good({});
  EXPECT_EQ(config.max_queue, 10);
  EXPECT_EQ(config.max_sequences, 20);
  {
    const Environment wrong("NIBBLE_THREADS", "many");
    EXPECT_NE(Bad({"--model=m=x"}).find("'many'"), std::string::npos);
  }
  {
    const Environment models("NIBBLE_MODEL", "a=x;b=y");
    auto parsed = Parse({});
    ASSERT_TRUE(std::holds_alternative<ServerConfig>(parsed));
    EXPECT_EQ(std::get<ServerConfig>(parsed).models.size(), 2u);
  }
  const std::string misspelled =
      directory.Write("wrong.toml", "max-kueue = 1\n");
  EXPECT_NE(Bad({"--model=m=x", "--config", misspelled}).find("max-kueue"),
            std::string::npos);
}

TEST(Config, HelpAndVersionEndWell) {
  for (const std::string flag : {"--help", "--version"}) {
    auto parsed = Parse({flag});
    ASSERT_TRUE(std::holds_alternative<ConfigExit>(parsed));
    EXPECT_EQ(std::get<ConfigExit>(parsed).code, 0);
    EXPECT_NE(std::get<ConfigExit>(parsed).text.find("nibble-server"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace nibble::server::testing
