// ltrain profile: machine profiles that price plans.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "base/error.h"
#include "base/json/json.h"
#include "runtime/machines/builtin_profiles.h"
#include "runtime/machines/device_cost.h"
#include "runtime/machines/machine_profile.h"
#include "runtime/machines/profile_file.h"
#include "runtime/machines/profile_import.h"
#include "runtime/machines/trainer_profile.h"
#include "runtime/recipe/read_file.h"

namespace ltrain::app {
namespace {

using nlohmann::ordered_json;

/// A line of a drawing: x, y, and a bar of y relative to the maximum.
struct Point {
  std::string x;
  double y = 0;
};
struct Drawing {
  std::string title, unit, json_key;
  double scale = 1;  ///< y / scale is in `unit`
  std::vector<Point> points;
};

std::string draw(const Drawing& d) {
  constexpr int kWidth = 48;
  double most = 0;
  for (const Point& p : d.points) most = std::max(most, p.y);
  std::string out = fmt::format("\n{}, {}\n", d.title, d.unit);
  for (const Point& p : d.points)
    out +=
        fmt::format("  {:>12} {:>10.1f}  {}\n", p.x, p.y * d.scale,
                    std::string(static_cast<size_t>(most > 0 ? std::lround(kWidth * p.y / most) : 0), '#'));
  return out;
}

std::string bytes_name(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit < 3; ++unit) bytes /= 1024;
  return fmt::format("{:.0f} {}", bytes, units[unit]);
}

OpCost sum_over(const std::vector<int>& ranks, double bytes) {
  OpCost op;
  op.name = op.collective = "all_reduce";
  op.cls = OpClass::collective;
  op.group_size = static_cast<int>(ranks.size());
  op.ranks = &ranks;
  op.bytes = bytes;
  op.wire_bytes = 2 * bytes * (op.group_size - 1) / op.group_size;
  return op;
}

std::vector<Drawing> drawings(const MachineProfile& p) {
  std::vector<NetworkLevel> levels = p.levels;
  if (!levels.empty() && levels[0].ranks == 0) levels[0].ranks = std::max(1, p.cards_per_node);
  const DeviceCost cost(*p.device, levels);
  const std::string type =
      p.device->matmul.peak.count("bf16") ? "bf16" : p.device->matmul.peak.begin()->first;
  std::vector<Drawing> out;
  Drawing squares{"matmul of " + type + ", square", "TFLOP/s", "matmul", 1e-12, {}};
  for (int64_t n = 256; n <= 16384; n *= 2) {
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    squares.points.push_back({std::to_string(n), flops / cost.matmul_seconds(type, flops, n, n, n)});
  }
  out.push_back(squares);
  for (const int64_t head : {64, 128}) {
    Drawing attention{fmt::format("attention of {}, heads of {}, forward", type, head),
                      "TFLOP/s by tokens",
                      fmt::format("attention_{}", head),
                      1e-12,
                      {}};
    OpCost op;
    op.name = "attention_forward", op.flops = 1, op.k = head;
    op.dtype = type == "bf16" ? DType::bf16 : DType::f16;
    for (op.n = 512; op.n <= 32768; op.n *= 4)
      attention.points.push_back({std::to_string(op.n), 1 / cost.attention_seconds(op)});
    out.push_back(attention);
  }
  Drawing memory{"memory", "GB/s by bytes of an op", "memory", 1e-9, {}};
  for (double bytes = 65536; bytes <= 0x1p30; bytes *= 16)
    memory.points.push_back({bytes_name(bytes), bytes / cost.memory_seconds(bytes)});
  out.push_back(memory);
  for (const int ranks : {p.cards_per_node, 8 * p.cards_per_node}) {
    if (ranks < 2 || levels.empty()) continue;
    std::vector<int> all(static_cast<size_t>(ranks));
    for (int i = 0; i < ranks; ++i) all[static_cast<size_t>(i)] = i;
    Drawing sums{fmt::format("all-reduce of {} cards", ranks),
                 "GB/s of bus bandwidth",
                 fmt::format("all_reduce_{}", ranks),
                 1e-9,
                 {}};
    for (double bytes = 65536; bytes <= 0x1p30; bytes *= 16) {
      const OpCost op = sum_over(all, bytes);
      // A new object, because it caches prices by the address of the group.
      const DeviceCost fresh(*p.device, levels);
      sums.points.push_back({bytes_name(bytes), op.wire_bytes / fresh.collective_seconds(op)});
    }
    out.push_back(sums);
  }
  return out;
}

using NamedFigures = std::vector<std::pair<std::string, Figure>>;

void add_levels(NamedFigures& out, const std::vector<NetworkLevel>& levels) {
  for (const NetworkLevel& l : levels) {
    out.emplace_back(l.name + ".seconds", l.seconds);
    out.emplace_back(l.name + ".bytes_per_second", l.bytes_per_second);
    out.emplace_back(l.name + ".sustained", l.sustained);
  }
}

NamedFigures figures_of(const MachineProfile& p) {
  const DeviceProfile& d = *p.device;
  NamedFigures out{{"memory.bytes", d.memory_bytes},
                   {"memory.bytes_per_second", d.memory_bytes_per_second},
                   {"memory.sustained", d.memory_sustained},
                   {"memory.half_access_bytes", d.half_access_bytes}};
  for (const auto& [type, figure] : d.matmul.peak) out.emplace_back("matmul.peak." + type, figure);
  out.insert(out.end(), {{"matmul.sustained", d.matmul.sustained},
                         {"matmul.units", d.matmul.units},
                         {"matmul.tile_fill", d.matmul.tile_fill},
                         {"matmul.sparse_speedup", d.matmul.sparse_speedup},
                         {"attention.half_length", d.attention.half_length},
                         {"launch_seconds", d.launch_seconds},
                         {"under_load", d.under_load},
                         {"overlap", d.overlap},
                         {"host_bytes_per_second", d.host_bytes_per_second},
                         {"power_watts", d.power_watts}});
  add_levels(out, p.levels);
  return out;
}

NamedFigures figures_of(const TrainerProfile& t) {
  NamedFigures out;
  for (const TrainerRates& r : t.cards) {
    const std::string card = fmt::format("sm_{}.", r.compute_capability);
    const auto add_curve = [&](const std::string& key, const Curve& c) {
      for (const auto& [width, share] : c.points)
        out.emplace_back(fmt::format("{}{}, heads of {:g}", card, key, width),
                         Figure{share, c.source, c.reference, true});
    };
    add_curve("attention.forward", r.attention.forward);
    add_curve("attention.backward", r.attention.backward);
    out.emplace_back(card + "attention.half_length", r.attention.half_length);
    out.emplace_back(card + "matmul", r.matmul);
    out.emplace_back(card + "traffic", r.traffic);
  }
  return out;
}

/// Prints the name, the figures with their sources, and the curves.
void show(const std::string& name, const std::string& source, const std::string& about, NamedFigures figures,
          const std::vector<Drawing>& curves, bool json) {
  std::erase_if(figures, [](const auto& figure) { return !figure.second.given; });
  ordered_json j{{"schema", "ltrain.profile.v1"}, {"name", name}, {"text", about}, {"source", source}};
  std::string text = fmt::format("{}: {}\n\n", source, about);
  for (const auto& [key, f] : figures) {
    text +=
        fmt::format("  {:<28} {:>12.5g}  {}: {}\n", key, f.value, figure_source_name(f.source), f.reference);
    j["figures"].push_back({{"figure", key},
                            {"value", f.value},
                            {"source", figure_source_name(f.source)},
                            {"reference", f.reference}});
  }
  for (const Drawing& d : curves) {
    text += draw(d);
    for (const Point& point : d.points) j["curves"][d.json_key].push_back({point.x, point.y});
  }
  std::fputs(json ? (j.dump(1) + "\n").c_str() : text.c_str(), stdout);
}

/// Shows a network or trainer named by `list`, else a card, a profile file or a cluster file.
void show(const std::string& name, bool json) {
  const std::string source = name + ", built in";
  if (const NetworkProfile* n = find_builtin_network(name)) {
    NamedFigures figures;
    add_levels(figures, n->levels);
    return show(n->name, source, n->text, figures, {}, json);
  }
  for (const TrainerProfile& t : builtin_trainers())
    if (t.name == name) return show(t.name, source, t.text, figures_of(t), {}, json);
  const MachineProfile p = find_profile(name);
  if (!p.device)
    fail(ExitCode::usage,
         "profile {}: has samples of `ltrain bench` and no figures of a card; `ltrain profile list` names "
         "those that have",
         name);
  show(p.device->name, p.source, p.device->text, figures_of(p), drawings(p), json);
}

void list() {
  std::string out = "cards\n";
  for (const DeviceHandle& d : builtin_devices()) out += fmt::format("  {:<14} {}\n", d->name, d->text);
  out += "networks, for cluster files\n";
  for (const NetworkProfile& n : builtin_networks()) out += fmt::format("  {:<14} {}\n", n.name, n.text);
  out += "other trainers, for plan --trainer\n";
  for (const TrainerProfile& t : builtin_trainers()) out += fmt::format("  {:<17} {}\n", t.name, t.text);
  std::fputs(out.c_str(), stdout);
}

void import(const std::string& file, const std::string& output, const ImportOptions& options) {
  std::string text;
  constexpr size_t kMost = size_t{2} << 30;  // a trace of some steps has some hundred MB
  if (const std::string error = recipe::read_small_file(file, text, kMost); !error.empty())
    fail(ExitCode::usage, "{}: {}", file, error);
  const auto [yaml, report] = import_profile(text, file, options);
  if (output.empty()) {
    std::fputs(report.c_str(), stderr);
    std::fputs(yaml.c_str(), stdout);
    return;
  }
  std::FILE* out = std::fopen(output.c_str(), "w");
  const bool good = out && std::fwrite(yaml.data(), 1, yaml.size(), out) == yaml.size();
  if (!out || std::fclose(out) != 0 || !good) fail(ExitCode::storage, "cannot write {}", output);
  std::fputs(report.c_str(), stdout);
}

}  // namespace

