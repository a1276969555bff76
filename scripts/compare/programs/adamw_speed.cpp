// ltrain's AdamW kernel alone, on as many elements as GPT-2 124M has parameters: milliseconds of each call,
// as JSON. adamw_speed [elements [calls]]
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/tensor/arena.h"

int main(int argc, char** argv) {
  using namespace ltrain;
  const int64_t n = argc > 1 ? std::atoll(argv[1]) : 124475904;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 10;
  auto stream = make_inline_stream("compute");
  CpuArena arena(4 * (n * 4 + Memory::kAlignment));
  Tensor t[4];  // weights, moments, gradient
  for (Tensor& x : t) {
    x = arena.allocate(MemoryKind::optimizer, "adamw", DType::f32, {n});
    fill_value(*stream, x, 0.01);
  }
  OptimizerStep args;
  args.lr = 3e-4, args.weight_decay = 0.1;
  std::printf("{\"adamw_ms\": [");
  for (int i = -2; i < calls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    args.step = i + 3;
    adamw(*stream, t[0], t[1], t[2], t[3], Tensor(), {{t[0].elements(), true, args}});
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    if (i >= 0) std::printf("%s%.3f", i ? ", " : "", ms);
  }
  std::printf("]}\n");
}
