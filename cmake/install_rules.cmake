# cmake --install: the programs, libaccel with its headers, and what find_package(accel) reads.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

if(TARGET accel-launch)
  install(TARGETS accel-launch accel-shim RUNTIME DESTINATION bin COMPONENT tools)
endif()
if(TARGET accel-agent)
  install(TARGETS accel-command accel-agent RUNTIME DESTINATION bin COMPONENT tools)
  install(TARGETS accel_cluster LIBRARY DESTINATION lib/accel COMPONENT tools)
  install(FILES configs/agent.yaml DESTINATION share/accel COMPONENT tools)
endif()
install(FILES LICENSE NOTICE DESTINATION share/doc/accel COMPONENT tools)
if(ACCEL_WITH_TORCH)
  set_target_properties(accel PROPERTIES INSTALL_RPATH ${ACCEL_TORCH_ROOT}/lib)
  install(TARGETS accel LIBRARY DESTINATION lib)
  install(DIRECTORY runtime/include/accel libaccel/include/accel DESTINATION include FILES_MATCHING PATTERN "*.h")
  configure_file(cmake/accelConfig.cmake.in ${PROJECT_BINARY_DIR}/accelConfig.cmake @ONLY)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/accelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/accelConfig.cmake ${PROJECT_BINARY_DIR}/accelConfigVersion.cmake
                cmake/torch_wheel.cmake
          DESTINATION lib/cmake/accel)
endif()
include(debian_package)
