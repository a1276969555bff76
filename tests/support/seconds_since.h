// Time that a test has waited.
#pragma once
#include <chrono>

namespace ltrain::test {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace ltrain::test
