# One place for the flags, the warnings and the way a library, a program or a test is declared.
#
# accel_library(NAME [SHARED] SOURCES ... DEPENDS ...)       static (position independent) unless SHARED; alias accel::NAME
# accel_executable(NAME SOURCES ... DEPENDS ... [FOLDER bin|examples|bench])
# accel_programs(GROUP SOURCES ... DEPENDS ... [PREFIX of the targets] [FOLDER ...])     one program of each source, named after it
# accel_test(NAME SOURCES ... DEPENDS ... LABELS ... [ENVIRONMENT ...] [TIMEOUT seconds])
#   one gtest binary; every source named *_test.cc below tests/ must be registered, or configuring fails
# accel_script_test(NAME COMMAND script [argument ...] LABELS ... [TIMEOUT seconds])
#   the script's path is relative to the CMakeLists.txt; it exits with 77 to skip with a reason
include_guard(GLOBAL)

set(ACCEL_SANITIZE "" CACHE STRING "address,undefined | thread | empty")
option(ACCEL_UNITY "compile the sources of a target together: a whole build takes a fifth of the time, one change takes longer" OFF)
set(ACCEL_TIMEOUT_PERCENT 100 CACHE STRING "of their timeouts that tests get; more on a slow machine")
option(ACCEL_PRECOMPILE "LibTorch's dearest headers are compiled once for all sources of libaccel: one change takes half the time, and 550 MB" OFF)
set(ACCEL_UNITY_SOURCES 64 CACHE STRING "how many sources are compiled together; 0: all of a target")

