// Runs the lowered programs of all ranks on links that block: a transfer ends some time after both sides have
// posted it and all before it have ended. Which rank or link moves next is drawn at random, so that many runs
// meet many interleavings.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline/lowering.h"

namespace ltrain::test {

struct MachineRun {
  std::string failure;  ///< "" or what went wrong: a wait that never ends, a wrong tensor, an early release
  int waits_at_release = 0;  ///< releases within a program (not at its end) that had to wait
  int most_unreleased = 0;   ///< sent tensors that a rank held at once
};

enum class Pace { random, eager, lazy };  ///< links: at any time; as soon, or as late, as possible

MachineRun run_programs(const pipeline::Schedule& schedule,
                        const std::vector<std::vector<pipeline::PipelineStep>>& programs, Pace pace,
                        uint64_t seed);

}  // namespace ltrain::test
