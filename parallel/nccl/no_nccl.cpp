// In builds without CUDA.
#include "kernels/core/error.h"
#include "parallel/nccl/library.h"

namespace ltrain::nccl {

std::shared_ptr<Library> open_library() {
  fail(ExitCode::usage, "this build has no NCCL: it was made without CUDA (cmake --preset cuda)");
}

}  // namespace ltrain::nccl
