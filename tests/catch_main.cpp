// The main function of every test program.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tests/support/outcome.h"

namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in CMakeLists.txt

int cases = 0, cases_with_findings = 0;

struct Listener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo&) override { ++cases; }
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    const std::string found = ltrain::test::take_sanitizer_reports();
    if (found.empty()) return;
    ++cases_with_findings;
    std::fprintf(stderr,
                 "FAILED: test case \"%s\": a program that it started made the sanitizer report:\n%s\n",
                 stats.testInfo.name.c_str(), found.c_str());
  }
};
CATCH_REGISTER_LISTENER(Listener)

bool lists_only(const Catch::ConfigData& c) {
  return c.listTests || c.listTags || c.listTestNamesOnly || c.listReporters || c.showHelp || c.libIdentify;
}

}  // namespace

int main(int argc, char** argv) {
  ltrain::test::collect_sanitizer_reports();
  // Measurements that programs cache do not go into the user's folder.
  ::setenv("XDG_CACHE_HOME",
           (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cache").c_str(), 0);
  Catch::Session session;
  int result = session.applyCommandLine(argc, argv);
  if (result == 0) result = session.run();
  ltrain::test::end_sanitizer_reports();
  if (lists_only(session.configData()) || result != 0) return result;
  if (cases == 0) {  // Catch2 would call it a success; a ';' in a name makes ctest ask for its two halves
    std::fprintf(stderr, "FAILED: no test case has such a name or tag\n");
    return 1;
  }
  if (cases_with_findings > 0) return 1;
  return ltrain::test::skipped_tests() >= cases ? kSkipped : 0;
}
