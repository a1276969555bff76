// `ltrain doctor`: a table of this machine's hardware and software, and of problems for a run.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/core.h>
#include <gloo/config.h>
#include <oneapi/dnnl/dnnl.h>
#include <xxhash.h>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "app/machine/doctor_libraries.h"
#include "base/cpu_isa.h"
#include "base/error.h"
#include "base/json/json.h"
#include "kernels/attention/attention_choice.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/storage/io_ring.h"
#include "kernels/tensor/device.h"
#include "parallel/comm/socket.h"
#include "parallel/shm/communicator_shm.h"
#include "runtime/check/check_job.h"
#include "runtime/launch/cgroup.h"
#include "runtime/launch/environment/environment.h"
#include "runtime/launch/supervisor/supervisor.h"
#include "runtime/launch/topology.h"
#include "runtime/launch/transport.h"
#include "runtime/plan/rank_map.h"

namespace ltrain::app {
namespace {

enum class State { ok, warn, fail };
constexpr const char* kStateNames[] = {"ok", "warn", "FAIL"};

struct Row {
  State state = State::ok;
  std::string what, found, advice;  // advice: set if not ok
};

class Table {
 public:
  void ok(std::string what, std::string found) {
    rows_.push_back({State::ok, std::move(what), std::move(found), ""});
  }
  void add(State s, std::string what, std::string found, std::string advice) {
    rows_.push_back({s, std::move(what), std::move(found), s == State::ok ? "" : std::move(advice)});
  }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::vector<Row> rows_;
};

std::string gib(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.1f} MiB", bytes / 1048576.0)
                     : fmt::format("{:.1f} GiB", bytes / 1073741824.0);
}

std::string field_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with(key)) {
      const size_t colon = line.find(':');
      const size_t begin =
          colon == std::string::npos ? std::string::npos : line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  return "";
}

