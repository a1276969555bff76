#include "runtime/machines/machine_profile.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json/json.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "kernels/storage/offload.h"
#include "kernels/tensor/device.h"
#include "runtime/files/strict_json.h"
#include "runtime/launch/cgroup.h"
#include "runtime/machines/cluster.h"
#include "runtime/machines/profile_file.h"
#include "runtime/recipe/read_file.h"

namespace ltrain {
namespace {

using nlohmann::json;
constexpr int kFormat = 1;
constexpr size_t kMaxProfileBytes = 16 << 20;

double log_distance(double a, double b) { return std::abs(std::log((a + 1) / (b + 1))); }

/// Work per second of the samples nearest to `op`, weighted by their distance in log size.
double nearest_rate(const std::vector<OpSample>& samples, const OpCost& op, bool by_flops) {
  std::vector<std::pair<double, double>> near;  // distance, rate
  for (const OpSample& s : samples) {
    const double work = by_flops ? s.flops : s.bytes;
    if (work <= 0 || s.seconds <= 0) continue;
    const double d = s.m > 0 && op.m > 0
                         ? log_distance(s.m, op.m) + log_distance(s.n, op.n) + log_distance(s.k, op.k)
                         : log_distance(work, by_flops ? op.flops : op.bytes);
    near.push_back({d, work / s.seconds});
  }
  if (near.empty()) return 0;
  std::sort(near.begin(), near.end());
  double weight = 0, sum = 0;
  for (size_t i = 0; i < near.size() && i < 3; ++i) {
    const double w = 1 / (near[i].first * near[i].first + 1e-4);
    weight += w;
    sum += w / near[i].second;  // seconds per unit of work add up, rates do not
  }
  return weight / sum;
}

json to_json(const OpSample& s) { return json::array({s.bytes, s.flops, s.seconds, s.m, s.n, s.k}); }

}  // namespace

const RankProfile& MachineProfile::for_threads(int threads) const {
  const RankProfile* best = nullptr;
  for (const RankProfile& r : ranks)
    if (!best || std::abs(r.threads - threads) < std::abs(best->threads - threads)) best = &r;
  LT_CHECK(best, "expected rank timings in a machine profile, got none");
  return *best;
}

std::vector<NetworkLevel> ProfileCost::levels_of(std::vector<NetworkLevel> levels, int ranks_on_host,
                                                 int world) {
  for (NetworkLevel& level : levels) {
    if (level.ranks > 0) continue;
    if (level.parts > 1) level.ranks = std::max<int64_t>(1, world / level.parts);
    if (&level == &levels.front()) level.ranks = ranks_on_host;  // links inside a node
  }
  return levels;
}

double ProfileCost::seconds(const OpCost& op) const {
  if (op.cls == OpClass::collective && device_) return device_->collective_seconds(op);
  if (op.cls == OpClass::collective)
    return std::max(collective_seconds(op, &CollectiveSample::seconds), network_seconds(op));
  if (op.cls == OpClass::offload) {
    double rate = op.name == kOffloadFetch || op.name == kFileFetch ? profile_.offload_read_bytes_per_second
                                                                    : profile_.offload_write_bytes_per_second;
    if (op.name == kHostUpdate) rate = profile_.host_memory_bytes_per_second;
    if (op.name == kFileFetch || op.name == kFileStore)
      rate = std::min(rate, MachineProfile::kFileBytesPerSecond);
    return op.bytes * std::max(1, ranks_on_host_) / rate;
  }
  if (device_ && profile_.priced_by_device()) return device_->op_seconds(op);
  const bool by_flops = op.cls == OpClass::matmul || op.cls == OpClass::attention;
  const double work = by_flops ? op.flops : op.bytes;
  if (work <= 0) return 0;
  std::string_view name = op.name;
  auto it = rank_.ops.find(fmt::format("{}/{}", name, dtype_name(op.dtype)));
  // Use the sample of the op without dropout, the native kernel instead of cuDNN's, the dense matmul.
  for (const std::string_view more : {"_dropout", "_cudnn", "_cudnn_deterministic", "_sparse"})
    if (it == rank_.ops.end() && op.name.ends_with(more)) {
      name.remove_suffix(more.size());
      it = rank_.ops.find(fmt::format("{}/{}", name, dtype_name(op.dtype)));
    }
  // Older profiles have no attention blocks, so use attention of full sequences.
  if (constexpr std::string_view block = "attention_block_"; it == rank_.ops.end() && name.starts_with(block))
    it = rank_.ops.find(fmt::format("attention_{}/{}", name.substr(block.size()), dtype_name(op.dtype)));
  if (it == rank_.ops.end()) {  // use the nearest op of the same kind
    it = rank_.ops.find(fmt::format("{}/{}", by_flops ? "matmul_nt" : "cast", dtype_name(op.dtype)));
    if (it == rank_.ops.end()) it = rank_.ops.find(by_flops ? "matmul_nt/f32" : "cast/f32");
    if (it == rank_.ops.end()) return 0;
  }
  const double rate = nearest_rate(it->second, op, by_flops);
  return rate > 0 ? work / rate * crowding_ / speedup(op) : 0;
}

double ProfileCost::speedup(const OpCost& op) const {
  const double with_half = profile_.sparse_matmul_speedup;
  return zeros_ && op.nonzeros < 1 && with_half > 0 ? sparse_speedup(with_half, op.nonzeros) : 1;
}

/// Network time. All ranks of a host take part in the same collective at once and share its network, unless
/// each has its own adapter.
double ProfileCost::network_seconds(const OpCost& op) const {
  if (op.network_bytes <= 0) return 0;
  const int phases = op.collective == "all_reduce" ? 2 : 1;
  const double rate = profile_.adapter_bytes_per_second > 0
                          ? profile_.adapter_bytes_per_second
                          : profile_.network_bytes_per_second / std::max(1, ranks_on_host_);
  return phases * profile_.network_seconds + op.network_bytes / rate;
}

double ProfileCost::stolen_seconds(const OpCost& op) const {
  if (device_) return device_->overlap_seconds(op);
  return cores_full_ ? collective_seconds(op, &CollectiveSample::cpu_seconds) : 0;
}

double ProfileCost::collective_seconds(const OpCost& op, double CollectiveSample::*what) const {
  if (op.group_size <= 1) return 0;
  // Interpolate in log size between measured sizes. For a group of another size, scale with the bytes that a
  // rank sends.
  const CollectiveSample *below = nullptr, *above = nullptr;
  const bool transfer = op.collective == "send" || op.collective == "recv";
  for (const CollectiveSample& s : profile_.collectives) {
    if (s.op != (transfer ? "send" : op.collective)) continue;
    if (s.bytes <= op.bytes && (!below || s.bytes > below->bytes)) below = &s;
    if (s.bytes >= op.bytes && (!above || s.bytes < above->bytes)) above = &s;
  }
  // All ranks wait for the data sent or received by one rank.
  const bool rooted = op.collective == "broadcast" || op.collective == "reduce";
  if (!below && !above)
    return profile_.link_seconds + (rooted ? op.bytes : op.wire_bytes) / profile_.link_bytes_per_second;
  double seconds;
  if (below && above && below != above) {
    const double t = std::log(op.bytes / below->bytes) / std::log(above->bytes / below->bytes);
    seconds = std::exp((1 - t) * std::log(below->*what + 1e-9) + t * std::log(above->*what + 1e-9));
  } else if (below) {
    seconds = below->*what * std::max(1.0, op.bytes / below->bytes);
  } else {
    seconds = above->*what;
  }
  if (transfer) return seconds;  // two ranks, independent of the group
  const CollectiveSample& used = below ? *below : *above;
  const auto share = [](int n) { return static_cast<double>(n - 1) / n; };
  // Samples have even parts. If a rank receives more than it sends, its receiving link is the bottleneck.
  if (op.received_bytes > op.wire_bytes && op.wire_bytes > 0) seconds *= op.received_bytes / op.wire_bytes;
  return seconds * share(op.group_size) / share(used.ranks);
}

MachineProfile builtin_profile(int cores) {
  // A modest AVX2 core: 60 GFLOP/s in matmul, 8 GB/s of memory traffic.
  MachineProfile p;
  p.cores = cores;
  for (int threads = 1; threads <= cores; threads *= 2) {
    RankProfile r;
    r.threads = threads;
    for (const char* type : {"f32", "bf16", "f16", "f64"}) {
      const double flops = (std::string(type) == "f64" ? 20e9 : 60e9) * threads;
      for (const char* op : {"matmul_nt", "matmul_nn", "matmul_tn", "matmul_tn_add"})
        r.ops[fmt::format("{}/{}", op, type)] = {{0, flops, 1, 0, 0, 0}};
      for (const char* op : kAttentionOps)
        r.ops[fmt::format("{}/{}", op, type)] = {{0, flops / 2, 1, 0, 0, 0}};
      r.ops[fmt::format("cast/{}", type)] = {{8e9 * threads, 0, 1, 0, 0, 0}};
      r.peak_flops[type] = flops;
    }
    p.ranks.push_back(std::move(r));
  }
  return p;
}

namespace {

/// Reads numbers of an untrusted profile, and checks the range of each.
struct ProfileReader {
  const std::string& path;

