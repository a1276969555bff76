// Reads memory from one end to the other with every core, once a call: milliseconds of each call, as JSON.
// The memory is in huge pages where the system has them, as a model's weights are, and each thread reads in
// 1, 2, 4 and 8 streams by turns of calls; the calls of the number of streams that is fastest at the median
// are printed. memory_read BYTES [calls]
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// The sum of `n` words (a multiple of 8 * streams) that are read in `streams` places at once.
template <int kStreams>
uint64_t sum_of(const uint64_t* from, int64_t n) {
  const int64_t each = n / kStreams;
  uint64_t sums[kStreams][8] = {};
  for (int64_t i = 0; i < each; i += 8)
    for (int s = 0; s < kStreams; ++s)
#pragma omp simd
      for (int k = 0; k < 8; ++k) sums[s][k] += from[s * each + i + k];
  uint64_t all = 0;
  for (const auto& stream : sums)
    for (const uint64_t s : stream) all += s;
  return all;
}

using Sum = uint64_t (*)(const uint64_t*, int64_t);

}  // namespace

int main(int argc, char** argv) {
  const int threads = omp_get_max_threads();
  const int64_t share = (argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 30) / 8 / threads / 64 * 64;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 10;
  const auto bytes = static_cast<size_t>(share * threads * 8);
  void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return std::perror("memory_read: mmap"), 1;
  madvise(got, bytes, MADV_HUGEPAGE);
  auto* memory = static_cast<uint64_t*>(got);
  const Sum kinds[] = {sum_of<1>, sum_of<2>, sum_of<4>, sum_of<8>};
  std::vector<double> ms[4];
  uint64_t all = 0;
#pragma omp parallel
  {
    const int64_t first = omp_get_thread_num() * share;
    for (int64_t i = 0; i < share; ++i) memory[first + i] = static_cast<uint64_t>(first + i);
  }
  for (int call = 0; call < calls * 4; ++call) {
    uint64_t sum = 0;
    const auto begin = std::chrono::steady_clock::now();
#pragma omp parallel reduction(+ : sum)
    sum += kinds[call % 4](memory + omp_get_thread_num() * share, share);
    all += sum;
    ms[call % 4].push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  const auto median = [](std::vector<double> v) { return std::sort(v.begin(), v.end()), v[v.size() / 2]; };
  int best = 0;
  for (int k = 1; k < 4; ++k)
    if (median(ms[k]) < median(ms[best])) best = k;
  std::printf("{\"streams\": %d, \"read_ms\": [", 1 << best);
  for (int call = 0; call < calls; ++call)
    std::printf("%s%.3f", call ? ", " : "", ms[best][static_cast<size_t>(call)]);
  std::printf("], \"sum\": %llu}\n", static_cast<unsigned long long>(all));
}