void processor(Table& t) {
  utsname system{};
  ::uname(&system);
  t.ok("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  std::string model = field_of("/proc/cpuinfo", "model name");
  if (model.empty()) model = field_of("/proc/cpuinfo", "CPU implementer");
  t.ok("cpu", model.empty() ? "unknown model" : model);
  try {
    cpu_isa();
    t.ok("instruction set", cpu_isa_name());
  } catch (const Error& e) {
    t.add(State::fail, "instruction set", e.what(), "use a machine of the last ten years");
  }
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  t.ok("cores", fmt::format("{} usable of {} online", usable_cores(), online));
  if (const char* threads = std::getenv("OMP_NUM_THREADS"))
    t.add(std::atoi(threads) <= usable_cores() ? State::ok : State::warn, "OMP_NUM_THREADS", threads,
          "more threads than cores slow every kernel down: unset it, or ask for fewer");
}

void memory(Table& t) {
  const double total = std::atof(field_of("/proc/meminfo", "MemTotal").c_str()) * 1024;
  const double available = std::atof(field_of("/proc/meminfo", "MemAvailable").c_str()) * 1024;
  t.add(available > 1e9 ? State::ok : State::warn, "memory",
        fmt::format("{} available of {}", gib(available), gib(total)),
        "less than 1 GB is free: a run may be killed for memory");
  const auto limit = cgroup_limits().memory_bytes;
  t.ok("memory limit of the cgroup", limit ? gib(static_cast<double>(*limit)) : "none");
  auto rlimit_row = [&](const char* what, int which, rlim_t least, bool bytes, const char* advice) {
    rlimit r{};
    ::getrlimit(static_cast<__rlimit_resource>(which), &r);
    const std::string text = r.rlim_cur == RLIM_INFINITY ? "unlimited"
                             : bytes                     ? gib(static_cast<double>(r.rlim_cur))
                                                         : std::to_string(r.rlim_cur);
    t.add(r.rlim_cur >= least ? State::ok : State::warn, what, text, advice);
  };
  rlimit_row("open files (ulimit -n)", RLIMIT_NOFILE, 1024, false,
             "every rank keeps a connection to every other: ulimit -n 65536");
  rlimit_row("locked memory (ulimit -l)", RLIMIT_MEMLOCK, 64 << 10, true,
             "GPU runs pin memory: ulimit -l unlimited");
  rlimit_row("address space (ulimit -v)", RLIMIT_AS, rlim_t{16} << 30, true,
             "large models map more: ulimit -v unlimited");
}

void storage_row(Table& t, const char* what, const std::string& path, double least, const char* advice) {
  struct statvfs s {};
  if (::statvfs(path.c_str(), &s) != 0) {
    t.add(State::warn, what, path + ": " + std::strerror(errno), advice);
    return;
  }
  const double room = static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
  const bool writable = ::access(path.c_str(), W_OK) == 0;
  t.add(writable && room >= least ? State::ok : State::warn, what,
        fmt::format("{}: {} free{}", path, gib(room), writable ? "" : ", not writable"), advice);
}

void libraries(Table& t) {
  const dnnl_version_t* dnnl = dnnl_version();
  t.ok("oneDNN", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch));
  t.ok("Gloo", fmt::format("{}.{}.{}", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR, GLOO_VERSION_PATCH));
  t.ok("fmt, xxhash", fmt::format("{}.{}.{}, {}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                                  FMT_VERSION % 100, XXH_versionNumber()));
}

/// "64, 128"; several evenly spaced dims as "32 to 256 by 8".
std::string dims_text(const std::vector<int64_t>& dims) {
  bool even = dims.size() > 4;
  for (size_t i = 2; i < dims.size(); ++i) even = even && dims[i] - dims[i - 1] == dims[1] - dims[0];
  return even ? fmt::format("{} to {} by {}", dims.front(), dims.back(), dims[1] - dims[0])
              : fmt::format("{}", fmt::join(dims, ", "));
}

/// Head dims with fast attention kernels on this GPU.
void attention(Table& t) {
  const auto dims_of = [](AttentionKernel kernel) {
    AttentionTraits traits;
    traits.type = DType::bf16, traits.capability = device_info(DeviceKind::cuda).capability;
    std::vector<int64_t> dims;
    for (traits.head_dim = 1; traits.head_dim <= 256; ++traits.head_dim)
      if (attention_obstacle(kernel, traits).empty()) dims.push_back(traits.head_dim);
    return dims_text(dims);
  };
  std::string text =
      "native kernels; on tensor cores: bf16 and fp16, head dims " + dims_of(AttentionKernel::mma);
  if (const std::string dims = dims_of(AttentionKernel::wgmma); !dims.empty())
    text += fmt::format("; {} as Hopper wants it (wgmma), without dropout", dims);
  if (const char* asked = std::getenv("LTRAIN_ATTENTION"); asked && *asked)
    text += fmt::format(" (LTRAIN_ATTENTION={})", asked);
  t.ok("attention", text);
}

/// Checks the GPU. Its libraries are loaded at run time and are optional.
void gpu(Table& t) {
  using Int = int (*)(int*);
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  std::string version = "not found (CPU training needs none)";
  if (driver) {
    int number = 0, count = 0;
    auto get_version = reinterpret_cast<Int>(::dlsym(driver, "cuDriverGetVersion"));
    auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
    auto get_count = reinterpret_cast<Int>(::dlsym(driver, "cuDeviceGetCount"));
    if (get_version) get_version(&number);
    const int status = init ? init(0) : -1;
    if (status == 0 && get_count) get_count(&count);
    version = fmt::format("supports CUDA {}.{}, {} device{}", number / 1000, number % 1000 / 10, count,
                          count == 1 ? "" : "s");
    if (status != 0) version += fmt::format(" (cuInit returned {})", status);
    t.add(status == 0 ? State::ok : State::warn, "GPU driver", version,
          "the driver library is there but does not start: see nvidia-smi and dmesg");
  } else {
    t.ok("GPU driver", version);
  }
  if (const std::string missing = missing_for(DeviceKind::cuda); missing.empty()) {
    const int count = device_count(DeviceKind::cuda);
    t.ok("device: cuda",
         fmt::format("{} GPU{} ({})", count, count == 1 ? "" : "s", device_info(DeviceKind::cuda).name));
    attention(t);
  } else {
    t.ok("device: cuda", "not here: " + missing);
  }
  const std::string no_cudnn = cudnn_missing();
  t.add(no_cudnn.empty() || !driver ? State::ok : State::warn, "cuDNN's attention",
        no_cudnn.empty() ? cudnn_version() + ", compared with native kernels when a run starts"
                         : "not here: " + no_cudnn,
        "runs use native kernels; folders of libcudnn and libnvrtc go into LTRAIN_CUDA_LIBS");
  const std::string loaded = field_of("/proc/driver/nvidia/version", "NVRM version");
  if (!loaded.empty()) t.ok("GPU kernel module", loaded);
  for (const FoundLibrary& l : cuda_libraries()) {
    if (l.path.empty()) {
      t.add(driver ? State::warn : State::ok, l.name, "not here: " + l.why,
            "put its folder into LTRAIN_CUDA_LIBS or LD_LIBRARY_PATH");
      continue;
    }
    const bool newest = l.newer_path.empty();
    t.add(newest ? State::ok : State::warn, l.name,
          fmt::format(
              "{}, {}{}", l.version, l.path,
              newest ? "" : fmt::format("; {} in {} is newer and not taken", l.newer_version, l.newer_path)),
          "a folder in LTRAIN_CUDA_LIBS wins over the others");
  }
  for (const char* name :
       {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"})
    if (const char* value = std::getenv(name)) t.ok(name, value);
}

using Json = nlohmann::json;

Json card_json(const PciDevice& d) {
  return {{"bus_id", d.bus_id}, {"numa_node", d.numa < 0 ? Json() : Json(d.numa)}, {"cores", d.cores}};
}

/// Cores and network cards near each GPU, as rows and as JSON.
Json topology(Table& t) {
  Json all{{"numa_nodes", Json::array()}, {"network_cards", Json::array()}, {"gpus", Json::array()}};
  std::string nodes, cards;
  for (const NumaNode& n : numa_nodes()) {
    nodes += fmt::format("{}{}: cores {}", nodes.empty() ? "" : "; ", n.id, cores_text(n.cores));
    all["numa_nodes"].push_back({{"id", n.id}, {"cores", n.cores}});
  }
  t.ok("NUMA nodes", nodes.empty() ? "the system names none" : nodes);
  const std::vector<NetworkCard> network = network_cards();
  for (const NetworkCard& c : network) {
    cards += fmt::format("{}{} at {}{}", cards.empty() ? "" : ", ", c.name, c.device.bus_id,
                         c.device.numa < 0 ? "" : fmt::format(" (NUMA node {})", c.device.numa));
    all["network_cards"].push_back(card_json(c.device));
    all["network_cards"].back()["name"] = c.name;
  }
  t.ok("network cards", cards.empty() ? "none on a PCI bus" : cards);
  if (!missing_for(DeviceKind::cuda).empty()) return all;
  const std::vector<std::string> places = device_places(DeviceKind::cuda);
  const std::vector<std::vector<bool>> linked = device_links(DeviceKind::cuda);
  std::vector<int> numa;
  for (size_t i = 0; i < places.size(); ++i) {
    const PciDevice card = pci_device(places[i]);
    numa.push_back(card.numa);
    const std::vector<std::string> nearest = nearest_cards(card, network);
    std::string near;
    for (const std::string& name : nearest) near += (near.empty() ? "" : ", ") + name;
    t.ok(
        fmt::format("GPU {}", i),
        fmt::format("{}, NUMA node {}, cores {}, nearest network card {}", card.bus_id,
                    card.numa < 0 ? "not known" : std::to_string(card.numa),
                    card.cores.empty() ? "not known" : cores_text(card.cores), near.empty() ? "none" : near));
    all["gpus"].push_back(card_json(card));
    all["gpus"].back()["nearest_network_cards"] = nearest;
  }
  if (places.size() < 2) return all;
  const std::vector<std::vector<int>> joined = link_groups(linked);
  const std::vector<int> ranks = device_order(linked, numa);
  std::string groups, order;
  for (const std::vector<int>& g : joined)
    groups += fmt::format("{}{}", groups.empty() ? "" : "; ", cores_text(g));
  for (const int i : ranks) order += fmt::format("{}{}", order.empty() ? "" : ", ", i);
  t.ok("GPUs that NVLink joins", groups);
  t.ok("GPUs of local ranks 0, 1, ...", order);
  all["nvlink_groups"] = joined;
  all["gpus_of_local_ranks"] = ranks;
  return all;
}

/// File I/O method of offload.
void files(Table& t) {
  const char* what = "offload to files";
  try {
    std::string why;
    const bool ring = make_io_ring(4, why) != nullptr;
    t.ok(what, ring ? "io_uring" : "pread and pwrite (" + why + ")");
  } catch (const Error& e) {
    t.add(State::fail, what, e.what(), "unset LTRAIN_IO");
  }
}

/// Transport between the ranks of this node.
void transport(Table& t) {
  const char* what = "used between ranks of a node";
  try {
    const TransportChoice choice = transport_choice();
    const std::string why = shm_unavailable();
    const char* told = choice == TransportChoice::automatic ? "" : " (LTRAIN_TRANSPORT)";
    const State state = why.empty() || choice == TransportChoice::gloo ? State::ok
                        : choice == TransportChoice::shm               ? State::fail
                                                                       : State::warn;
    const Transport used = planned_transport({0, 1}, 2);
    t.add(state, what,
          state == State::ok ? fmt::format("{}{}", transport_text(used), told)
                             : fmt::format("{}{}; shared memory: {}", transport_text(used), told, why),
          choice == TransportChoice::shm ? "unset LTRAIN_TRANSPORT=shm" : "Gloo works, and is slower");
  } catch (const Error& e) {
    t.add(State::fail, what, e.what(), "unset LTRAIN_TRANSPORT");
  }
}

void network(Table& t, const LaunchEnvironment* e) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    t.add(State::warn, "network", std::strerror(errno), "ranks on several nodes need an interface");
    return;
  }
  std::string all, first;
  for (ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (i->ifa_addr->sa_family == AF_INET)
      ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof(text));
    else if (i->ifa_addr->sa_family == AF_INET6)
      ::inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(i->ifa_addr)->sin6_addr, text, sizeof(text));
    else
      continue;
    if (i->ifa_addr->sa_family == AF_INET6 && std::string(text).starts_with("fe80")) continue;
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", i->ifa_name, text);
    if (first.empty() && !is_loopback(text)) first = i->ifa_name;
  }
  ::freeifaddrs(list);
  t.add(all.empty() ? State::fail : State::ok, "network interfaces", all.empty() ? "none is up" : all,
        "ranks talk over TCP, at least over lo: ip link set lo up");
  const bool several = e && e->nodes > 1;
  t.add(several && first.empty() ? State::fail : State::ok, "used between nodes",
        several ? "the one that reaches the coordinator (launch.interface overrides)" : "none: one node",
        "several nodes need an interface other than lo");
  transport(t);
  files(t);
  std::string error;
  const auto addresses = resolve(host_name(), &error);
  std::string joined = error;
  bool loopback = !addresses.empty();
  for (const auto& a : addresses)
    joined += (joined.empty() ? "" : ", ") + a, loopback = loopback && is_loopback(a);
  t.add(several && (addresses.empty() || loopback) ? State::warn : State::ok, "this host's name",
        fmt::format("{} is {}", host_name(), joined),
        "other nodes may be told a loopback address: set LTRAIN_COORDINATOR=address:port, or fix /etc/hosts");
  std::string why;
  int port = 0;
  const Fd listener = listen_on("127.0.0.1", {0}, &port, &why);
  t.add(listener.valid() ? State::ok : State::fail, "listening on 127.0.0.1",
        listener.valid() ? "works" : why, "ranks cannot find each other without it");
}

