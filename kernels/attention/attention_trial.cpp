#include "kernels/attention/attention_trial.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "kernels/base/cache_folder.h"
#include "kernels/base/error.h"
#include "kernels/base/printable.h"
#include "kernels/base/run_child.h"
#include "kernels/base/version.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/rng.h"

namespace ltrain {
namespace {

std::mutex program_mutex;
std::vector<std::string> program;
double program_seconds = 60;

constexpr const char* kFirstLine = "ltrain attention trial 1";
constexpr std::string_view kUsed = "used";

/// The file of the program that runs, as a build that is made again has another.
std::string build_line() {
  struct stat file = {};
  ::stat("/proc/self/exe", &file);
  return fmt::format("ltrain {}, {} bytes of {}.{:09}", version(), file.st_size, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec);
}

/// What a verdict is good for.
std::string subject(DType t, int64_t head_dim) {
  const DeviceInfo card = device_info(DeviceKind::cuda);
  return fmt::format("{}, driver {}, {}, {} of head dim {}", printable(card.name),
                     driver_version(DeviceKind::cuda), build_line(), dtype_name(t), head_dim);
}

std::string path_of(const std::string& about) {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : fmt::format("{}/attention-{:016x}.txt", folder, hash_name(about));
}

/// Lines: what the file is, what it is about, the verdict. Nothing where it is any other file.
std::optional<std::string> read_verdict(const std::string& path, const std::string& about) {
  std::ifstream in(path);
  std::string first, second, verdict, more;
  if (!std::getline(in, first) || !std::getline(in, second) || !std::getline(in, verdict) ||
      std::getline(in, more) || first != kFirstLine || second != about || verdict.empty())
    return std::nullopt;
  return verdict == kUsed ? "" : printable(verdict);
}

/// Where it cannot be kept, the next process tries again.
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

}  // namespace

void set_attention_trial(std::vector<std::string> command, double seconds) {
  const std::lock_guard lock(program_mutex);
  program = std::move(command), program_seconds = seconds;
}

std::optional<std::string> try_attention(DType t, int64_t head_dim, int gpu) {
  std::vector<std::string> command;
  double seconds = 0;
  {
    const std::lock_guard lock(program_mutex);
    command = program, seconds = program_seconds;
  }
  if (command.empty()) return std::nullopt;
  const std::string about = subject(t, head_dim), path = path_of(about);
  if (!path.empty())
    if (std::optional<std::string> known = read_verdict(path, about)) return known;
  for (const std::string& word : {std::string(dtype_name(t)), std::to_string(head_dim), std::to_string(gpu)})
    command.push_back(word);
  const ChildEnd end = run_child(command, seconds);
  const bool exited = end.how == ChildEnd::How::exited;
  std::string why;
  const std::string said = printable(end.output.substr(0, end.output.find_last_not_of("\n") + 1), 500);
  if (exited && end.number == kTrialDiffers)
    why = "they differ from the mma kernels: " + said;
  else if (!exited || end.number != kTrialAgrees)
    why = fmt::format("the process that tried them {}{}{}", end.text, said.empty() ? "" : ": ", said);
  // Other ends are no finding about the kernels: no memory on the GPU, no processes.
  const bool finding = end.how == ChildEnd::How::too_long || end.how == ChildEnd::How::signalled ||
                       (exited && (end.number == kTrialAgrees || end.number == kTrialDiffers));
  if (!finding || path.empty()) return why;
  if (!why.empty()) why += fmt::format(" (kept in {}: without the file they are tried again)", path);
  keep_verdict(path, about, why);
  return why;
}

}  // namespace ltrain
