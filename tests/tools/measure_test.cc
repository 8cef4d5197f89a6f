// nibble-bench and nibble-perplexity as programs: output and exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/gguf_writer.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::TemporaryFile;
using test::WriteSmallModel;
using ::testing::HasSubstr;

struct Output {
  int exit_code = -1;
  std::string out;
};

// Runs a shell command line and collects its standard output.
Output Run(const std::string& command) {
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

Output Bench(const std::string& arguments) {
  return Run(std::string(NIBBLE_BENCH) + " " + arguments);
}

Output Perplexity(const std::string& arguments) {
  return Run(std::string(NIBBLE_PERPLEXITY) + " " + arguments);
}

TEST(BenchTest, JsonSaysWhatRanAndHowFast) {
  const TemporaryFile model(WriteSmallModel({}).Build());
  for (const std::string device : {"cpu", "reference"}) {
    // Prompts end within steps: 3 x 25 rows in steps of 8.
    const Output run =
        Bench("--model " + model.path() + " --device " + device +
              " --prefill 25 --decode 20 --batch 3 --threads 2"
              " --repetitions 2 --max-batch-rows 8 --json 2>/dev/null");
    ASSERT_EQ(run.exit_code, 0) << run.out;
    const json result = json::parse(run.out);
    EXPECT_EQ(result.at("backend"), device);
    EXPECT_EQ(result.at("threads"), 2);
    EXPECT_EQ(result.at("batch"), 3);
    EXPECT_EQ(result.at("model"), model.path());
    EXPECT_NE(result.at("machine"), "");
    for (const char* phase : {"prefill_rate", "decode_rate"}) {
      const json& rate = result.at(phase);
      EXPECT_GT(rate.at("least"), 0);
      EXPECT_GE(rate.at("tokens_per_second"), rate.at("least"));
      EXPECT_GE(rate.at("greatest"), rate.at("tokens_per_second"));
    }
  }
}

TEST(BenchTest, OnePhaseAlone) {
  const TemporaryFile model(WriteSmallModel({}).Build());
  const Output decode = Bench("--model " + model.path() +
                              " --prefill 0 --decode 5 --repetitions 1 "
                              "--json 2>/dev/null");
  ASSERT_EQ(decode.exit_code, 0);
  EXPECT_FALSE(json::parse(decode.out).contains("prefill_rate"));
  const Output prefill = Bench("--model " + model.path() +
                               " --prefill 5 --decode 0 --repetitions 1 "
                               "2>/dev/null");
  ASSERT_EQ(prefill.exit_code, 0);
  EXPECT_THAT(prefill.out, HasSubstr("prefill"));
  EXPECT_THAT(prefill.out, HasSubstr("tokens/s"));
}

TEST(BenchTest, TakesALesserInstructionSet) {
  const TemporaryFile model(WriteSmallModel({}).Build());
  const Output run = Bench("--model " + model.path() +
                           " --cpu-target portable --device cpu --prefill 5"
                           " --decode 2 --repetitions 1 2>/dev/null");
  ASSERT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("cpu: portable"));
}

TEST(BenchTest, ArgumentsAreChecked) {
  const TemporaryFile file(WriteSmallModel({}).Build());
  const std::string model = "--model " + file.path();
  struct Case {
    std::string arguments;
    int exit_code;
    std::string message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"", 2, "--model is required"},
           {model + " --batch 0", 2, "--batch"},
           {model + " --prefill -1", 2, "--prefill"},
           {model + " --prefill x", 2, "--prefill"},
           {model + " --prefill 0 --decode 0", 2, "both 0"},
           {model + " --batch 9 --max-batch-rows 8", 2, "--batch = 9"},
           {model + " --device gpu", 2, "--device"},
           {model + " --cpu-target VAX", 2, "cannot run 'VAX'"},
           {model + " --device cuda", 1, "no CUDA backend"},
           {model + " --prefill 200 --decode 57", 1, "context of 256"},
           {"--model /no/such.gguf", 1, "/no/such.gguf"}}) {
    const Output run = Bench(c.arguments + " 2>&1");
    EXPECT_EQ(run.exit_code, c.exit_code) << c.arguments << "\n" << run.out;
    EXPECT_THAT(run.out, HasSubstr(c.message)) << c.arguments;
  }
  EXPECT_EQ(Bench("--help").exit_code, 0);
}

std::string Text(int length) {
  std::string text;
  for (int i = 0; i < length; ++i) {
    text += static_cast<char>('a' + i * i % 26);
  }
  return text;
}