  double number(const json& j, const char* what, double least, double most) const {
    const double v = j.is_number() ? j.get<double>() : std::nan("");
    if (!(v >= least && v <= most))
      fail(ExitCode::usage, "profile {}: {} is {}, must be a number from {} to {}; run `ltrain bench` again",
           path, what, printable(j.dump(-1, ' ', false, json::error_handler_t::replace), 40), least, most);
    return v;
  }
  int64_t whole(const json& j, const char* what, double least, double most) const {
    const double v = number(j, what, least, most);
    if (v != std::floor(v))
      fail(ExitCode::usage, "profile {}: {} is {}, must be a whole number", path, what, v);
    return static_cast<int64_t>(v);
  }

  OpSample op_sample(const json& s) const {
    if (!s.is_array() || s.size() != 6)
      fail(ExitCode::usage, "profile {}: a sample of an op must be [bytes, flops, seconds, m, n, k]", path);
    OpSample o;
    o.bytes = number(s[0], "bytes of an op", 0, 1e18);
    o.flops = number(s[1], "flops of an op", 0, 1e24);
    o.seconds = number(s[2], "seconds of an op", 0, 1e6);
    o.m = whole(s[3], "m of an op", 0, 1e15), o.n = whole(s[4], "n of an op", 0, 1e15),
    o.k = whole(s[5], "k of an op", 0, 1e15);
    return o;
  }

