// Reads memory from one end to the other with every core, once a call: milliseconds of each call, as JSON.
// memory_read BYTES [calls]
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  const int64_t n = (argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 30) / 8;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 10;
  std::vector<uint64_t> memory(static_cast<size_t>(n));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) memory[static_cast<size_t>(i)] = static_cast<uint64_t>(i);
  uint64_t all = 0;
  std::printf("{\"read_ms\": [");
  for (int call = 0; call < calls; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    uint64_t sum = 0;
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += memory[static_cast<size_t>(i)];
    all += sum;
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%s%.3f", call ? ", " : "", ms);
  }
  std::printf("], \"sum\": %llu}\n", static_cast<unsigned long long>(all));
}
