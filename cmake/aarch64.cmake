# Cross-compiles for 64-bit ARM with Debian's compiler and runs tests by QEMU.
# scripts/test-aarch64 fetches both and the libraries, which it unpacks here:
set(nibble_root ${CMAKE_CURRENT_LIST_DIR}/../.cache/aarch64)
set(nibble_libraries ${nibble_root}/usr/lib/aarch64-linux-gnu)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH ${nibble_root} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${nibble_libraries}")
set(CMAKE_CROSSCOMPILING_EMULATOR
  qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu
  -E LD_LIBRARY_PATH=${nibble_libraries})
