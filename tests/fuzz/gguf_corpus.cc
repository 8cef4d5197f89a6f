// Writes the files a fuzzing run starts from: gguf-corpus DIRECTORY
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/gguf_exercise.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  std::filesystem::create_directories(directory);
  int number = 0;
  for (const std::string& seed : nibble::test::GgufSeeds()) {
    const auto path = directory / ("seed-" + std::to_string(number++));
    std::ofstream(path, std::ios::binary) << seed;
  }
  return 0;
}
