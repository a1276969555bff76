#include "kernels/tensor/failed_op.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/tensor/last_op.h"

namespace ltrain {

bool waits_for_each_op() {
  static const bool on = [] {
    const char* given = std::getenv("LTRAIN_CUDA_SYNC");
    const std::string_view value = given ? given : "";
    if (!value.empty() && value != "0" && value != "1")
      fail(ExitCode::usage, "LTRAIN_CUDA_SYNC = {}: must be 0 or 1", value);
    return value == "1";
  }();
  return on;
}

std::string failed_op_text() {
  const std::string op = LastOp::of_thread().text();
  if (op.empty()) return "";
  return "\nthe last op: " + op +
         (waits_for_each_op()
              ? "; it failed, or one that another stream had before it"
              : "; it or one before it failed: LTRAIN_CUDA_SYNC=1 waits after each and names it");
}

}  // namespace ltrain
