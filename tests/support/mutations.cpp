#include "tests/support/mutations.h"

#include <time.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/error.h"
#include "base/time_scale.h"

namespace ltrain::test {
namespace {

constexpr double kMostSeconds = 2;  // time of this thread on a core

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

const char* asked_executions() { return std::getenv("LTRAIN_FUZZ_EXECUTIONS"); }

/// A good text with a part of another one, or with random changes.
std::string mutant_of(const HostileReader& reader, Random& random) {
  std::string text = reader.good[random() % reader.good.size()];
  if (random() % 8 != 0) return mutated(std::move(text), random);
  const std::string& other = reader.good[random() % reader.good.size()];
  return text.insert(random() % text.size(), other.substr(random() % other.size(), 1 + random() % 64));
}

}  // namespace

std::string mutated(std::string bytes, Random& random) {
  if (random() % 4 == 0) bytes.resize(random() % bytes.size());
  const bool structure = random() % 4 == 0;
  for (unsigned k = 1 + random() % 4; k-- > 0 && !bytes.empty();) {
    const size_t at = random() % bytes.size(), count = std::min(bytes.size() - at, 1 + random() % 16);
    if (!structure)
      bytes[at] = static_cast<char>(random() % 2   ? random()
                                    : random() % 2 ? 0xFF
                                                   : bytes[at] ^ (1 << random() % 8));
    else if (random() % 2)
      bytes.insert(at, bytes.substr(at, count));
    else
      bytes.erase(at, count);
  }
  return bytes;
}

int64_t fuzz_executions(int64_t fixed) { return asked_executions() ? std::atoll(asked_executions()) : fixed; }

Random fuzz_random(uint64_t seed) { return Random(asked_executions() ? std::random_device{}() : seed); }

void feed_mutants(const HostileReader& reader, int64_t count, Random& random) {
  int64_t refused = 0;
  double slowest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = mutant_of(reader, random);
    const double start = thread_seconds();
    try {
      reader.read(text);
    } catch (const Error& e) {
      ++refused;
      const std::string what = e.what();
      if (e.code() == ExitCode::internal || what.size() >= 8000 || what.find('\x1b') != std::string::npos) {
        CAPTURE(reader.name, text, what);
        FAIL("not the error of a reader");
      }
    } catch (const std::exception& e) {
      CAPTURE(reader.name, text, e.what());
      FAIL("not an error of ltrain");
    }
    const double seconds = thread_seconds() - start;
    if (seconds > kMostSeconds * time_scale()) {
      CAPTURE(reader.name, text, seconds);
      FAIL("a text that takes long");
    }
    slowest = std::max(slowest, seconds);
  }
  if (asked_executions())
    WARN(reader.name << ": " << count << " texts, " << refused << " refused, the slowest read in " << slowest
                     << " s");
}

}  // namespace ltrain::test
