#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace ltrain::cuda {

std::vector<std::string> folders_in(const char* variable) {
  std::vector<std::string> folders;
  const char* given = std::getenv(variable);
  std::istringstream list(given ? given : "");
  for (std::string folder; std::getline(list, folder, ':');)
    if (!folder.empty()) folders.push_back(folder);
  return folders;
}

Library::Library(const std::string& stem, const std::vector<int>& versions) : stem_(stem) {
  std::vector<std::string> folders = folders_in("LTRAIN_CUDA_LIBS");
  for (std::string& folder : folders) folder += "/";
  folders.emplace_back();  // the loader's search path
  for (const std::string& folder : folders)
    for (int version : versions) {
      const std::string path = fmt::format("{}{}.so.{}", folder, stem, version);
      // Global: cuDNN's sub-libraries look up symbols in each other.
      handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
      if (handle_) return;
      why_ += fmt::format("{}{}", why_.empty() ? "" : "; ", ::dlerror());
    }
}

std::string Library::path() const {
  link_map* map = nullptr;
  if (!handle_ || ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || !map) return "";
  std::error_code error;
  const auto real = std::filesystem::canonical(map->l_name, error);
  return error ? map->l_name : real.string();
}

void* Library::symbol(const char* name) const {
  if (!handle_)
    fail(ExitCode::internal,
         "{} is not there: {}\nwhat would help: the CUDA toolkit's library folder in LD_LIBRARY_PATH, or in "
         "LTRAIN_CUDA_LIBS",
         stem_, why_);
  void* at = ::dlsym(handle_, name);
  if (!at)
    fail(ExitCode::internal, "{} has no {}: another version than this build was made for", stem_, name);
  return at;
}

}  // namespace ltrain::cuda
