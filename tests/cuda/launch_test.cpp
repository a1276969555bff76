// The emulated device refuses what CUDA refuses, and its kernels fault where a GPU's would.
#ifdef LTRAIN_CUDA_EMULATED
#include <catch2/catch.hpp>

#include "kernels/cuda/pack_cuda.h"

using namespace ltrain;
using Catch::Contains;

namespace {

void nothing() {}

void load_pack(const float* from) { cuda::load<float, 4>(from, 0); }
void store_pack(float* to) { cuda::store(to, 0, cuda::Pack<float, 4>{}); }

}  // namespace

TEST_CASE("the emulated device refuses grids, blocks and shared memory that CUDA refuses") {
  const auto emulate = [](dim3 grid, int threads, int64_t shared) {
    cuda::emulate(grid, threads, shared, [] {});
  };
  CHECK_NOTHROW(emulate(dim3(2, 3, 1), 1024, 232448));
  CHECK_THROWS_WITH(emulate(dim3(0), 32, 0), Contains("a grid without blocks: 0 x 1 x 1"));
  CHECK_THROWS_WITH(emulate(dim3(1, 0), 32, 0), Contains("a grid without blocks"));
  CHECK_THROWS_WITH(emulate(dim3(1, 65536), 32, 0), Contains("expected at most"));
  CHECK_THROWS_WITH(emulate(dim3(0x80000000u), 32, 0), Contains("expected at most"));
  CHECK_THROWS_WITH(emulate(dim3(1), 0, 0), Contains("blocks of 0 threads"));
  CHECK_THROWS_WITH(emulate(dim3(1), 1025, 0), Contains("blocks of 1025 threads"));
  CHECK_THROWS_WITH(emulate(dim3(1), 32, 232449), Contains("232449 bytes of shared memory"));
}

TEST_CASE("a launch without blocks does nothing, and one that CUDA refuses fails where it is made") {
  const auto s = cuda::make_cuda_stream("cuda");
  CHECK_NOTHROW(cuda::launch(*s, dim3(0), 32, 0, nothing));
  CHECK_THROWS_WITH(cuda::launch(*s, dim3(1, 65536), 32, 0, nothing), Contains("expected at most"));
  s->synchronize();
}

TEST_CASE("an access of 16 bytes faults where it is not aligned") {
  alignas(16) float memory[8] = {};
  const auto run = [&](void (*kernel)(float*), float* at) {
    cuda::emulate(dim3(1), 1, 0, [&] { kernel(at); });
  };
  const auto load = [](float* at) { load_pack(at); };
  CHECK_NOTHROW(run(load, memory + 4));
  CHECK_NOTHROW(run(store_pack, memory + 4));
  CHECK_THROWS_WITH(run(load, memory + 1), Contains("faults at an access of 16 bytes"));
  CHECK_THROWS_WITH(run(store_pack, memory + 2), Contains("faults at an access of 16 bytes"));
}
#endif