TEST(PerplexityTest, RandomWeightsPredictNothing) {
  const TemporaryFile model(WriteSmallModel({}).Build());
  const TemporaryFile text(Text(200));
  for (const std::string device : {"cpu", "reference"}) {
    const Output run =
        Perplexity("--model " + model.path() + " --text " + text.path() +
                   " --context 64 --device " + device + " --json 2>/dev/null");
    ASSERT_EQ(run.exit_code, 0) << run.out;
    const json result = json::parse(run.out);
    EXPECT_EQ(result.at("windows"), 3);
    // 31 positions of each window have a token after them in its second half.
    EXPECT_EQ(result.at("tokens"), 93);
    // 259 tokens about equally likely; logits of unit variance cost some more.
    const double perplexity = result.at("perplexity").at("value");
    EXPECT_GT(perplexity, 60);
    EXPECT_LT(perplexity, 2000);
    EXPECT_GT(result.at("perplexity").at("error"), 0);
  }
}

TEST(PerplexityTest, EndsWithOneLineAndShowsProgress) {
  const TemporaryFile model(WriteSmallModel({}).Build());
  const TemporaryFile text(Text(100));
  const Output run = Perplexity("--model " + model.path() + " --text " +
                                text.path() + " --context 32 2>&1");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("window 3/3"));
  EXPECT_THAT(run.out, HasSubstr("eta"));
  EXPECT_THAT(run.out, HasSubstr("PPL = "));
}

// Base log-probabilities that hold every token for equally likely.
std::string UniformBase(const std::string& text, int32_t context) {
  constexpr int32_t kVocab = test::kSmallModelVocab;
  const auto windows = static_cast<int32_t>(text.size()) / context;
  std::string bytes = "_logits_" + test::Bytes(context) + test::Bytes(kVocab) +
                      test::Bytes(windows);
  for (int32_t i = 0; i < windows * context; ++i) {
    // The small model's ids of printable characters: GPT-2's byte alphabet.
    bytes += test::Bytes(static_cast<int32_t>(text[i]));
  }
  for (int32_t row = 0; row < windows * (context - 1 - context / 2); ++row) {
    bytes += test::Bytes(0.0f);
    bytes += test::Bytes(-std::log(static_cast<float>(kVocab)));
    bytes += std::string(2 * (kVocab + kVocab % 2), '\0');
  }
  return bytes;
}

TEST(PerplexityTest, ComparesWithABaseFile) {
  const TemporaryFile model(WriteSmallModel({}).Build());
  const std::string letters = Text(96);
  const TemporaryFile text(letters);
  const TemporaryFile base(UniformBase(letters, 32));
  const std::string arguments =
      "--model " + model.path() + " --kl-base " + base.path();
  const Output run =
      Perplexity(arguments + " --text " + text.path() + " --json 2>/dev/null");
  ASSERT_EQ(run.exit_code, 0) << run.out;
  const json result = json::parse(run.out);
  EXPECT_EQ(result.at("context"), 32);
  EXPECT_EQ(result.at("tokens"), 45);
  EXPECT_NEAR(result.at("base_perplexity").at("value"), 259, 0.01);
  // KL(uniform, p) = mean of -log p - log 259, over random logits of about
  // unit variance: about half their variance.
  EXPECT_GT(result.at("mean_kl").at("value"), 0.05);
  EXPECT_GE(result.at("maximum_kl"), result.at("kl_99_percent"));
  EXPECT_NEAR(result.at("perplexity_ratio").at("value"),
              result.at("perplexity").at("value").get<double>() / 259, 1e-3);

  // The text is optional, but must not be another one.
  EXPECT_EQ(Perplexity(arguments + " 2>/dev/null").exit_code, 0);
  const TemporaryFile other("b" + letters.substr(1));
  const Output refused =
      Perplexity(arguments + " --text " + other.path() + " 2>&1");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("token 0 is"));
}

TEST(PerplexityTest, ArgumentsAreChecked) {
  const TemporaryFile file(WriteSmallModel({}).Build());
  const TemporaryFile text(Text(300));
  const TemporaryFile invalid("\xff\xfe");
  const std::string model = "--model " + file.path();
  const std::string both = model + " --text " + text.path();
  struct Case {
    std::string arguments;
    int exit_code;
    std::string message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {model, 2, "--text or --kl-base"},
           {"--text " + text.path(), 2, "--model is required"},
           {both + " --context 3", 2, "--context"},
           {both + " --context 200", 1, "at least two"},
           {both + " --context 150 --kl-base " + text.path(), 1, "_logits_"},
           {model + " --text /no/such.txt", 1, "/no/such.txt"},
           {model + " --text " + invalid.path(), 1, invalid.path()},
           {both + " --device cuda", 1, "no CUDA backend"}}) {
    const Output run = Perplexity(c.arguments + " 2>&1");
    EXPECT_EQ(run.exit_code, c.exit_code) << c.arguments << "\n" << run.out;
    EXPECT_THAT(run.out, HasSubstr(c.message)) << c.arguments;
  }
}

}  // namespace
}  // namespace nibble
