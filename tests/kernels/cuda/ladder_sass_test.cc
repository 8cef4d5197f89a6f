// How many global loads a block of 32 weights costs in the kernels of the
// wide-load ladder, counted in the machine code: the sources promise it, the
// compiler decides. Needs a disassembler, no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <cstdint>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace nibble {
namespace {

using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// What cuobjdump prints of the ladder's object file.
std::string Disassemble() {
  const std::string command =
      "'" NIBBLE_CUOBJDUMP "' -sass '" NIBBLE_LADDER_OBJECT "' 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"),
                                                   pclose);
  std::string text;
  char buffer[4096];
  while (const size_t bytes =
             pipe == nullptr ? 0
                             : fread(buffer, 1, sizeof(buffer), pipe.get())) {
    text.append(buffer, bytes);
  }
  return text;
}

struct Instruction {
  uint64_t address = 0;
  std::string text;  // without its predicate
};

// One function for one architecture.
struct Function {
  std::string name;
  std::vector<Instruction> instructions;
};

std::vector<Function> ParseFunctions(const std::string& sass) {
  static const std::regex function(R"(\s*Function : (\S+))");
  static const std::regex instruction(
      R"(\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?\S+\s+)?([^;]*\S)\s*;.*)");
  std::vector<Function> functions;
  std::istringstream lines(sass);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, function)) {
      functions.push_back({.name = match[1], .instructions = {}});
    } else if (!functions.empty() &&
               std::regex_match(line, match, instruction)) {
      functions.back().instructions.push_back(
          {.address = std::stoull(match[1], nullptr, 16), .text = match[2]});
    }
  }
  return functions;
}

// The kinds of global loads ("LDG.E.128.CONSTANT") in each loop that has any.
std::vector<std::vector<std::string>> LoadsOfLoops(const Function& function) {
  static const std::regex branch(R"(BRA\S*\s.*0x([0-9a-f]+).*)");
  std::vector<std::vector<std::string>> loops;
  std::smatch match;
  for (const Instruction& end : function.instructions) {
    if (!std::regex_match(end.text, match, branch)) continue;
    const uint64_t begin = std::stoull(match[1], nullptr, 16);
    std::vector<std::string> loads;
    for (const Instruction& at : function.instructions) {
      const bool inside = at.address >= begin && at.address < end.address;
      if (inside && at.text.rfind("LDG", 0) == 0) {
        loads.push_back(at.text.substr(0, at.text.find(' ')));
      }
    }
    if (!loads.empty()) loops.push_back(loads);
  }
  return loops;
}

// How many of the loads have `width` in their name.
int Count(const std::vector<std::string>& loads, const std::string& width) {
  int count = 0;
  for (const std::string& load : loads) {
    count += load.find(width) != std::string::npos ? 1 : 0;
  }
  return count;
}

class LadderSass : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(NIBBLE_CUOBJDUMP).empty()) {
      GTEST_SKIP() << "no cuobjdump: scripts/setup brings one";
    }
    sass_ = Disassemble();
    for (const Function& function : ParseFunctions(sass_)) {
      loops_[function.name].push_back(LoadsOfLoops(function));
    }
  }

  // The loads of one step of the only loop of the kernels whose mangled name
  // contains `name`, for each architecture.
  std::vector<std::vector<std::string>> Steps(const std::string& name) {
    std::vector<std::vector<std::string>> steps;
    for (const auto& [function, architectures] : loops_) {
      if (function.find(name) == std::string::npos) continue;
      for (const auto& loops : architectures) {
        EXPECT_THAT(loops, SizeIs(1)) << function;
        if (loops.size() == 1) steps.push_back(loops[0]);
      }
    }
    EXPECT_FALSE(steps.empty()) << name << " is not in\n"
                                << sass_.substr(0, 2000);
    return steps;
  }

 private:
  std::string sass_;
  // By function; for each architecture the loops that load.
  std::map<std::string, std::vector<std::vector<std::vector<std::string>>>>
      loops_;
};

TEST_F(LadderSass, ByteLoads) {
  for (const auto& loads : Steps("ByteLoadsKernel")) {
    EXPECT_THAT(loads, SizeIs(49));
    EXPECT_EQ(Count(loads, ".U8"), 16);   // codes
    EXPECT_EQ(Count(loads, ".U16"), 33);  // x and the scale
  }
}

TEST_F(LadderSass, WideCodes) {
  for (const auto& loads : Steps("WideLoadsKernelILi1E")) {
    EXPECT_THAT(loads, SizeIs(18));
    EXPECT_EQ(Count(loads, ".128"), 1);  // codes
    EXPECT_EQ(Count(loads, ".U16"), 1);  // the scale
  }
}

TEST_F(LadderSass, WideAll) {
  for (const auto& loads : Steps("WideLoadsKernelILi4E")) {
    EXPECT_THAT(loads, SizeIs(6));
    EXPECT_EQ(Count(loads, ".128"), 5);  // codes and x
    EXPECT_EQ(Count(loads, ".U16"), 1);  // the scale
  }
}

TEST_F(LadderSass, IntegerDots) {
  for (const auto& loads : Steps("IntegerDotsKernel")) {
    EXPECT_THAT(loads, SizeIs(5));
    EXPECT_EQ(Count(loads, ".128"), 3);  // codes of both sides
    EXPECT_EQ(Count(loads, ".64"), 1);   // the scale and sum of x
    EXPECT_EQ(Count(loads, ".U16"), 1);  // the scale
  }
}

// The parser alone, on an instruction of each kind that it must tell apart.
TEST(LadderSassParser, FindsLoadsOfLoops) {
  const std::vector<Function> functions = ParseFunctions(
      "\t\tFunction : f\n"
      "        /*0000*/   LDG.E.U8 R1, desc[UR4][R2.64] ;   /* 0x0 */\n"
      "        /*0010*/   @P0 LDG.E.128.CONSTANT R4, [R2.64] ;  /* 0x0 */\n"
      "                                                         /* 0x0 */\n"
      "        /*0020*/   LDC.64 R2, c[0x0][0x210] ;        /* 0x0 */\n"
      "        /*0030*/   @!P0 BRA 0x10 ;                   /* 0x0 */\n"
      "        /*0040*/   @P0 BRA 0x60 ;                    /* 0x0 */\n"
      "        /*0050*/   LDG.E R1, desc[UR4][R2.64] ;      /* 0x0 */\n"
      "        /*0060*/   BRA 0x60;                         /* 0x0 */\n"
      "\t\tFunction : g\n"
      "        /*0000*/   EXIT ;                            /* 0x0 */\n");
  ASSERT_THAT(functions, SizeIs(2));
  EXPECT_EQ(functions[1].name, "g");
  EXPECT_THAT(LoadsOfLoops(functions[0]),
              UnorderedElementsAre(UnorderedElementsAre("LDG.E.128.CONSTANT")));
  EXPECT_THAT(LoadsOfLoops(functions[1]), SizeIs(0));
}

}  // namespace
}  // namespace nibble
