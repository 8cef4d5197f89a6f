// nibble-inspect: what it prints, and its exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/gguf_writer.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::GgufWriter;
using test::WriteSmallModel;
using ::testing::HasSubstr;
using ::testing::Not;

struct Output {
  int exit_code = -1;
  std::string out;  // standard output, then standard error
};

Output Inspect(const std::string& arguments) {
  const std::string command =
      std::string(NIBBLE_INSPECT) + " " + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  Output run;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    run.out.append(buffer, n);
  }
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

TEST(Inspect, TextOfAModel) {
  const test::TemporaryFile file(WriteSmallModel({}).Build());
  const Output run = Inspect(file.path());
  EXPECT_EQ(run.exit_code, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr(file.path()));
  EXPECT_THAT(run.out, HasSubstr("architecture       llama\n"));
  EXPECT_THAT(run.out, HasSubstr("name               small random model\n"));
  EXPECT_THAT(run.out, HasSubstr("layers             2\n"));
  EXPECT_THAT(
      run.out,
      HasSubstr("heads              4 (2 of keys and values), size 16"));
  EXPECT_THAT(run.out,
              HasSubstr("byte-level BPE, rules \"gpt-2\", 259 tokens"));
  EXPECT_THAT(run.out, HasSubstr("EOS                258 \"<|im_end|>\""));
  EXPECT_THAT(run.out, HasSubstr("chat template      chatml"));
  EXPECT_THAT(run.out, HasSubstr("tensors            20\n"));
  EXPECT_THAT(run.out, HasSubstr("q4_0       15 tensors"));
  EXPECT_THAT(run.out, HasSubstr("f32         5 tensors"));
  EXPECT_THAT(run.out, Not(HasSubstr("blk.0")));
  EXPECT_THAT(run.out, Not(HasSubstr("general.name")));
}

TEST(Inspect, TensorsAndKeys) {
  const test::TemporaryFile file(WriteSmallModel({}).Build());
  const Output run = Inspect("--tensors --keys " + file.path());
  EXPECT_EQ(run.exit_code, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr("\"blk.1.ffn_down.weight\""));
  EXPECT_THAT(run.out, HasSubstr("96 x 64"));
  EXPECT_THAT(run.out, HasSubstr("\"general.name\" = \"small random model\""));
  EXPECT_THAT(run.out, HasSubstr("\"llama.block_count\" = 2"));
}

TEST(Inspect, Json) {
  const test::TemporaryFile file(
      WriteSmallModel({.architecture = model::Architecture::kQwen2,
                       .tied_embeddings = false})
          .Build());
  const Output run = Inspect("--json --tensors --keys " + file.path());
  EXPECT_EQ(run.exit_code, 0) << run.out;
  const json report = json::parse(run.out, nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << run.out;
  EXPECT_EQ(report["file"], file.path());
  EXPECT_EQ(report["servable"], true);
  EXPECT_EQ(report["architecture"], "qwen2");
  EXPECT_EQ(report["config"]["layers"], 2);
  EXPECT_EQ(report["config"]["kv_heads"], 2);
  EXPECT_EQ(report["config"]["tied_embeddings"], false);
  EXPECT_EQ(report["tokenizer"]["tokens"], 259);
  EXPECT_EQ(report["tokenizer"]["eos"], 258);
  EXPECT_EQ(report["tokenizer"]["chat_format"], "chatml");
  uint64_t tensors = 0;
  for (const json& format : report["formats"]) {
    tensors += format["tensors"].get<uint64_t>();
  }
  EXPECT_EQ(tensors, report["tensors"].size());
  EXPECT_EQ(report["tensors"][0]["name"], "token_embd.weight");
  EXPECT_EQ(report["tensors"][0]["dims"], json({64, 259}));
  EXPECT_EQ(report["keys"]["qwen2.block_count"], "2");
}

TEST(Inspect, WithoutVocabulary) {
  const test::TemporaryFile file(
      WriteSmallModel({.vocabulary = false}).Build());
  const Output run = Inspect(file.path());
  EXPECT_EQ(run.exit_code, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr("serves token ids only"));
}

TEST(Inspect, UnknownChatTemplate) {
  GgufWriter writer = WriteSmallModel({});
  writer.Remove("tokenizer.chat_template")
      .String("tokenizer.chat_template", "{{ something }}");
  const test::TemporaryFile file(writer.Build());
  const Output run = Inspect("--json " + file.path());
  EXPECT_EQ(run.exit_code, 0) << run.out;
  const json report = json::parse(run.out, nullptr, false);
  ASSERT_FALSE(report.is_discarded()) << run.out;
  EXPECT_TRUE(report["tokenizer"]["chat_format"].is_null());
}

// What is sound of a file that cannot be served is shown all the same.
TEST(Inspect, UnknownArchitecture) {
  GgufWriter writer = WriteSmallModel({});
  writer.Remove("general.architecture").String("general.architecture", "bert");
  const test::TemporaryFile file(writer.Build());
  const Output run = Inspect(file.path());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("architecture       bert\n"));
  EXPECT_THAT(run.out, HasSubstr("nibble-inspect: " + file.path() +
                                 ": architecture \"bert\" is not supported"));
}

TEST(Inspect, BrokenFiles) {
  const test::TemporaryFile text("some text");
  const Output run = Inspect(text.path());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.out, "nibble-inspect: " + text.path() +
                         ": is not a GGUF file: it begins with \"some\"\n");
  const Output missing = Inspect("/nonexistent.gguf");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.out, HasSubstr("/nonexistent.gguf: cannot open"));
  const Output directory = Inspect("--json /");
  EXPECT_EQ(directory.exit_code, 1);
  EXPECT_THAT(directory.out, HasSubstr("/: is a directory"));
}

TEST(Inspect, HostileTextIsEscaped) {
  GgufWriter writer = WriteSmallModel({});
  writer.String("evil\x1b[2J", "\xFF\x1b]0;x\x07");
  writer.Remove("general.name").String("general.name", "\x1b[31mred");
  const test::TemporaryFile file(writer.Build());
  for (const char* flags : {"--keys ", "--json --keys "}) {
    const Output run = Inspect(flags + file.path());
    EXPECT_EQ(run.exit_code, 0) << run.out;
    EXPECT_EQ(run.out.find('\x1b'), std::string::npos) << run.out;
    EXPECT_EQ(run.out.find('\xFF'), std::string::npos) << run.out;
  }
}

TEST(Inspect, CommandLine) {
  EXPECT_EQ(Inspect("").exit_code, 2);
  EXPECT_EQ(Inspect("--nonsense x").exit_code, 2);
  EXPECT_EQ(Inspect("a b").exit_code, 2);
  const Output help = Inspect("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--tensors"));
  EXPECT_EQ(Inspect("--version").exit_code, 0);
}

}  // namespace
}  // namespace nibble
