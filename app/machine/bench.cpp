// ltrain bench: measures this machine and writes the profile that prices plans.
#include <unistd.h>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "app/commands.h"
#include "app/machine/bench_links.h"
#include "base/json/json.h"
#include "kernels/tensor/device.h"
#include "runtime/bench/bench.h"
#include "runtime/data/build.h"
#include "runtime/launch/cgroup.h"
#include "runtime/launch/job.h"
#include "runtime/launch/supervisor/supervisor.h"
#include "runtime/machines/matmul_peak.h"
#include "runtime/recipe/recipe.h"

namespace ltrain::app {
namespace {

struct BenchOptions {
  std::string folder, device = "cpu", output, worker_file;
  std::vector<std::string> precisions{"bf16"};
  bool json = false, links = false;
};

void say(const std::string& line) { std::fprintf(stderr, "bench: %s\n", line.c_str()); }

/// Rank of the collective measurements. Rank 0 writes the results to a file.
void run_worker(const std::string& file) {
  auto job = Job::join();
  try {
    job->section("bench");
    const auto samples = bench_collectives(*job);
    if (job->info().rank == 0) {
      std::vector<int> all;
      for (int r = 0; r < job->info().world_size; ++r) all.push_back(r);
      nlohmann::json j{{"samples", nlohmann::json::array()},
                       {"transport", transport_name(job->transport_of("world", all))}};
      for (const CollectiveSample& s : samples)
        j["samples"].push_back({s.op, s.ranks, s.bytes, s.seconds, s.cpu_seconds});
      std::ofstream(file) << j.dump();
    }
  } catch (const std::exception& e) {
    job->fail(e);
  }
  job->finish();
}

/// TMPDIR if it is a folder, else /tmp.
std::string temporary_folder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : folder.string();
}

void measure_collectives(MachineProfile& profile) {
  const std::string file = fmt::format("{}/ltrain-bench-{}.json", temporary_folder(), ::getpid());
  SuperviseOptions s;
  s.ranks = 2;
  s.threads_per_rank = 1;
  s.arguments = {"bench", "--worker", file};
  s.saves = false;
  if (const int code = supervise(s); code != 0) throw CLI::RuntimeError(code);
  std::ifstream in(file);
  const auto j = nlohmann::json::parse(in);
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  profile.transport = j.at("transport");
  for (const auto& v : j.at("samples"))
    profile.collectives.push_back({v.at(0), v.at(1), v.at(2), v.at(3), v.at(4)});
}

/// Memory of a rank's process beyond the plan: peak minus plan of a small run.
int64_t measure_process() {
  namespace fs = std::filesystem;
  const std::string folder =
      fmt::format("{}/ltrain-bench-{}", fs::temp_directory_path().string(), ::getpid());
  struct Cleanup {
    std::string folder;
    ~Cleanup() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
  } cleanup{folder};
  fs::create_directories(folder);
  {
    std::ofstream text(folder + "/text.txt");
    for (int i = 0; i < 20000; ++i) text << "line " << i << " of some text to measure by\n";
  }
  data::BuildOptions build;
  build.inputs = {folder + "/text.txt"};
  build.output = folder + "/text";
  build.workers = 1;
  data::build_dataset(build);
  const std::string recipe = folder + "/r.yaml";
  std::ofstream(recipe) << fmt::format(
      "name: bench\noutput_dir: {0}/run\nmodel: {{vocab_size: 257, hidden_size: 256, intermediate_size: 688, "
      "num_hidden_layers: 4, num_attention_heads: 4, max_position_embeddings: 256}}\nparallel: {{data: 2, "
      "zero_stage: 1}}\ndata: {{train: [{{path: {0}/text}}], seq_length: 256}}\ntrain: {{micro_batch_size: "
      "2, global_batch_size: 4, train_steps: 3}}\ncheckpoint: {{save_interval: 2}}\n"
      "launch: {{threads_per_rank: 1}}\n",
      folder);
  SuperviseOptions s;
  s.ranks = 2;
  s.threads_per_rank = 1;
  s.run_dir = folder + "/run";
  s.settings = job_settings(load_recipe(recipe, {}));
  s.arguments = {"run", recipe};
  s.variables = {{"LTRAIN_QUIET", "1"}};
  s.saves = false;
  if (const int code = supervise(s); code != 0) throw CLI::RuntimeError(code);
  int64_t process = 0;
  for (int rank = 0; rank < 2; ++rank) {
    std::ifstream in(fmt::format("{}/run/logs/usage-{:05d}.json", folder, rank));
    const auto j = nlohmann::json::parse(in);
    const int64_t known = j.at("plan_total_bytes").get<int64_t>() - default_profile().process_bytes;
    process = std::max(process, j.at("peak_rss_bytes").get<int64_t>() - known);
  }
  return process;
}

/// Keeps network figures that somebody added to the profile, because one machine cannot measure them.
void keep_network(MachineProfile& profile, const std::string& path) {
  try {
    const MachineProfile before = load_profile(path);
    profile.network_given = before.network_given;
    profile.network_bytes_per_second = before.network_bytes_per_second;
    profile.network_seconds = before.network_seconds;
  } catch (const Error&) {  // no profile, or one of another build: replace it
  }
}

void print_json(const MachineProfile& profile, const std::string& path) {
  nlohmann::ordered_json j{{"schema", "ltrain.bench.v1"},
                           {"profile", path},
                           {"machine", profile.machine},
                           {"cores", profile.cores},
                           {"transport", profile.transport}};
  if (profile.sparse_matmul_speedup > 0) j["sparse_matmul_speedup"] = profile.sparse_matmul_speedup;
  for (const RankProfile& r : profile.ranks) j["peak_flops"][std::to_string(r.threads)] = r.peak_flops;
  std::printf("%s\n", j.dump().c_str());
}

/// Prints what was measured of the CPU.
void print_text(const MachineProfile& profile) {
  std::printf("%s, %d cores\n", profile.machine.c_str(), profile.cores);
  for (const RankProfile& r : profile.ranks)
    for (const auto& [type, flops] : r.peak_flops)
      std::printf("  %d thread%s a rank, %-4s  %8.1f GFLOP/s in the fastest matmul\n", r.threads,
                  r.threads == 1 ? " " : "s", type.c_str(), flops / 1e9);
  for (const CollectiveSample& s : profile.collectives)
    if (s.bytes > 1e6 || s.bytes < 300)
      std::printf("  %-15s %10.0f bytes, %d ranks: %9.3f ms through %s\n", s.op.c_str(), s.bytes, s.ranks,
                  s.seconds * 1e3,
                  transport_text(profile.transport == "shm" ? Transport::shm : Transport::gloo));
  std::printf("  files: %.2f GB/s written, %.2f GB/s read\n", profile.offload_write_bytes_per_second / 1e9,
              profile.offload_read_bytes_per_second / 1e9);
  std::printf("  fp32 matmuls that skip the zeros of 2:4 weights: %.2f times the dense speed\n",
              profile.sparse_matmul_speedup);
  std::printf("  a rank takes %.1f MiB beside what its plan lists\n", profile.process_bytes / 1048576.0);
}

void bench_this_card(const BenchOptions& o) {
  if (const std::string missing = missing_for(DeviceKind::cuda); !missing.empty())
    fail(ExitCode::usage, "bench --device cuda: {}", missing);
  use_device(DeviceKind::cuda, 0);
  MachineProfile profile = bench_card(say, o.precisions);
  bench_host_memory(profile);
  const std::string path = o.output.empty() ? card_profile_path(profile.machine) : o.output;
  save_profile(profile, path);
  if (o.json) return print_json(profile, path);
  std::printf("%s\n", profile.machine.c_str());
  for (const auto& [name, samples] : profile.ranks.at(0).ops) {
    double fastest = 0;
    const bool product = name.starts_with("matmul") || name.starts_with("attention");
    for (const OpSample& s : samples)
      if (s.seconds > 0) fastest = std::max(fastest, (product ? s.flops : s.bytes) / s.seconds);
    std::printf("  %-32s %8.1f %s at its fastest\n", name.c_str(), fastest / (product ? 1e12 : 1e9),
                product ? "TFLOP/s" : "GB/s");
  }
  std::printf("  %-32s %8.1f GB/s by the host's cores\n", "adamw/f32",
              profile.host_memory_bytes_per_second * 1e-9);
  std::printf("written to %s\n", path.c_str());
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* command = app.add_subcommand(
      "bench", "Measure this machine (half a minute) and write the profile that `plan` uses");
  auto o = std::make_shared<BenchOptions>();
  command->add_option(
      "-o,--output", o->output,
      "Where the profile goes, default: where `plan` looks; with --links, where the links go");
  command->add_option("--folder", o->folder, "That offload.*.path will name; default: the temporary folder");
  command->add_option("--device", o->device, "cpu: this machine; cuda: its first GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      ->add_option("--precision", o->precisions,
                   "Precisions in which the ops of a GPU are timed, as the recipe's key, e.g. bf16,fp32; "
                   "default: bf16")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  auto* const links = command->add_flag("--links", o->links,
                                        "Measure the links between the ranks of a job (start it with srun, "
                                        "torchrun or mpirun) and name the slow "
                                        "ones; --output writes them for `plan --links`");
  for (const char* of_profiles : {"--folder", "--precision"}) links->excludes(of_profiles);
  command->add_option("--worker", o->worker_file)->group("");
  command->add_flag("--json", o->json, "Print the profile's path and peaks, or the links, for programs");
  command->footer("Example: ltrain bench --output profile.json");
  command->callback([o] {
    if (!o->worker_file.empty()) return run_worker(o->worker_file);
    if (o->links)
      return bench_links(o->device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu, o->output, o->json);
    if (o->device == "cuda") return bench_this_card(*o);
    MachineProfile profile;
    profile.machine = cpu_model_name();
    profile.cores = usable_cores();
    profile.measured = true;
    measure_collectives(profile);  // before threads exist, because it forks
    profile.process_bytes = measure_process();
    bench_sparse_matmul(profile);  // before the disk, whose writes go on beside what follows
    bench_disk(profile, o->folder.empty() ? temporary_folder() : o->folder);
    for (int threads = 1; threads <= profile.cores; threads *= 2)
      profile.ranks.push_back(bench_rank(threads, profile.cores, say));
    const std::string path = o->output.empty() ? default_profile_path() : o->output;
    keep_network(profile, path);
    save_profile(profile, path);
    if (o->json) return print_json(profile, path);
    print_text(profile);
    std::printf("written to %s\n", path.c_str());
  });
}

}  // namespace ltrain::app
