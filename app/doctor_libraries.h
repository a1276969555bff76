// NVIDIA's libraries that this machine has: the one of each that ltrain takes, and newer ones that it passes
// over.
#pragma once
#include <string>
#include <vector>

#include "app/commands.h"

namespace ltrain::app {

struct FoundLibrary {
  std::string name;           ///< "cuDNN"
  std::string path, version;  ///< of the file that ltrain opens; empty where there is none
  std::string newer_path,
      newer_version;  ///< of the newest file that is newer than it; empty where there is none
  std::string why;    ///< what was tried, where there is none
};

/// Looks in LTRAIN_CUDA_LIBS, LD_LIBRARY_PATH, the toolkit's folders and the loader's path. A child process
/// asks each file for its version, so that nothing stays open here.
std::vector<FoundLibrary> cuda_libraries();

/// `ltrain selftest library NAME FILE`: prints the version of one file, or of what ltrain takes without FILE.
void add_selftest_library(CLI::App& selftest);

}  // namespace ltrain::app