void add_profile(CLI::App& app) {
  auto* command = app.add_subcommand("profile", "The machines that plans are priced by");
  command->require_subcommand(1);
  auto* listed = command->add_subcommand("list", "Cards and networks that are built in");
  listed->footer("Example: ltrain profile list");
  listed->callback([] { list(); });
  auto* shown = command->add_subcommand("show", "A profile: its figures with their sources, and its curves");
  auto name = std::make_shared<std::string>(), file = std::make_shared<std::string>(),
       output = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  shown
      ->add_option("name", *name,
                   "A card, a network or a trainer that is built in, a profile file, or a cluster file")
      ->required();
  shown->add_flag("--json", *json, "For programs");
  shown->footer("Example: ltrain profile show h100");
  shown->callback([name, json] { show(*name, *json); });
  auto* imported =
      command->add_subcommand("import", "A profile or cluster file of what another program measured");
  imported
      ->add_option("file", *file,
                   "Output of nccl-tests (all_reduce_perf), a card's file of `ltrain bench`, a trace of "
                   "torch.profiler, or Nsight Systems' report nvtx_kern_sum in CSV")
      ->required();
  auto options = std::make_shared<ImportOptions>();
  imported->add_option("--card", options->card,
                       "The card, where the file does not name one that is built in");
  imported->add_option("--type", options->type, "Of the matrix products, where the file does not say: bf16");
  imported->add_option("--output", *output, "Write it to this file");
  imported->footer("Example: ltrain profile import all_reduce_perf.log");
  imported->callback([file, output, options] { import(*file, *output, *options); });
}

}  // namespace ltrain::app
