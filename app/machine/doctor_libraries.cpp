#include "app/machine/doctor_libraries.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/run_child.h"
#include "kernels/cuda/library.h"

namespace ltrain::app {
namespace {

using Version = std::array<int, 3>;

/// Splits an integer of the form major * 10000 + minor * 100 + patch.
Version split(int64_t v) {
  return {static_cast<int>(v / 10000), static_cast<int>(v / 100 % 100), static_cast<int>(v % 100)};
}

Version returned(void* f) { return split(static_cast<int64_t>(reinterpret_cast<size_t (*)()>(f)())); }

Version filled_in(void* f) {
  int v = 0;
  reinterpret_cast<int (*)(int*)>(f)(&v);
  return split(v);
}

Version pair_filled_in(void* f) {
  Version v{};
  reinterpret_cast<int (*)(int*, int*)>(f)(&v[0], &v[1]);
  return v;
}

struct Known {
  const char *name, *stem;
  std::vector<int> versions;  ///< versions in the soname, newest first
  const char* function;
  Version (*query)(void*);
};

const std::vector<Known>& known() {
  static const std::vector<Known> all{{"cuBLASLt", "libcublasLt", {13, 12}, "cublasLtGetVersion", returned},
                                      {"NCCL", "libnccl", {2}, "ncclGetVersion", filled_in},
                                      {"cuDNN", "libcudnn", {9}, "cudnnGetVersion", returned},
                                      {"NVRTC", "libnvrtc", {13, 12}, "nvrtcVersion", pair_filled_in}};
  return all;
}

/// Folders to search, with those named by variables first.
std::vector<std::string> folders() {
  std::vector<std::string> all;
  for (const char* variable : {"LTRAIN_CUDA_LIBS", "LD_LIBRARY_PATH"})
    for (std::string& folder : cuda::folders_in(variable)) all.push_back(std::move(folder));
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"})
    all.push_back(folder);
  return all;
}

std::string text_of(const Version& v) { return fmt::format("{}.{}.{}", v[0], v[1], v[2]); }

struct Answer {
  Version version{};
  std::string path;
};

/// Queries a child process, which prints "MAJOR MINOR PATCH PATH". `file` empty: the file that ltrain uses.
/// The path is empty if it cannot be opened.
Answer ask(const Known& k, const std::string& file) {
  std::vector<std::string> command{"/proc/self/exe", "selftest", "library", k.name};
  if (!file.empty()) command.push_back(file);
  const ChildEnd end = run_child(command, 20);
  Answer a;
  if (end.how != ChildEnd::How::exited || end.number != 0) return a;
  std::istringstream words(end.output);
  words >> a.version[0] >> a.version[1] >> a.version[2] >> std::ws;
  std::getline(words, a.path);
  return a;
}

/// Path of the library `k` in `folder` with links resolved; empty: not found.
std::string file_in(const std::string& folder, const Known& k) {
  for (const int v : k.versions) {
    std::error_code error;
    const auto path = std::filesystem::canonical(fmt::format("{}/{}.so.{}", folder, k.stem, v), error);
    if (!error) return path.string();
  }
  return "";
}

void print_version(const std::string& name, const std::string& file) {
  for (const Known& k : known()) {
    if (name != k.name) continue;
    std::unique_ptr<cuda::Library> taken;
    void* handle = nullptr;
    if (file.empty()) {
      taken = std::make_unique<cuda::Library>(k.stem, k.versions);
      handle = taken->handle();
      if (!handle) fail(ExitCode::usage, "{}", taken->why());
    } else if (handle = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL); !handle) {
      fail(ExitCode::usage, "{}", ::dlerror());
    }
    void* f = ::dlsym(handle, k.function);
    if (!f) fail(ExitCode::usage, "{} has no {}", k.name, k.function);
    const Version v = k.query(f);
    std::printf("%d %d %d %s\n", v[0], v[1], v[2], taken ? taken->path().c_str() : file.c_str());
    return;
  }
  fail(ExitCode::usage, "{} is not a library that ltrain opens", name);
}

}  // namespace

std::vector<FoundLibrary> cuda_libraries() {
  std::vector<FoundLibrary> all;
  for (const Known& k : known()) {
    FoundLibrary f;
    f.name = k.name;
    const Answer taken = ask(k, "");
    if (taken.path.empty()) {
      f.why = fmt::format("{}.so is neither in LTRAIN_CUDA_LIBS nor where the loader looks", k.stem);
      all.push_back(f);
      continue;
    }
    f.path = taken.path, f.version = text_of(taken.version);
    Version newest = taken.version;
    std::set<std::string> seen{taken.path};
    for (const std::string& folder : folders()) {
      const std::string file = file_in(folder, k);
      if (file.empty() || !seen.insert(file).second) continue;
      const Answer other = ask(k, file);
      if (other.path.empty() || other.version <= newest) continue;
      newest = other.version;
      f.newer_path = file, f.newer_version = text_of(other.version);
    }
    all.push_back(f);
  }
  return all;
}

void add_selftest_library(CLI::App& selftest) {
  auto* command = selftest.add_subcommand("library", "Prints version and path of a library of NVIDIA's");
  auto name = std::make_shared<std::string>(), file = std::make_shared<std::string>();
  command->add_option("name", *name, "cuBLASLt, NCCL, cuDNN or NVRTC")->required();
  command->add_option("file", *file, "A file; default: the one that ltrain takes");
  command->callback([name, file] { print_version(*name, *file); });
}

}  // namespace ltrain::app
