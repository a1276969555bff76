#include "base/version.h"

namespace ltrain {

std::string version() {
  const std::string commit = LTRAIN_COMMIT;
  return commit.empty() ? LTRAIN_VERSION : LTRAIN_VERSION " (" + commit + ")";
}

}  // namespace ltrain