void launcher(Table& t, std::optional<LaunchEnvironment>& found) {
  try {
    found = detect_environment(process_variables());
    const LaunchEnvironment& e = *found;
    std::string text =
        e.kind == LaunchEnvironment::Kind::rank ? fmt::format("rank {} of {} ({}), rank 0 on {}", e.rank,
                                                              e.world_size, e.source, e.coordinator_host)
        : e.kind == LaunchEnvironment::Kind::node
            ? fmt::format("node {} of {} ({}), first node {}", e.node, e.nodes, e.source, e.coordinator_host)
            : "none: `ltrain run` starts the ranks of this node";
    if (!e.note.empty()) text += "; " + e.note;
    t.ok("launcher", text);
  } catch (const Error& e) {
    t.add(State::fail, "launcher", e.what(), "unset or complete these variables");
  }
  if (const char* fault = std::getenv("LTRAIN_FAULT"))
    t.add(State::warn, "LTRAIN_FAULT", fault, "a fault is armed: unset LTRAIN_FAULT");
}

bool use_colour() {
  const char* no = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return ::isatty(1) && !(no && *no) && !(terminal && std::string(terminal) == "dumb");
}

void print_table(const Table& t) {
  size_t width = 0;
  for (const Row& r : t.rows()) width = std::max(width, r.what.size());
  const bool colour = use_colour();
  for (const Row& r : t.rows()) {
    const int s = static_cast<int>(r.state);
    const char* codes[] = {"\033[32m", "\033[33m", "\033[31m"};
    fmt::print("{}{:<4}{}  {:<{}}  {}\n", colour ? codes[s] : "", kStateNames[s], colour ? "\033[0m" : "",
               r.what, width, r.found);
    if (!r.advice.empty()) fmt::print("      {:<{}}  -> {}\n", "", width, r.advice);
  }
}

