#include "app/model_layout.h"

#include <omp.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/printable.h"
#include "runtime/launch/cgroup.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/supervisor/supervisor.h"

namespace ltrain::app {
namespace {

constexpr int64_t kMostRanks = 1 << 16;

struct Axis {
  const char* name;
  int64_t ModelLayout::*ranks;
};
constexpr std::array<Axis, 4> kAxes = {{{"data", &ModelLayout::data},
                                        {"tensor", &ModelLayout::tensor},
                                        {"pipeline", &ModelLayout::pipeline},
                                        {"expert", &ModelLayout::expert}}};

void set_axis(ModelLayout& layout, const std::string& text) {
  const size_t at = text.find('=');
  const std::string name = text.substr(0, at), value = at == std::string::npos ? "" : text.substr(at + 1);
  for (const Axis& axis : kAxes) {
    if (name != axis.name) continue;
    size_t end = 0;
    int64_t n = 0;
    try {
      n = std::stoll(value, &end);
    } catch (const std::exception&) {
      end = 0;
    }
    if (end != value.size() || value.empty() || n < 1 || n > kMostRanks)
      fail(ExitCode::usage, "--parallel {}: needs a number of ranks from 1 to {}, such as {}=2",
           printable(text), kMostRanks, name);
    layout.*axis.ranks = n;
    return;
  }
  fail(ExitCode::usage, "--parallel {}: needs data, tensor, pipeline or expert, as in tensor=2",
       printable(text));
}

/// Arguments of this process, without the program's name.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> words;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find('\0', at);
    words.push_back(all.substr(at, end - at));
    at = end == std::string::npos ? all.size() : end + 1;
  }
  if (words.empty()) fail(ExitCode::internal, "/proc/self/cmdline is empty");
  words.erase(words.begin());
  return words;
}

std::string settings_of(const std::vector<std::string>& arguments) {
  std::string text;
  for (const std::string& a : arguments) text += "argument: " + printable(a, 1 << 16) + "\n";
  return text;
}

void run_rank(const std::vector<std::string>& arguments, const std::function<ExitCode(Job*)>& body) {
  JobOptions options;
  options.settings = settings_of(arguments);
  auto job = Job::join(options);
  ExitCode code = ExitCode::done;
  try {
    if (job->info().rank != 0 && !std::freopen("/dev/null", "w", stdout))
      fail(ExitCode::internal, "/dev/null cannot be opened");
    code = body(job.get());
  } catch (const std::exception& e) {
    job->fail(e);
  }
  job->finish(code);
  if (code != ExitCode::done) throw CLI::RuntimeError(static_cast<int>(code));
}

}  // namespace

void add_layout(CLI::App& command, ModelLayout& to) {
  command
      .add_option_function<std::vector<std::string>>(
          "--parallel",
          [&to](const std::vector<std::string>& given) {
            for (const std::string& list : given) {
              std::istringstream words(list);
              for (std::string word; std::getline(words, word, ',');) set_axis(to, word);
            }
          },
          "Over several ranks: tensor=2, pipeline=2, data=2,expert=2; starts one process for each, or joins "
          "those of Slurm, torchrun, MPI")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void on_ranks(const SessionOptions& session, int threads, const std::function<ExitCode(Job*)>& body) {
  const ModelLayout& layout = session.layout;
  const int all = threads > 0 ? threads : usable_cores();
  if (layout.ranks() == 1) {
    if (layout.expert > 1)
      fail(
          ExitCode::usage,
          "--parallel expert={}: experts are cut over data ranks; give data={} or a multiple of it beside it",
          layout.expert, layout.expert);
    omp_set_num_threads(all);
    if (const ExitCode code = body(nullptr); code != ExitCode::done)
      throw CLI::RuntimeError(static_cast<int>(code));
    return;
  }
  const std::vector<std::string> arguments = own_arguments();
  const LaunchEnvironment e = detect_environment(process_variables());
  const int ranks = static_cast<int>(layout.ranks());
  if (e.kind == LaunchEnvironment::Kind::rank) {
    if (e.world_size != ranks)
      fail(ExitCode::usage, "--parallel makes {} ranks, and {} started {}", ranks, e.source, e.world_size);
    omp_set_num_threads(std::max(1, all / std::max(1, e.local_size)));
    return run_rank(arguments, body);
  }
  if (e.kind == LaunchEnvironment::Kind::node && e.nodes > 1)
    fail(ExitCode::usage, "--parallel over {} nodes: start one process for each rank, by srun or torchrun",
         e.nodes);
  check_layout(session);
  SuperviseOptions s;
  s.ranks = ranks;
  s.arguments = arguments;
  s.settings = settings_of(arguments);
  s.threads_per_rank = std::max(1, all / ranks);
  s.shares_stdout = true;
  if (const int code = supervise(s); code != 0) throw CLI::RuntimeError(code);
}

}  // namespace ltrain::app