add_library(accel_flags INTERFACE)
target_compile_features(accel_flags INTERFACE cxx_std_20)
target_compile_options(accel_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
# GCC 12 sees a false overlap in std::string operator+ (gcc bug 105329), and with -O1 a reference count at address 0 (gcc bug 104475).
target_compile_options(accel_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-stringop-overflow>)
if(ACCEL_WERROR)
  target_compile_options(accel_flags INTERFACE -Werror)
endif()
if(ACCEL_SANITIZE)
  target_compile_options(accel_flags INTERFACE -fsanitize=${ACCEL_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(accel_flags INTERFACE -fsanitize=${ACCEL_SANITIZE})
  if(ACCEL_SANITIZE MATCHES undefined)
    target_compile_options(accel_flags INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()
if(ACCEL_BUILD_FUZZ)
  target_compile_options(accel_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(accel_flags INTERFACE -fsanitize=address,undefined)
endif()

if(ACCEL_UNITY)
  # GCC takes a source for a header when another one includes it, and warns of its unnamed namespaces.
  target_compile_options(accel_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()

function(accel_configure_target name)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE accel_flags)
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    UNITY_BUILD ${ACCEL_UNITY} UNITY_BUILD_BATCH_SIZE ${ACCEL_UNITY_SOURCES})
endfunction()

# Of a target where nothing is hot: with less optimization it is compiled in two thirds of the time.
function(accel_optimize_little name)
  target_compile_options(${name} PRIVATE -O1)
endfunction()

function(accel_library name)
  cmake_parse_arguments(A "SHARED" "" "SOURCES;DEPENDS" ${ARGN})
  if(A_SHARED)
    add_library(${name} SHARED ${A_SOURCES})
  else()
    add_library(${name} STATIC ${A_SOURCES})
  endif()
  add_library(accel::${name} ALIAS ${name})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  accel_configure_target(${name})
  target_link_libraries(${name} PUBLIC ${A_DEPENDS})
endfunction()

function(accel_executable name)
  cmake_parse_arguments(A "" "FOLDER" "SOURCES;DEPENDS" ${ARGN})
  if(NOT A_FOLDER)
    set(A_FOLDER bin)
  endif()
  add_executable(${name} ${A_SOURCES})
  accel_configure_target(${name})
  target_link_libraries(${name} PRIVATE ${A_DEPENDS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${A_FOLDER})
endfunction()

# Writes one source that holds several programs: what they include first, then each in a namespace of its own, then a main() that
# takes the program by the name under which it was started.
function(accel_write_programs path)
  set(includes "")
  set(programs "")
  set(table "")
  foreach(source ${ARGN})
    cmake_path(GET source STEM program)
    file(STRINGS ${source} lines REGEX "^#include ")
    list(APPEND includes ${lines})
    string(APPEND programs "namespace programs::${program} {\n#include \"${source}\"\n}\n")
    string(APPEND table "  if (name == \"${program}\") return start(programs::${program}::main, count, arguments);\n")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" includes)
  file(CONFIGURE OUTPUT ${path} @ONLY CONTENT
"#include <cstdlib>
#include <string_view>
#include <type_traits>
@includes@

// A main() may end without a return, another function may not: int main() becomes auto main().
#define main unused; auto main
@programs@
#undef main
template <typename Result, typename... Arguments>
static int start(Result (*program)(Arguments...), [[maybe_unused]] int count, [[maybe_unused]] char** arguments) {
  const auto run = [&] {
    if constexpr (sizeof...(Arguments) == 0) return program();
    else return program(count, arguments);
  };
  if constexpr (std::is_void_v<Result>) return run(), EXIT_SUCCESS;
  else return run();
}

int main(int count, char** arguments) {
  const std::string_view path = arguments[0];
  const std::string_view name = path.substr(path.rfind('/') + 1);
@table@  return EXIT_FAILURE;
}
")
endfunction()

# Small programs that include LibTorch cost little but its headers. With ACCEL_UNITY those of a group are compiled together, into
# one file with several names.
function(accel_programs group)
  cmake_parse_arguments(A "" "FOLDER;PREFIX" "SOURCES;DEPENDS;DEFINITIONS" ${ARGN})
  list(TRANSFORM A_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  if(NOT ACCEL_UNITY)
    foreach(source ${A_SOURCES})
      cmake_path(GET source STEM program)
      accel_executable(${A_PREFIX}${program} SOURCES ${source} DEPENDS ${A_DEPENDS} FOLDER ${A_FOLDER})
      set_target_properties(${A_PREFIX}${program} PROPERTIES OUTPUT_NAME ${program})
      target_compile_definitions(${A_PREFIX}${program} PRIVATE ${A_DEFINITIONS})
      if(NOT A_FOLDER STREQUAL bench)
        accel_optimize_little(${A_PREFIX}${program})
      endif()
    endforeach()
    return()
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${A_SOURCES})
  accel_write_programs(${CMAKE_CURRENT_BINARY_DIR}/${group}.cc ${A_SOURCES})
  accel_executable(${group} SOURCES ${CMAKE_CURRENT_BINARY_DIR}/${group}.cc DEPENDS ${A_DEPENDS} FOLDER ${A_FOLDER})
  target_compile_definitions(${group} PRIVATE ${A_DEFINITIONS})
  if(NOT A_FOLDER STREQUAL bench)
    accel_optimize_little(${group})
  endif()
  foreach(source ${A_SOURCES})
    cmake_path(GET source STEM program)
    set(path ${PROJECT_BINARY_DIR}/${A_FOLDER}/${program})
    add_custom_command(TARGET ${group} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E rm -f ${path} COMMAND ${CMAKE_COMMAND} -E create_hardlink $<TARGET_FILE:${group}> ${path})
    add_custom_target(${A_PREFIX}${program} DEPENDS ${group})
  endforeach()
endfunction()

set_property(GLOBAL PROPERTY ACCEL_REGISTERED_TESTS "")

function(accel_set_timeout name seconds)
  if(NOT seconds)
    set(seconds 120)
  endif()
  math(EXPR seconds "${seconds} * ${ACCEL_TIMEOUT_PERCENT} / 100")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
endfunction()

# Tests that start launchers and their workers mean any machine: how many GPUs it has decides nothing there.
function(accel_hide_gpus name)
  if("integration" IN_LIST ARGN OR "fault" IN_LIST ARGN)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT CUDA_VISIBLE_DEVICES=)
  endif()
endfunction()

function(accel_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPENDS;LABELS;ENVIRONMENT" ${ARGN})
  accel_executable(${name} SOURCES ${A_SOURCES} DEPENDS ${A_DEPENDS} GTest::gmock GTest::gtest FOLDER tests)
  accel_optimize_little(${name})
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}"
    ENVIRONMENT "ACCEL_BUILD_DIR=${PROJECT_BINARY_DIR};ACCEL_SOURCE_DIR=${PROJECT_SOURCE_DIR};${A_ENVIRONMENT}")
  accel_set_timeout(${name} "${A_TIMEOUT}")
  accel_hide_gpus(${name} ${A_LABELS})
  foreach(source ${A_SOURCES})
    get_filename_component(path ${source} ABSOLUTE)
    set_property(GLOBAL APPEND PROPERTY ACCEL_REGISTERED_TESTS ${path})
  endforeach()
endfunction()

function(accel_script_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "COMMAND;LABELS" ${ARGN})
  list(POP_FRONT A_COMMAND script)
  cmake_path(ABSOLUTE_PATH script BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  add_test(NAME ${name} COMMAND ${script} ${A_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" SKIP_RETURN_CODE 77
    ENVIRONMENT "ACCEL_BUILD_DIR=${PROJECT_BINARY_DIR};ACCEL_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  accel_set_timeout(${name} "${A_TIMEOUT}")
  accel_hide_gpus(${name} ${A_LABELS})
endfunction()

function(accel_fuzz name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS" ${ARGN})
  accel_executable(${name} SOURCES ${A_SOURCES} DEPENDS ${A_DEPENDS} FOLDER fuzz)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

# Fails the configure step when a test source exists that no accel_test() names.
function(accel_check_every_test_is_registered)
  file(GLOB_RECURSE found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_test.cc)
  get_property(registered GLOBAL PROPERTY ACCEL_REGISTERED_TESTS)
  foreach(path ${found})
    if(NOT path IN_LIST registered)
      set(needs_torch FALSE)
      set(needs_agent FALSE)
      if(path MATCHES "/(libaccel|peer)/")
        set(needs_torch TRUE)
      elseif(path MATCHES "/unit/(agent|launcher/cluster)/")
        set(needs_agent TRUE)
      endif()
      if((ACCEL_WITH_TORCH OR NOT needs_torch) AND (ACCEL_WITH_AGENT OR NOT needs_agent))
        message(FATAL_ERROR "${path} is not registered with accel_test(): it would never run")
      endif()
    endif()
  endforeach()
endfunction()
