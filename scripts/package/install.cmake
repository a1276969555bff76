# Layout of `cmake --install`, and the packages that cpack makes of it: a .deb, a .tar.gz, and their SHA-256.
include(GNUInstallDirs)

install(TARGETS ltrain)
install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/ltrain)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Man pages and completion come from the program itself, so that they have its options.
install(CODE "
  set(program \"$<TARGET_FILE:ltrain>\")
  set(prefix \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  function(write_output file)
    execute_process(COMMAND \"\${program}\" \${ARGN} OUTPUT_FILE \"\${file}\" COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  execute_process(COMMAND \"\${program}\" man --folder \"\${prefix}/${CMAKE_INSTALL_MANDIR}/man1\" COMMAND_ERROR_IS_FATAL ANY)
  set(share \"\${prefix}/${CMAKE_INSTALL_DATADIR}\")
  file(MAKE_DIRECTORY \"\${share}/bash-completion/completions\" \"\${share}/zsh/vendor-completions\"
    \"\${share}/fish/vendor_completions.d\")
  write_output(\"\${share}/bash-completion/completions/ltrain\" completion bash)
  write_output(\"\${share}/zsh/vendor-completions/_ltrain\" completion zsh)
  write_output(\"\${share}/fish/vendor_completions.d/ltrain.fish\" completion fish)
")

set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_PACKAGE_NAME ltrain)
set(CPACK_PACKAGE_VENDOR "ltrain")
set(CPACK_PACKAGE_CONTACT "ltrain <nobody@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trainer of large language models on CPUs and NVIDIA GPUs")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
include(CPack)
