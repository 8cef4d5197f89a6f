// What every benchmark's main is.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace nibble::bench {

// body(argc, argv); an exception is a message and EXIT_FAILURE.
inline int RunMain(const char* program, int (*body)(int, char**), int argc,
                   char** argv) {
  try {
    return body(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace nibble::bench
