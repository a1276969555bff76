// A program of one rank, alone, on the CPU.
#pragma once
#include <memory>

#include "runtime/program/train_program.h"
#include "tests/support/tiny_job.h"

namespace ltrain::test {

struct ProgramRank {
  std::unique_ptr<Stream> compute = make_inline_stream("compute");
  CpuArena arena{64 << 20};
  GroupSet alone;
  TrainProgram program;
  explicit ProgramRank(const ProgramOptions& o) : program(o, {*compute, arena, alone.groups()}) {
    program.initialize();
  }
};

}  // namespace ltrain::test
