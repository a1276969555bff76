// NVIDIA's libraries, opened on first use, so that a build with CUDA starts on a machine without them.
#pragma once
#include <string>
#include <vector>

namespace ltrain::cuda {

/// Folders in an environment variable, separated by ':'.
std::vector<std::string> folders_in(const char* variable);

/// One shared library of the CUDA toolkit or of NVIDIA's Python packages.
class Library {
 public:
  /// Tries `stem`.so.N for the given major versions, newest first: in the folders of LTRAIN_CUDA_LIBS
  /// (separated by ':'), then in the loader's search path, which begins with LD_LIBRARY_PATH. Does not throw:
  /// see why().
  Library(const std::string& stem, const std::vector<int>& versions);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool found() const { return handle_ != nullptr; }
  void* handle() const { return handle_; }  ///< handle of dlopen
  /// Absolute path of the opened file, links resolved; empty if none was found.
  std::string path() const;
  /// Attempts that failed, if no file was found.
  const std::string& why() const { return why_; }
  /// Throws Error (internal) if the library or the symbol is missing, with advice.
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
