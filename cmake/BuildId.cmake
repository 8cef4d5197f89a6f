# cmake -DOUT=file.cc "-DARCHS=80;90a" "-DSOURCES=a;b" -P BuildId.cmake
# Writes the C++ file that says which kernels a build has: a hash of SOURCES and
# of the architectures that they are compiled for.
set(text "${ARCHS}")
foreach(source IN LISTS SOURCES)
  file(SHA256 ${source} hash)
  string(APPEND text ${hash})
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUT} "// Made by cmake/BuildId.cmake.
#include \"kernels/cuda/linear/build_id.h\"

namespace nibble::kernels::cuda {

std::string_view LinearBuildId() { return \"${hash}\"; }

}  // namespace nibble::kernels::cuda
")
