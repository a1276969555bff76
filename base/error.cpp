#include "base/error.h"

#include <cstring>

namespace ltrain {

void check_failed(const char* file, int line, const char* condition, const std::string& text) {
  const char* base = std::strrchr(file, '/');
  fail(ExitCode::internal, "{}:{}: {} (violated: {})", base ? base + 1 : file, line, text, condition);
}

}  // namespace ltrain