  RankProfile rank(const json& j) const {
    RankProfile r;
    r.threads = static_cast<int>(whole(j.at("threads"), "threads", 1, 1 << 20));
    for (const auto& [name, samples] : j.at("ops").items())
      for (const json& s : samples) r.ops[name].push_back(op_sample(s));
    for (const auto& [name, v] : j.at("peak_flops").items())
      r.peak_flops[name] = number(v, "peak_flops", 0, 1e24);
    return r;
  }

  CollectiveSample collective(const json& j) const {
    CollectiveSample c;
    c.op = j.at("op").get<std::string>();
    c.ranks = static_cast<int>(whole(j.at("ranks"), "ranks of a collective", 2, 1 << 20));
    c.bytes = number(j.at("bytes"), "bytes of a collective", 1, 1e18);
    c.seconds = number(j.at("seconds"), "seconds of a collective", 0, 1e6);
    c.cpu_seconds = number(j.at("cpu_seconds"), "cpu_seconds of a collective", 0, 1e6);
    return c;
  }
};

}  // namespace

namespace {

/// Returns whether this machine has such a card.
bool is_here(const MachineProfile& p) {
  if (device_count(DeviceKind::cuda) == 0) return false;
  const std::string name = device_info(DeviceKind::cuda).name;
  return p.card.empty() ? p.machine == name : p.card == card_profile(name).card;
}

MachineProfile named_profile(const std::string& path_or_card) {
  std::error_code ignored;
  if (std::filesystem::exists(path_or_card, ignored)) return load_profile(path_or_card);
  std::string lower = path_or_card;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const DeviceHandle device = find_builtin_device(lower)) {
    MachineProfile p = profile_of_device(device);
    p.machine = device->name;
    return p;
  }
  const std::vector<std::string> cards = built_in_cards();
  const std::string near = nearest_word(lower, cards);
  fail(ExitCode::usage,
       "profile {}: there is no such file, and the cards built in are {}{}; `ltrain bench` writes a profile "
       "of this machine",
       printable(path_or_card), fmt::join(cards, ", "),
       near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

}  // namespace

namespace {

/// Returns whether the file is a profile written by people. Files of `ltrain bench` are JSON.
bool is_yaml(const std::string& path) { return path.ends_with(".yaml") || path.ends_with(".yml"); }

}  // namespace

MachineProfile find_profile(const std::string& path_or_card) {
  MachineProfile p = named_profile(path_or_card);
  p.of_this_machine = p.device_bytes > 0 && is_here(p);
  return p;
}

/// Adds the card of a measured machine: what was measured, and the rest from its data sheet. `p`: has the
/// network.
static void read_card(const ProfileReader& read, const json& card, MachineProfile& p) {
  p.device_bytes = read.whole(card.at("device_bytes"), "device_bytes of the card", 1, 1e15);
  const MachineProfile sheet = card_profile(p.machine);
  p.card = sheet.card;
  p.cards_per_node = sheet.cards_per_node;
  p.cores_per_node = sheet.cores_per_node;
  p.device = sheet.device;
  p.host_memory_bytes_per_second = sheet.host_memory_bytes_per_second;
  p.host_memory_source = sheet.host_memory_source;
  if (!p.network_given && sheet.built_in) {  // the machine in which such cards are sold
    p.levels = sheet.levels;
    p.adapter_bytes_per_second = sheet.adapter_bytes_per_second;
    p.network_source = sheet.network_source;
  }
  p.link_bytes_per_second =
      read.number(card.at("link_bytes_per_second"), "link_bytes_per_second of the card", 1, 1e15);
  p.link_seconds = read.number(card.at("link_seconds"), "link_seconds of the card", 0, 1e3);
}

MachineProfile load_profile(const std::string& path) {
  std::string text, error = recipe::read_small_file(path, text, kMaxProfileBytes);
  if (error.empty() && is_cluster_file(text)) return parse_cluster(text, path);
  if (error.empty() && is_yaml(path) && text.find(kDeviceFormat) == std::string::npos)
    fail(ExitCode::usage,
         "{}:1: must have format: {} (a card), or format: {} (nodes of a card and their network)",
         printable(path), kDeviceFormat, kClusterFormat);
  if (error.empty() && is_yaml(path))
    return profile_of_device(std::make_shared<DeviceProfile>(parse_device_profile(text, path)));
  if (!error.empty())
    fail(ExitCode::usage, "profile {}: {}; `ltrain bench` writes one, and the cards built in are {}",
         printable(path), error, fmt::join(built_in_cards(), ", "));
  const ProfileReader read{path};
  const json j = data::parse_strict(text, 8, error);
  if (!error.empty()) fail(ExitCode::usage, "profile {}: {}; run `ltrain bench` again", path, error);
  try {
    if (const int64_t format = read.whole(j.at("format"), "format", 0, 1e9); format != kFormat)
      fail(ExitCode::usage, "profile {}: format {}, this ltrain reads {}; run `ltrain bench` again", path,
           format, kFormat);
    MachineProfile p;
    p.machine = j.at("machine").get<std::string>();
    p.source = path;
    p.cores = static_cast<int>(read.whole(j.at("cores"), "cores", 1, 1 << 20));
    p.measured = true;
    p.process_bytes = read.whole(j.at("process_bytes"), "process_bytes", 0, 1e15);
    for (const json& r : j.at("ranks")) p.ranks.push_back(read.rank(r));
    if (p.ranks.empty()) fail(ExitCode::usage, "profile {}: no rank timings", path);
    for (const json& c : j.at("collectives")) p.collectives.push_back(read.collective(c));
    p.transport = j.value("transport", "");
    if (const auto disk = j.find("disk"); disk != j.end()) {
      p.offload_read_bytes_per_second =
          read.number(disk->at("read_bytes_per_second"), "read_bytes_per_second of the disk", 1, 1e15);
      p.offload_write_bytes_per_second =
          read.number(disk->at("write_bytes_per_second"), "write_bytes_per_second of the disk", 1, 1e15);
      p.offload_measured = true;
    }
    if (const auto network = j.find("network"); network != j.end()) {
      p.network_bytes_per_second =
          read.number(network->at("bytes_per_second"), "bytes_per_second of the network", 1, 1e15);
      p.network_seconds = read.number(network->at("seconds"), "seconds of the network", 0, 1e3);
      p.network_given = true;
      p.network_source = "by the profile";
    }
    if (const auto card = j.find("card"); card != j.end()) read_card(read, *card, p);
    if (const auto host = j.find("host_memory_bytes_per_second"); host != j.end()) {
      p.host_memory_bytes_per_second = read.number(*host, "host_memory_bytes_per_second", 1, 1e15);
      p.host_memory_source = kMeasured;
    }
    if (const auto sparse = j.find("sparse_matmul_speedup"); sparse != j.end())
      p.sparse_matmul_speedup =
          read.number(*sparse, "sparse_matmul_speedup", kLeastSparseSpeedup, kMostSparseSpeedup);
    return p;
  } catch (const json::exception& e) {
    std::string what = e.what();  // "[json.exception.out_of_range.403] key 'format' not found"
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    fail(ExitCode::usage, "profile {}: not a machine profile ({}); run `ltrain bench` again", path,
         printable(what, 200));
  }
}

void save_profile(const MachineProfile& p, const std::string& path) {
  json j{{"format", kFormat}, {"machine", p.machine}, {"cores", p.cores}, {"process_bytes", p.process_bytes}};
  j["ranks"] = json::array();
  for (const RankProfile& r : p.ranks) {
    json jr{{"threads", r.threads}, {"peak_flops", r.peak_flops}};
    for (const auto& [name, samples] : r.ops)
      for (const OpSample& s : samples) jr["ops"][name].push_back(to_json(s));
    j["ranks"].push_back(std::move(jr));
  }
  if (!p.transport.empty()) j["transport"] = p.transport;
  if (p.offload_measured || p.device_bytes > 0)
    j["disk"] = {{"read_bytes_per_second", p.offload_read_bytes_per_second},
                 {"write_bytes_per_second", p.offload_write_bytes_per_second}};
  if (p.network_given)
    j["network"] = {{"bytes_per_second", p.network_bytes_per_second}, {"seconds", p.network_seconds}};
  if (p.device_bytes > 0)
    j["card"] = {{"device_bytes", p.device_bytes},
                 {"link_bytes_per_second", p.link_bytes_per_second},
                 {"link_seconds", p.link_seconds}};
  if (p.host_memory_source == kMeasured) j["host_memory_bytes_per_second"] = p.host_memory_bytes_per_second;
  if (p.sparse_matmul_speedup > 0) j["sparse_matmul_speedup"] = p.sparse_matmul_speedup;
  j["collectives"] = json::array();
  for (const CollectiveSample& s : p.collectives)
    j["collectives"].push_back({{"op", s.op},
                                {"ranks", s.ranks},
                                {"bytes", s.bytes},
                                {"seconds", s.seconds},
                                {"cpu_seconds", s.cpu_seconds}});
  std::error_code error;
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
    std::filesystem::create_directories(folder, error);
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary);
  out << j.dump(1) << "\n";
  out.close();
  if (!out) fail(ExitCode::storage, "profile {}: cannot be written", temporary);
  std::filesystem::rename(temporary, path, error);
  if (error) fail(ExitCode::storage, "profile {}: cannot be written: {}", path, error.message());
}

std::string default_profile_path() {
  if (const char* p = std::getenv("LTRAIN_PROFILE"); p && *p) return p;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache && *cache ? cache : std::string(home && *home ? home : ".") + "/.cache";
  return base + "/ltrain/profile.json";
}

std::string card_profile_path(const std::string& card) {
  std::string name;
  for (const unsigned char c : card) name += std::isalnum(c) ? static_cast<char>(std::tolower(c)) : '-';
  const std::filesystem::path beside = default_profile_path();
  return (beside.parent_path() / ("profile-" + name + ".json")).string();
}

namespace {

/// Returns whether a readable file exists. If it exists but is not readable (the cache in another user's
/// home), `why` gives the reason, and the caller continues without it.
bool is_there(const std::string& path, std::string& why) {
  if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR)
    why = fmt::format(" ({} cannot be read: {})", printable(path), std::strerror(errno));
  return false;
}

/// Profile of the card in this machine; without a card, that of an H200.
MachineProfile profile_of_this_machine(DeviceKind device) {
  if (device == DeviceKind::cuda) {
    if (device_count(device) == 0) return card_profile("h200");
    const DeviceInfo card = device_info(device);
    std::string why;
    if (const std::string path = card_profile_path(card.name); is_there(path, why)) return load_profile(path);
    MachineProfile p = card_profile(card.name);
    if (!p.built_in) {
      p = card_profile("a100");
      p.source += fmt::format(" (none of {} is built in)", card.name);
    }
    p.source += why;
    p.device_bytes = card.total_bytes;
    return p;
  }
  std::string why;
  const std::string path = default_profile_path();
  if (is_there(path, why)) return load_profile(path);
  MachineProfile p = builtin_profile(usable_cores());
  p.source += why;
  return p;
}

}  // namespace

MachineProfile default_profile(DeviceKind device) {
  MachineProfile p = profile_of_this_machine(device);
  p.of_this_machine = device == DeviceKind::cpu || device_count(device) > 0;
  return p;
}

}  // namespace ltrain
