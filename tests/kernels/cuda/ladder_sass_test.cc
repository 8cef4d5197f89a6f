// How many global loads a block of 32 weights costs in the kernels of the
// wide-load ladder, counted in the machine code: the sources promise it, the
// compiler decides. Needs a disassembler, no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
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

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(text.front())) text.remove_prefix(1);
  while (!text.empty() && std::isspace(text.back())) text.remove_suffix(1);
  return text;
}

// The number that hexadecimal digits give; nothing where other characters are.
std::optional<uint64_t> ParseHex(std::string_view digits) {
  uint64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, 16);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

// "/*00e0*/  @!P0 LDG.E R4, desc[UR4][R4.64] ;  /* 0x... */". Lines with no
// instruction have only the last of the three.
std::optional<Instruction> ParseInstruction(std::string_view line) {
  line = Trim(line);
  const size_t address_end = line.find("*/");
  const size_t text_end = line.find(';');
  if (line.substr(0, 2) != "/*" || text_end == std::string_view::npos ||
      address_end > text_end) {
    return std::nullopt;
  }
  const auto address = ParseHex(line.substr(2, address_end - 2));
  if (!address.has_value()) return std::nullopt;
  std::string_view text =
      Trim(line.substr(address_end + 2, text_end - address_end - 2));
  if (!text.empty() && text[0] == '@') text = Trim(text.substr(text.find(' ')));
  return Instruction{.address = *address, .text = std::string(text)};
}

std::vector<Function> ParseFunctions(const std::string& sass) {
  constexpr std::string_view kFunction = "Function : ";
  std::vector<Function> functions;
  std::istringstream lines(sass);
  for (std::string line; std::getline(lines, line);) {
    const std::string_view text = Trim(line);
    if (text.substr(0, kFunction.size()) == kFunction) {
      functions.push_back({.name = std::string(text.substr(kFunction.size())),
                           .instructions = {}});
    } else if (!functions.empty()) {
      if (auto instruction = ParseInstruction(text)) {
        functions.back().instructions.push_back(*std::move(instruction));
      }
    }
  }
  return functions;
}

// Where a branch goes: "BRA 0xd0", "BRA.U UP0, 0xd0".
std::optional<uint64_t> BranchTarget(std::string_view text) {
  const size_t at = text.rfind("0x");
  if (text.substr(0, 3) != "BRA" || at == std::string_view::npos) {
    return std::nullopt;
  }
  return ParseHex(text.substr(at + 2));
}

// The kinds of global loads ("LDG.E.128.CONSTANT") in each loop that has any.
std::vector<std::vector<std::string>> LoadsOfLoops(const Function& function) {
  std::vector<std::vector<std::string>> loops;
  for (const Instruction& end : function.instructions) {
    const std::optional<uint64_t> begin = BranchTarget(end.text);
    if (!begin.has_value()) continue;
    std::vector<std::string> loads;
    for (const Instruction& at : function.instructions) {
      const bool inside = at.address >= *begin && at.address < end.address;
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
