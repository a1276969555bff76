// A script in the place of the process that compares kernels before a GPU uses them.
#pragma once
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/kernel_trial.h"
#include "kernels/tensor/stream_cuda.h"
#include "tests/support/temporary_folder.h"

namespace ltrain::test {

/// As long as it lives, a script is what tries the kernels, and the cache is a folder of its own.
class Trial {
 public:
  explicit Trial(const std::string& script, double seconds = 30) : script_(folder_.path() + "/trial") {
    ::setenv("LTRAIN_CACHE_DIR", cache().c_str(), 1);
    becomes(script, seconds);
  }
  ~Trial() {
    ::unsetenv("LTRAIN_CACHE_DIR");
    ::unsetenv("LTRAIN_EMULATED_DRIVER");
    set_kernel_trial({});
    forget_kernel_trials();
  }
  void becomes(const std::string& script, double seconds = 30) {
    std::ofstream(script_) << "echo \"$@\" >>" << folder_.path() << "/asked\n" << script << '\n';
    set_kernel_trial({"/bin/sh", script_}, seconds);
    forget_kernel_trials();
  }
  std::string cache() const { return folder_.path() + "/cache"; }
  std::vector<std::string> asked() const {
    std::vector<std::string> lines;
    std::ifstream in(folder_.path() + "/asked");
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  Stream& stream() { return *stream_; }

 private:
  TemporaryFolder folder_;
  std::string script_;
  std::unique_ptr<Stream> stream_ = cuda::make_cuda_stream("cuda");
};

}  // namespace ltrain::test
