// NVIDIA's libraries on this machine: the file of each that ltrain uses, and newer ones that it does not use.
#pragma once
#include <string>
#include <vector>

#include "app/commands.h"

namespace ltrain::app {

struct FoundLibrary {
  std::string name;           ///< "cuDNN"
  std::string path, version;  ///< file that ltrain opens; empty: not found
  std::string newer_path,
      newer_version;  ///< version of the newest file, if it is newer than `version`; else empty
  std::string why;    ///< search log, if no file was found
};

/// Searches LTRAIN_CUDA_LIBS, LD_LIBRARY_PATH, the toolkit's folders and the loader's path. A child process
/// queries the version of each file, so that no library stays open in this process.
std::vector<FoundLibrary> cuda_libraries();

/// `ltrain selftest library NAME FILE`: prints the version of one file, or of the file that ltrain uses
/// without FILE.
void add_selftest_library(CLI::App& selftest);

}  // namespace ltrain::app
