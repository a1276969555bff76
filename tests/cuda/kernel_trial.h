// A script in the place of the process that compares kernels before a GPU uses them.
#pragma once
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tensor/kernel_trial.h"
#include "kernels/tensor/stream_cuda.h"
#include "tests/app/run_program.h"
#include "tests/support/temporary_folder.h"

namespace ltrain::test {

/// During its lifetime a script tries the kernels, and the cache is a temporary folder.
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

/// One step of a model with `settings`: where the process that tries its kernels dies, the line that begins
/// with `kernels` says that mma's are used and why, once, and so does the next run; else that wgmma's are.
inline void check_run_says_why(const std::string& settings, const std::string& kernels) {
  using Catch::Contains;
  const TempRun run;
  REQUIRE(run.build().code == 0);
  const auto train = [&](const std::string& variables) {
    return run.sh("run tiny.yaml device=cuda parallel.data=1 parallel.zero_stage=0 precision=bf16 " +
                      settings +
                      " model.num_hidden_layers=1 data.seq_length=8 train.micro_batch_size=2 "
                      "train.global_batch_size=2 train.train_steps=1 train.eval_interval=0 "
                      "checkpoint.save_interval=0 checkpoint.save_at_end=false checkpoint.resume=never "
                      "schedule.lr_decay_steps=4 schedule.lr_warmup_steps=1 attention_backend=own",
                  "LTRAIN_CACHE_DIR=" + run.folder() + "/cache " + variables);
  };
  const std::string why =
      "those for Hopper (wgmma) are not used, because the process that tried them was ended by signal 6";
  const Outcome died = train("LTRAIN_FAULT=selftest.step:*:1:abort");
  INFO(died.text);
  CHECK(died.code == 0);
  CHECK_THAT(died.text, Contains(kernels + ", on tensor cores (mma); " + why));
  CHECK(died.text.find(why) == died.text.rfind(why));  // said once
  const Outcome again = train("");                     // it is known
  CHECK_THAT(again.text, Contains(why));
  std::filesystem::remove_all(run.folder() + "/cache");
  const Outcome used = train("");
  INFO(used.text);
  CHECK(used.code == 0);
  CHECK_THAT(used.text, Contains(kernels + ", on Hopper's tensor cores (wgmma)\n"));
  CHECK(!std::filesystem::is_empty(run.folder() + "/cache"));
}

}  // namespace ltrain::test
