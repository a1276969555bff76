// Random changes of texts and files, and readers that they are fed to.
#pragma once
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace ltrain::test {

using Random = std::mt19937_64;

/// Returns `bytes`, which must not be empty, with some cut off, overwritten, repeated or left out.
std::string mutated(std::string bytes, Random& random);

/// A reader of text from outside.
struct HostileReader {
  std::string name;
  std::vector<std::string> good;  ///< texts that it reads without an error
  /// Reads a text. May throw Error, but not of ExitCode::internal, and not any other exception.
  std::function<void(const std::string& text)> read;
};

/// Executions that LTRAIN_FUZZ_EXECUTIONS asks for, else `fixed`.
int64_t fuzz_executions(int64_t fixed);
/// A generator with the fixed seed, or with another one each time where LTRAIN_FUZZ_EXECUTIONS is set.
Random fuzz_random(uint64_t seed);

/// Feeds `count` changed texts to a reader. Checks that each is read or refused in time, by an error that can
/// be printed.
void feed_mutants(const HostileReader& reader, int64_t count, Random& random);

}  // namespace ltrain::test
