// `ltrain selftest attention`: compares the attention kernels for Hopper with the others on one GPU; what a
// run starts before it uses them (kernels/attention/attention_trial.h). Not listed in --help.
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_trial.h"
#include "kernels/base/fault_point.h"
#include "kernels/tensor/device.h"

namespace ltrain::app {

void add_selftest_attention(CLI::App& selftest) {
  struct Options {
    std::string type;
    int64_t head_dim = 64;
    int device = 0;
  };
  auto o = std::make_shared<Options>();
  auto* command = selftest.add_subcommand("attention", "Compares attention kernels on a GPU");
  command->add_option("type", o->type, "bf16 or f16")->required()->check(CLI::IsMember({"bf16", "f16"}));
  command->add_option("head_dim", o->head_dim, "64 or 128")->required()->check(CLI::IsMember({64, 128}));
  command->add_option("device", o->device, "Number of the GPU, of those that this process sees")->required();
  command->callback([o] {
    ::alarm(300);  // where nobody is left who would end it
    LT_FAULT_POINT("selftest.step");
    use_device(DeviceKind::cuda, o->device);
    const auto stream = make_compute_stream(DeviceKind::cuda, "comparison of attention");
    const std::string why =
        compare_attention_kernels(*stream, o->type == "bf16" ? DType::bf16 : DType::f16, o->head_dim);
    if (why.empty()) return;
    std::printf("%s\n", why.c_str());
    std::fflush(stdout);
    throw CLI::RuntimeError(kTrialDiffers);
  });
}

}  // namespace ltrain::app
