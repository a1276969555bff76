// `ltrain selftest attention` and `ltrain selftest experts`: compare the Hopper kernels with the others on
// one GPU. A run starts them before it uses these kernels (kernels/tensor/kernel_trial.h). Not listed in
// --help.
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>

#include "app/commands.h"
#include "base/fault_point.h"
#include "kernels/attention/attention_check.h"
#include "kernels/matmul/grouped/grouped_gemm_check.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/kernel_trial.h"

namespace ltrain::app {
namespace {

struct KernelsOptions {
  std::string type;
  int64_t head_dim = 64;
  int device = 0;
  DType dtype() const { return type == "bf16" ? DType::bf16 : DType::f16; }
};

std::shared_ptr<KernelsOptions> with_type(CLI::App& command) {
  auto o = std::make_shared<KernelsOptions>();
  command.add_option("type", o->type, "bf16 or f16")->required()->check(CLI::IsMember({"bf16", "f16"}));
  return o;
}

/// The last argument is the GPU's number. `compare`: returns an empty text if the kernels agree.
void compares(CLI::App& command, const std::shared_ptr<KernelsOptions>& o,
              std::function<std::string(Stream& s, const KernelsOptions& o)> compare) {
  command.add_option("device", o->device, "Number of the GPU, of those that this process sees")->required();
  command.callback([o, compare = std::move(compare)] {
    ::alarm(300);  // in case no parent is left to end it
    LT_FAULT_POINT("selftest.step");
    use_device(DeviceKind::cuda, o->device);
    const auto stream = make_compute_stream(DeviceKind::cuda, "comparison of kernels");
    const std::string why = compare(*stream, *o);
    if (why.empty()) return;
    std::printf("%s\n", why.c_str());
    std::fflush(stdout);
    throw CLI::RuntimeError(kTrialDiffers);
  });
}

}  // namespace

void add_selftest_kernels(CLI::App& selftest) {
  auto* attention = selftest.add_subcommand("attention", "Compares attention kernels on a GPU");
  const auto heads = with_type(*attention);
  attention->add_option("head_dim", heads->head_dim, "64 or 128")
      ->required()
      ->check(CLI::IsMember({64, 128}));
  compares(*attention, heads, [](Stream& s, const KernelsOptions& o) {
    return compare_attention_kernels(s, o.dtype(), o.head_dim);
  });
  auto* experts = selftest.add_subcommand("experts", "Compares kernels of grouped products on a GPU");
  compares(*experts, with_type(*experts),
           [](Stream& s, const KernelsOptions& o) { return compare_grouped_gemms(s, o.dtype()); });
}

}  // namespace ltrain::app
