// Memory bandwidth of the AdamW kernel as a GPU's host runs it (offload.optimizer.update: cpu), by turns with
// STREAM's triad on the same threads and arrays, as JSON. host_update_speed [elements [rounds]]
//
// Bytes are those of the source, each once, as STREAM counts them: a store of a line that was not read moves
// it twice on most machines, which is a third more for `triad`, and 1 in 15 for AdamW. `triad_in_place` reads
// what it writes, as AdamW does.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/tensor/arena.h"
#include "kernels/tensor/parallel_for.h"

namespace {

using namespace ltrain;

/// a = b + s c, and a = a + s b; its own loops, so that it shares no code with AdamW.
void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, int64_t n) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 0.5f * c[i];
}
void triad_in_place(float* __restrict a, const float* __restrict b, int64_t n) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; ++i) a[i] = a[i] + 0.5f * b[i];
}

template <class F>
double seconds(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t n = argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 26;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  auto stream = make_inline_stream("host");
  CpuArena arena(n * 16 + 8 * Memory::kAlignment);
  const auto make = [&](DType t) {
    const Tensor x = arena.allocate(MemoryKind::optimizer, "adamw", t, {n});
    fill_value(*stream, x, 0.01);
    return x;
  };
  const Tensor master = make(DType::f32), first = make(DType::f32), second = make(DType::f32),
               grad = make(DType::bf16), low = make(DType::bf16);
  OptimizerStep args;
  args.lr = 3e-4, args.weight_decay = 0.1;
  struct Loop {
    const char* name;
    double bytes;  // read and written for an element
    std::vector<double> rates;
  };
  Loop loops[] = {{"triad", 12, {}}, {"triad_in_place", 12, {}}, {"adamw", 28, {}}};
  for (int i = -1; i < rounds; ++i) {
    args.step = i + 2;
    const double took[] = {
        seconds([&] { triad(master.ptr<float>(), first.ptr<float>(), second.ptr<float>(), n); }),
        seconds([&] { triad_in_place(master.ptr<float>(), first.ptr<float>(), n); }), seconds([&] {
          adamw(*stream, master, first, second, grad, low, {{n, true, args}});
        })};
    for (size_t k = 0; i >= 0 && k < 3; ++k)
      loops[k].rates.push_back(loops[k].bytes * static_cast<double>(n) / took[k] * 1e-9);
  }
  std::printf("{\"elements\": %lld, \"threads\": %d", static_cast<long long>(n), omp_get_max_threads());
  double median[3];
  for (size_t k = 0; k < 3; ++k) {
    std::vector<double>& r = loops[k].rates;
    std::sort(r.begin(), r.end());
    median[k] = r[r.size() / 2];
    std::printf(", \"%s_gb_per_second\": {\"median\": %.2f, \"least\": %.2f, \"most\": %.2f}", loops[k].name,
                median[k], r.front(), r.back());
  }
  std::printf(", \"adamw_of_triad\": %.3f, \"adamw_of_triad_in_place\": %.3f}\n", median[2] / median[0],
              median[2] / median[1]);
}
