#include "kernels/tensor/kernel_trial.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>

#include "base/cache_folder.h"
#include "base/error.h"
#include "base/printable.h"
#include "base/run_child.h"
#include "base/version.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/rng.h"
#include "kernels/tensor/stream_cuda.h"

namespace ltrain {
namespace {

std::mutex program_mutex;
std::vector<std::string> program;
double program_seconds = 60;

constexpr const char* kFirstLine = "ltrain kernel trial 1";
constexpr std::string_view kUsed = "used";

/// Identity of the running executable file. A rebuild changes it.
std::string build_line() {
  struct stat file = {};
  ::stat("/proc/self/exe", &file);
  return fmt::format("ltrain {}, {} bytes of {}.{:09}", version(), file.st_size, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec);
}

/// Conditions under which a verdict is valid.
std::string subject(const std::vector<std::string>& words) {
  const DeviceInfo card = device_info(DeviceKind::cuda);
  return fmt::format("{}, driver {}, {}, {}", printable(card.name), driver_version(DeviceKind::cuda),
                     build_line(), fmt::join(words, " "));
}

std::string path_of(const std::string& what, const std::string& about) {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : fmt::format("{}/{}-{:016x}.txt", folder, what, hash_name(about));
}

/// Reads a verdict file: a line with the format, a line with the subject, the verdict. Returns nothing for
/// any other file.
std::optional<std::string> read_verdict(const std::string& path, const std::string& about) {
  std::ifstream in(path);
  std::string first, second, verdict, more;
  if (!std::getline(in, first) || !std::getline(in, second) || !std::getline(in, verdict) ||
      std::getline(in, more) || first != kFirstLine || second != about || verdict.empty())
    return std::nullopt;
  return verdict == kUsed ? "" : printable(verdict);
}

/// Stores a verdict. If that fails, the next process tries again.
void keep_verdict(const std::string& path, const std::string& about, const std::string& why) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string next = fmt::format("{}.{}", path, ::getpid());
  std::ofstream out(next);
  out << kFirstLine << '\n' << about << '\n' << (why.empty() ? kUsed : why) << '\n';
  out.close();
  if (out) std::filesystem::rename(next, path, error);
  if (!out || error) std::filesystem::remove(next, error);
}

/// Verdict of the trial program, or nothing if no program was set.
std::optional<std::string> found_by_process(const TriedKernels& kernels) {
  std::vector<std::string> command;
  double seconds = 0;
  {
    const std::lock_guard lock(program_mutex);
    command = program, seconds = program_seconds;
  }
  if (command.empty()) return std::nullopt;
  const std::string about = subject(kernels.words), path = path_of(kernels.words.front(), about);
  if (!path.empty())
    if (std::optional<std::string> known = read_verdict(path, about)) return known;
  command.insert(command.end(), kernels.words.begin(), kernels.words.end());
  command.push_back(std::to_string(cuda::used_device()));
  const ChildEnd end = run_child(command, seconds);
  const bool exited = end.how == ChildEnd::How::exited;
  std::string why;
  const std::string said = printable(end.output.substr(0, end.output.find_last_not_of("\n") + 1), 500);
  if (exited && end.number == kTrialDiffers)
    why = fmt::format("they differ from {}: {}", kernels.against, said);
  else if (!exited || end.number != kTrialAgrees)
    why = fmt::format("the process that tried them {}{}{}", end.text, said.empty() ? "" : ": ", said);
  // Other ends say nothing about the kernels: no GPU memory, no processes.
  const bool finding = end.how == ChildEnd::How::too_long || end.how == ChildEnd::How::signalled ||
                       (exited && (end.number == kTrialAgrees || end.number == kTrialDiffers));
  if (!finding || path.empty()) return why;
  if (!why.empty()) why += fmt::format(" (kept in {}: without the file they are tried again)", path);
  keep_verdict(path, about, why);
  return why;
}

std::string found_out(Stream& s, const TriedKernels& kernels) {
  if (std::optional<std::string> found = found_by_process(kernels)) return *found;
  try {
    const std::string why = kernels.compare(s);
    return why.empty() ? "" : fmt::format("they differ from {}: {}", kernels.against, why);
  } catch (const std::exception& e) {
    return fmt::format("comparing them with {}: {}", kernels.against, e.what());
  }
}

std::mutex known_mutex;
std::map<std::vector<std::string>, std::string> known;

}  // namespace

void set_kernel_trial(std::vector<std::string> command, double seconds) {
  const std::lock_guard lock(program_mutex);
  program = std::move(command), program_seconds = seconds;
}

std::string why_unusable(Stream& s, const TriedKernels& kernels, bool* news) {
  if (news) *news = false;
  {
    const std::lock_guard lock(known_mutex);
    if (const auto at = known.find(kernels.words); at != known.end()) return at->second;
  }
  if (s.recording())
    return fmt::format("they were not compared with {} before a graph was recorded", kernels.against);
  // Runs without the lock: work that this stream waits for may need another rank of this process to go on.
  const std::string why = found_out(s, kernels);
  const std::lock_guard lock(known_mutex);
  const auto [at, added] = known.try_emplace(kernels.words, why);
  if (news) *news = added;
  return at->second;
}

void forget_kernel_trials() {
  const std::lock_guard lock(known_mutex);
  known.clear();
}

}  // namespace ltrain
