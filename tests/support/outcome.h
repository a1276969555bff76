// Outcome of a test program beside Catch2's assertions: tests that could not be made here, and findings of a
// sanitizer in programs that a test started.
#pragma once
#include <string>

namespace ltrain::test {

/// For a test that needs what this machine or build lacks: say so and return from it. `why` begins with what
/// was not tested. ctest lists the test as skipped, unless something in it failed.
void skip_test(const std::string& why);
/// The number of calls.
int skipped_tests();

/// Under a sanitizer: makes programs that are started from now on write what it finds to files of a folder of
/// this process. They may be killed, or expected to fail, or have their stderr elsewhere: nothing is lost.
void collect_sanitizer_reports();
/// Findings since the last call; empty without a sanitizer.
std::string take_sanitizer_reports();
/// Removes the folder.
void end_sanitizer_reports();

}  // namespace ltrain::test
