#include "kernels/tensor/out_of_memory.h"

#include <utility>

#include "kernels/tensor/last_op.h"

namespace ltrain {
namespace {

thread_local std::string present;

}  // namespace

MemoryPurpose::MemoryPurpose(std::string purpose) : outer_(std::exchange(present, std::move(purpose))) {}

MemoryPurpose::~MemoryPurpose() { present = std::move(outer_); }

std::string MemoryPurpose::text() {
  if (!present.empty()) return "for " + present;
  const std::string op = LastOp::of_thread().text();
  return op.empty() ? "for a library" : "at the op " + op;
}

}  // namespace ltrain
