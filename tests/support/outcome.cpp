#include "tests/support/outcome.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace ltrain::test {
namespace {
std::atomic<int> skipped{0};
std::string folder;
pid_t owner = 0;
}  // namespace

void skip_test(const std::string& why) {
  ++skipped;
  std::printf("SKIPPED: %s\n", why.c_str());
  std::fflush(stdout);
}

int skipped_tests() { return skipped; }

#if defined(LTRAIN_SANITIZE)
void collect_sanitizer_reports() {
  std::string pattern = (std::filesystem::temp_directory_path() / "ltrain-findings-XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot make a folder like " + pattern);
  folder = pattern;
  owner = ::getpid();
  // This process has read its own options already: it reports to stderr.
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* given = std::getenv(name);
    const std::string before = given && *given ? std::string(given) + ":" : "";
    ::setenv(name, (before + "log_path=" + folder + "/report").c_str(), 1);
  }
}
#else
void collect_sanitizer_reports() {}
#endif

std::string take_sanitizer_reports() {
  if (folder.empty() || ::getpid() != owner) return "";
  std::string found;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    found += text.str();
    std::filesystem::remove(file.path());
  }
  return found;
}

void end_sanitizer_reports() {
  if (!folder.empty() && ::getpid() == owner) std::filesystem::remove_all(folder);
}

}  // namespace ltrain::test
