// NVIDIA's libraries are opened when they are first needed, so that a build with CUDA starts on a machine
// that has none of them.
#pragma once
#include <string>
#include <vector>

namespace ltrain::cuda {

/// Folders that an environment variable names, parted by ':'.
std::vector<std::string> folders_in(const char* variable);

/// One shared library of the CUDA toolkit or of NVIDIA's Python packages.
class Library {
 public:
  /// Tries `stem`.so.N for the given major versions, newest first: in the folders of LTRAIN_CUDA_LIBS (parted
  /// by ':'), then where the loader looks, which begins with LD_LIBRARY_PATH. Nothing is thrown: see why().
  Library(const std::string& stem, const std::vector<int>& versions);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool found() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }  ///< as of dlopen
  /// Absolute path of the file that was opened, links resolved; empty where none was found.
  std::string path() const;
  /// What was tried, when nothing was found.
  const std::string& why() const { return why_; }
  /// Throws Error (internal), with what would help, when the library or the symbol is missing.
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;
  std::string stem_, why_;
  void* handle_ = nullptr;
};

}  // namespace ltrain::cuda
