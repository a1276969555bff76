// Checks on a rank's thread, where Catch's assertions must not be.
#pragma once
#include <stdexcept>
#include <string>

namespace ltrain::test {

inline void must(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("not so: " + what);
}

}  // namespace ltrain::test
