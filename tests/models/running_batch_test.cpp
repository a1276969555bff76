// The micro-batch that adapters drop out, while blocks run.
#include <catch2/catch.hpp>

#include "kernels/tensor/arena.h"
#include "models/layers/step.h"

using namespace ltrain;

TEST_CASE("a block that runs within a block gives its micro-batch back") {
  auto compute = make_inline_stream("compute");
  CpuArena arena(1 << 20);
  ParameterStore store;
  const GroupSet alone;
  Step step{.compute = *compute, .memory = arena, .params = store, .groups = alone.groups()};
  const MicroBatch outer, inner;
  {
    const RunningBatch running(step, outer);
    {
      const RunningBatch within(step, inner);
      CHECK(step.batch == &inner);
    }
    CHECK(step.batch == &outer);
  }
  CHECK(step.batch == nullptr);
}
