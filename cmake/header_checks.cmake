# Every public header compiles alone: one generated source per header, built with the tests.
#
# accel_check_headers(NAME FOLDER DEPENDS ...)   FOLDER holds accel/*.h
include_guard(GLOBAL)

function(accel_check_headers name folder)
  cmake_parse_arguments(A "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/accel/*.h)
  set(sources "")
  foreach(header ${headers})
    string(MAKE_C_IDENTIFIER ${header} identifier)
    set(source ${PROJECT_BINARY_DIR}/header_checks/${name}/${identifier}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "#include <${header}>\n#include <${header}>  // its guard works\n")
    list(APPEND sources ${source})
  endforeach()
  add_library(${name} OBJECT ${sources})
  accel_configure_target(${name})
  target_compile_options(${name} PRIVATE -O0)
  target_link_libraries(${name} PRIVATE ${A_DEPENDS})
endfunction()
