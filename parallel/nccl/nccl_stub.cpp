// Stub for builds without CUDA.
#include "base/error.h"
#include "parallel/nccl/library.h"

namespace ltrain::nccl {

std::string missing_library() {
  return "this build has no NCCL: it was made without CUDA (cmake --preset cuda)";
}
std::shared_ptr<Library> open_library() { fail(ExitCode::usage, "{}", missing_library()); }

}  // namespace ltrain::nccl
