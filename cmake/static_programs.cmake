# The launcher's programs, linked with everything they need, the C library too: for the wheel, the RPM and the tarball
# (scripts/package.sh). They run with any C library, and load none. What that leaves out: launcher/main/absent_libraries.cc.
#
# They are made of the objects of the ordinary programs; only the link is another one. The map beside each program lists what was
# linked: scripts/packaging/link_contents.py makes the list of components of it.
include_guard(GLOBAL)

if(ACCEL_SANITIZE OR ACCEL_BUILD_FUZZ)
  return()  # nobody ships such a build
endif()
if(NOT ACCEL_HWLOC_ARCHIVE OR NOT ACCEL_YAML_ARCHIVE)
  message(STATUS "no static programs: libhwloc.a or libyaml-cpp.a was not found")
  return()
endif()

function(accel_static_program name)
  accel_executable(${name} FOLDER static ${ARGN})
  # Named after the target: Ninja would take `accel-launch` for this file, if it had that name.
  set_target_properties(${name} PROPERTIES ACCEL_STATIC ON)
  target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/launcher/main/absent_libraries.cc)
  target_link_options(${name} PRIVATE -static-pie -Wl,-Map=${PROJECT_BINARY_DIR}/maps/${name}.map)
endfunction()

accel_static_program(accel-launch-static SOURCES launcher/main/main.cc DEPENDS accel::launcher)
accel_static_program(accel-static SOURCES launcher/main/accel_main.cc DEPENDS accel::launcher_commands)
accel_static_program(accel-shim-static SOURCES runtime/supervisor/shim/shim_main.cc DEPENDS accel::supervisor)
add_custom_target(static-programs DEPENDS accel-launch-static accel-static accel-shim-static)
