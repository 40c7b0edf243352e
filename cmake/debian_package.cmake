# cpack: a Debian package of the programs, their units, man pages and completions. LibTorch is no Debian package, so
# libaccel is not in it: that stays a matter of cmake --install.
include_guard(GLOBAL)

# Of the system, not of a prefix: `cmake --install` leaves these out.
install(DIRECTORY docs/man/ DESTINATION share/man/man1
        COMPONENT system EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.1")
install(FILES docs/completions/accel
        DESTINATION share/bash-completion/completions COMPONENT system EXCLUDE_FROM_ALL)
install(FILES docs/completions/_accel
        DESTINATION share/zsh/vendor-completions COMPONENT system EXCLUDE_FROM_ALL)
install(FILES docs/completions/accel.fish
        DESTINATION share/fish/vendor_completions.d COMPONENT system EXCLUDE_FROM_ALL)
# Bash and fish look for the script by the name of the program.
set(completed_programs accel-launch accel-torchrun)
if(TARGET accel-command)
  get_target_property(command_links accel-command ACCEL_LINKS)
  list(APPEND completed_programs ${command_links})
endif()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/completions)
foreach(program ${completed_programs})
  file(CREATE_LINK accel ${PROJECT_BINARY_DIR}/completions/${program} SYMBOLIC)
  file(CREATE_LINK accel.fish ${PROJECT_BINARY_DIR}/completions/${program}.fish SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/completions/${program}
          DESTINATION share/bash-completion/completions COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES ${PROJECT_BINARY_DIR}/completions/${program}.fish
          DESTINATION share/fish/vendor_completions.d COMPONENT system EXCLUDE_FROM_ALL)
endforeach()
install(DIRECTORY deploy/slurm DESTINATION share/doc/accel/examples COMPONENT system EXCLUDE_FROM_ALL)
set(maintainer_scripts)
if(TARGET accel-agent)
  install(DIRECTORY deploy/prometheus deploy/grafana
          DESTINATION share/doc/accel/examples COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES docs/man/accel-agent.8 DESTINATION share/man/man8 COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES docs/man/agent.yaml.5 DESTINATION share/man/man5 COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES configs/agent.yaml DESTINATION /etc/accel COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES deploy/systemd/accel-agent.service
          DESTINATION /lib/systemd/system COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES deploy/systemd/accel.sysusers.conf
          DESTINATION lib/sysusers.d RENAME accel.conf COMPONENT system EXCLUDE_FROM_ALL)
  install(FILES deploy/systemd/accel.tmpfiles.conf
          DESTINATION lib/tmpfiles.d RENAME accel.conf COMPONENT system EXCLUDE_FROM_ALL)
  foreach(script conffiles postinst prerm postrm)
    list(APPEND maintainer_scripts ${PROJECT_SOURCE_DIR}/deploy/debian/${script})
  endforeach()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME accel)
set(CPACK_PACKAGE_CONTACT "accel developers <accel@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Launcher and agent for distributed training jobs")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL tools system)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "accel-launch starts, watches and restarts the processes of a training job; accel-agent does it for the users of a
 node. libaccel, for training programs in C++, is not in this package: it needs LibTorch, which is none.")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${maintainer_scripts})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