void print_json(const Table& t, bool good, const Json& places, const std::optional<RankMap>& map) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& r : t.rows())
    rows.push_back({{"state", r.state == State::ok     ? "ok"
                              : r.state == State::warn ? "warn"
                                                       : "fail"},
                    {"what", r.what},
                    {"found", r.found},
                    {"advice", r.advice}});
  nlohmann::json all{{"schema", "ltrain-doctor-1"}, {"ok", good}, {"rows", rows}, {"topology", places}};
  if (map) all["rank_map"] = nlohmann::json::parse(rank_map_json(*map));
  const std::string text = all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  fmt::print("{}\n", text);
}

/// Placement of a recipe's ranks.
RankMap map_of(const std::string& path, const std::vector<std::string>& overrides) {
  const Recipe given = load_with_notes(path, overrides);
  const Variables variables = process_variables();
  const JobSize size = planned_size(given, environment_for_plans(variables), gpus_for(given));
  const Recipe recipe = resolve(given, size.world, size.ranks_per_node);
  return map_ranks(recipe,
                   host_names((size.world + size.ranks_per_node - 1) / size.ranks_per_node, variables));
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto* command = app.add_subcommand("doctor", "Shows what this machine has, and what would stop a run");
  auto json = std::make_shared<bool>(false);
  auto directory = std::make_shared<std::string>(".");
  auto recipe = std::make_shared<std::string>();
  auto overrides = std::make_shared<std::vector<std::string>>();
  command->add_option("recipe", *recipe, "Also show where the ranks of this recipe would be");
  command->add_option("overrides", *overrides, "key=value");
  command->add_flag("--json", *json, "Machine-readable output");
  command->add_option("--output-dir", *directory, "Directory whose free space is shown")
      ->capture_default_str();
  command->footer(
      "Example: ltrain doctor recipes/quickstart.yaml\nExit code 0 unless a row is FAIL; then 64.");
  command->allow_extras();  // --section.key=value
  command->callback([json, directory, recipe, overrides, command] {
    take_extras(*command, *overrides);
    std::optional<RankMap> map;
    if (!recipe->empty()) map = map_of(*recipe, *overrides);
    Table t;
    std::optional<LaunchEnvironment> environment;
    processor(t);
    memory(t);
    storage_row(t, "shared memory", "/dev/shm", 64 << 20,
                "NCCL needs it on nodes with several GPUs: --shm-size=8g");
    storage_row(t, "output directory", *directory, 1e9, "checkpoints need room: choose another output_dir");
    storage_row(t, "temporary directory", std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp", 1e8,
                "set TMPDIR");
    libraries(t);
    gpu(t);
    const Json places = topology(t);
    launcher(t, environment);
    network(t, environment ? &*environment : nullptr);
    bool good = true;
    for (const Row& r : t.rows()) good = good && r.state != State::fail;
    if (*json)
      print_json(t, good, places, map);
    else
      print_table(t);
    if (map && !*json) std::fputs(("\n" + rank_map_text(*map)).c_str(), stdout);
    std::fflush(stdout);
    if (!good) throw CLI::RuntimeError(static_cast<int>(ExitCode::usage));
  });
}

}  // namespace ltrain::app
