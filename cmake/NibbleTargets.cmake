# Compiler settings and the three kinds of target the project has.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(NIBBLE_CCACHE ccache)
if(NIBBLE_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${NIBBLE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NIBBLE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${NIBBLE_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(hwy CONFIG REQUIRED)
if(NOT NIBBLE_KERNELS_ONLY)
  find_package(nlohmann_json CONFIG REQUIRED)
  find_package(Protobuf MODULE REQUIRED)
  find_package(gRPC CONFIG REQUIRED)
  find_package(prometheus-cpp CONFIG REQUIRED)
  find_package(CLI11 CONFIG REQUIRED)
  find_package(Boost 1.74 REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
endif()

set(NIBBLE_HAVE_CUDA OFF)
set(NIBBLE_HAVE_HOPPER OFF)  # compiled for compute capability 9.0a
if(NIBBLE_CUDA)
  include(CheckLanguage)
  # Chosen before the language is enabled, or CMake probes a default arch.
  set(CMAKE_CUDA_ARCHITECTURES ${NIBBLE_CUDA_ARCHS})
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    # CMake 3.25 does not know that nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(NIBBLE_HAVE_CUDA ON)
    if("${NIBBLE_CUDA_ARCHS}" MATCHES "(^|;)90a")
      set(NIBBLE_HAVE_HOPPER ON)
    endif()
  else()
    message(STATUS "nvcc not found: building without the CUDA backend")
  endif()
endif()

add_library(nibble_options INTERFACE)
target_include_directories(nibble_options INTERFACE ${PROJECT_SOURCE_DIR})
# -Wno-restrict: GCC 12 reports std::string = "literal" at -O3 by mistake.
# --expt-relaxed-constexpr: device code calls constexpr host functions.
target_compile_options(nibble_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--compress-mode=size>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${NIBBLE_SANITIZE};-fno-omit-frame-pointer>)
  target_link_options(nibble_options INTERFACE -fsanitize=${NIBBLE_SANITIZE})
  if(NIBBLE_SANITIZE MATCHES "undefined")
    target_compile_options(nibble_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  endif()
endif()

# nibble_library(NAME SRCS a.cc ... DEPS lib ...): one static library a folder.
function(nibble_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE nibble_options)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
endfunction()

# nibble_binary(NAME SRCS ... DEPS ...): a program in build/<preset>/bin.
function(nibble_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} nibble_options)
endfunction()

# nibble_test(NAME SRCS ... DEPS ...): a GoogleTest program, one ctest entry.
# The tests read the source tree by the macro NIBBLE_SOURCE_DIR.
function(nibble_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock
    GTest::gtest_main nibble_options)
  target_compile_definitions(${name} PRIVATE
    NIBBLE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
