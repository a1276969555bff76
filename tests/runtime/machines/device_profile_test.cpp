// Profiles of cards and networks, and clusters: what is built in, prices against closed forms and published
// measurements, what is refused, what import makes of other programs' measurements.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "runtime/files/write_file.h"
#include "runtime/machines/cluster.h"
#include "runtime/machines/profile_file.h"
#include "runtime/machines/profile_import.h"
#include "runtime/plan/make_plan.h"
#include "tests/support/read_file.h"
#include "tests/support/replaced.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

std::string embedded(const std::string& file) {
  for (const EmbeddedFile& f : kEmbeddedDevices)
    if (f.name == file) return f.text;
  for (const EmbeddedFile& f : kEmbeddedNetworks)
    if (f.name == file) return f.text;
  return "";
}

/// Error text of parse() for `text`; "" if it accepts it.
std::string refusal(const std::function<void()>& parse) {
  try {
    parse();
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "accepted";
}

std::vector<int> every(int first, int stride, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

OpCost collective(const char* name, const std::vector<int>& ranks, double bytes) {
  OpCost op;
  op.name = op.collective = name;
  op.cls = OpClass::collective;
  op.group_size = static_cast<int>(ranks.size());
  op.ranks = &ranks;
  op.bytes = bytes;
  const double n = op.group_size;
  op.wire_bytes = bytes * (n - 1) / n * (op.collective == "all_reduce" ? 2 : 1);
  return op;
}

/// On nodes of eight.
DeviceCost cost_of(const DeviceProfile& d) {
  std::vector<NetworkLevel> levels = d.links;
  levels[0].ranks = 8;
  for (const NetworkLevel& l : find_builtin_network(d.network)->levels) levels.push_back(l);
  return {d, levels};
}

}  // namespace

TEST_CASE("the machines that people name are built in, each figure with its source", "[plan]") {
  for (const char* name : {"v100", "a100", "a100-40", "h100", "h100-pcie", "h200", "b200", "gb200", "mi300x",
                           "l40s", "rtx4090", "rtx5090", "tpu-v5p", "cpu-16"}) {
    INFO(name);
    const DeviceHandle d = find_builtin_device(name);
    REQUIRE(d);
    CHECK_FALSE(d->memory_bytes_per_second.reference.empty());
    CHECK(find_builtin_network(d->network));
    for (const auto& [type, peak] : d->matmul.peak) CHECK_FALSE(peak.reference.empty());
    CHECK(profile_of_device(d).levels.size() >= 2);
  }
  for (const char* name : {"ib-8x400g", "roce-8x400g", "efa-8x400g", "ethernet-100g", "wan-2x100g"})
    CHECK(find_builtin_network(name));
  CHECK(card_profile("NVIDIA A100-SXM4-40GB").device->name == "a100-40");
  CHECK(card_profile("NVIDIA H100 PCIe").device->name == "h100-pcie");
  CHECK(card_profile("NVIDIA GeForce RTX 4090").device->name == "rtx4090");
  CHECK(find_profile("h100-sxm").device->name == "h100");
  CHECK(find_profile("cpu-16").device_bytes == 0);
}

TEST_CASE("a product takes whole waves of tiles", "[plan]") {
  DeviceProfile d = *find_builtin_device("h100");
  d.matmul.tiles = {{128, 256, 1.0}};
  const DeviceCost cost(d, {});
  const auto seconds = [&](int64_t m, int64_t n, int64_t k) {
    return cost.matmul_seconds(
        "bf16", 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k), m, n, k);
  };
  // 11 x 12 tiles are one wave on 132 units, one tile more is a second wave, and two whole ones take as long.
  const double one = seconds(11 * 128, 12 * 256, 4096);
  CHECK(seconds(11 * 128, 24 * 256, 4096) == Approx(2 * one));
  CHECK(seconds(11 * 128, 12 * 256 + 1, 4096) == Approx(2 * one));
  CHECK(seconds(10 * 128, 12 * 256, 4096) == Approx(one));  // idle units save nothing
  const double rate = 989.4e12 * d.matmul.sustained.value * d.under_load.value;
  CHECK(one == Approx(2.0 * 11 * 128 * 12 * 256 * (4096 + d.matmul.tile_fill.value) / rate));
  // Few tiles of a long contraction are cut over the units.
  CHECK(seconds(128, 256, 16384) < 0.2 * 16384 / 4096 * one);
}

TEST_CASE("a grouped product is one launch of all tiles where a kernel makes it so, else one a group",
          "[plan]") {
  DeviceProfile d = *find_builtin_device("h100");
  d.matmul.tiles = {{128, 256, 1.0}};
  const double launch = d.launch_seconds.value, groups = 264;
  const auto seconds = [&](std::string_view name, DType type, int64_t m, int64_t n, int64_t k,
                           int capability) {
    DeviceProfile of = d;
    of.compute_capability = capability;
    OpCost op;
    op.name = name, op.cls = OpClass::matmul, op.dtype = type;
    op.m = m, op.n = n, op.k = k;
    op.flops = groups * 2.0 * static_cast<double>(m * n * k);
    return DeviceCost(of, {}).op_seconds(op);
  };
  // A tile a group: 264 of them are two waves of 132 units.
  const double wave =
      DeviceCost(d, {}).matmul_seconds("bf16", 2.0 * 11 * 128 * 12 * 256 * 512, 11 * 128, 12 * 256, 512);
  const double one = seconds("grouped_matmul", DType::bf16, 128, 256, 512, 90);
  CHECK(one == Approx(2 * wave + launch));
  CHECK(seconds("grouped_matmul_dx", DType::bf16, 128, 256, 512, 80) == one);
  CHECK(seconds("grouped_matmul_dw", DType::f16, 128, 256, 512, 100) == one);
  CHECK(seconds("grouped_matmul_dw", DType::bf16, 128, 256, 36, 90) > 0);
  // Alone each product has a wave of its own, cut or not, and a launch.
  const auto apart = [&](int64_t m, int64_t n, int64_t k, int capability) {
    const double single =
        DeviceCost(d, {}).matmul_seconds("bf16", 2.0 * static_cast<double>(m * n * k), m, n, k);
    CHECK(seconds("grouped_matmul", DType::bf16, m, n, k, capability) == Approx(groups * (single + launch)));
  };
  apart(128, 250, 512, 90);
  apart(128, 256, 510, 90);
  apart(128, 256, 512, 70);
  CHECK(seconds("grouped_matmul", DType::f32, 128, 256, 512, 90) > groups * launch);
}

TEST_CASE("rates of an H100 and a V100 are those that were measured of them", "[plan]") {
  // 8192 cubed in bf16 with random data, PyTorch 2.11 on an H200: 769 to 798 TFLOP/s, for a moment.
  DeviceProfile h100 = *find_builtin_device("h100");
  h100.under_load.value = 1;
  const double flops = 2 * std::pow(8192.0, 3);
  const double rate = flops / DeviceCost(h100, {}).matmul_seconds("bf16", flops, 8192, 8192, 8192);
  CHECK(rate > 0.95 * 769e12);
  CHECK(rate < 798e12);
  // A V100 has no units for bf16.
  const DeviceHandle v100 = find_builtin_device("v100");
  const DeviceCost old(*v100, {});
  CHECK(old.matmul_seconds("bf16", 1e15, 8192, 8192, 8192) ==
        old.matmul_seconds("f32", 1e15, 8192, 8192, 8192));
  CHECK(old.matmul_seconds("f16", 1e15, 8192, 8192, 8192) <
        old.matmul_seconds("f32", 1e15, 8192, 8192, 8192) / 4);
}

TEST_CASE("all-reduces of eight H100 take what nccl-tests measured", "[plan]") {
  const DeviceProfile& d = *find_builtin_device("h100");
  const DeviceCost cost = cost_of(d);
  const std::vector<int> node = every(0, 1, 8);
  const std::pair<double, double> measured[] = {
      {8, 13.7e-6},       {65536, 19.5e-6},   {1048576, 27.4e-6},   {4194304, 54e-6},
      {16777216, 124e-6}, {67108864, 325e-6}, {268435456, 1113e-6}, {1073741824, 4029e-6}};
  for (const auto& [bytes, seconds] : measured) {
    INFO(bytes);
    CHECK(cost.collective_seconds(collective("all_reduce", node, bytes)) == Approx(seconds).epsilon(0.02));
  }
}

TEST_CASE("collectives are priced by the levels that their group spans", "[plan]") {
  const DeviceProfile& d = *find_builtin_device("h100");
  const DeviceCost cost = cost_of(d);
  const double nic = 50e9 * cost.levels()[1].sustained.value, bytes = 8e9;
  const std::vector<int> nodes = every(0, 1, 64), rail = every(3, 8, 8), pair = {7, 8}, inside = {2, 5};
  // Eight rings of a node over its eight adapters; one ring where a group has one rank a node.
  CHECK(cost.collective_seconds(collective("all_gather", nodes, bytes)) ==
        Approx(bytes * 63 / 64 / (8 * nic)).epsilon(0.05));
  CHECK(cost.collective_seconds(collective("all_gather", rail, bytes)) ==
        Approx(bytes * 7 / 8 / nic).epsilon(0.01));
  // Seven of 63 parts of an exchange stay inside the node; the rest go through the rank's own adapter.
  OpCost exchange = collective("all_to_all", nodes, bytes);
  CHECK(cost.collective_seconds(exchange) == Approx(exchange.wire_bytes * 56 / 63 / nic).epsilon(0.01));
  OpCost send = collective("send", pair, bytes);
  send.wire_bytes = bytes;
  CHECK(cost.collective_seconds(send) == Approx(bytes / nic).epsilon(0.01));
  OpCost near = collective("send", inside, bytes);
  near.wire_bytes = bytes;
  CHECK(cost.collective_seconds(near) < bytes / nic / 5);
  // A link that a node's ranks share.
  std::vector<NetworkLevel> shared = cost.levels();
  shared[1].ranks_a_link = 0;
  CHECK(DeviceCost(d, shared).collective_seconds(collective("all_gather", rail, bytes)) ==
        Approx(8 * bytes * 7 / 8 / nic).epsilon(0.01));
  const GroupSpan span = span_of(nodes, cost.levels());
  CHECK((span.inside == std::vector<int>{8, 64} && span.steps == std::vector<int>{56, 7}));
}

TEST_CASE("profile files are checked: place, key, value, rule, what would work", "[plan]") {
  const std::string good = embedded("devices/h100.yaml");
  const auto said = [&](const std::string& from, const std::string& to) {
    const std::string text = replaced(good, from, to);
    return refusal([&] { parse_device_profile(text, "card.yaml"); });
  };
  CHECK(said("name: h100", "name: h100") == "accepted");  // the control
  CHECK_THAT(said("format: ltrain.device.v1", "format: ltrain.devise.v1"),
             Contains("card.yaml:2:") &&
                 Contains("must be one of ltrain.device.v1; nearest valid value: ltrain.device.v1"));
  CHECK_THAT(said("bytes: {value: 80e9", "bytes: {value: eighty"),
             Contains("memory.bytes.value = eighty: must be a number"));
  CHECK_THAT(said("bytes: {value: 80e9", "bytes: {value: -1"),
             Contains("must be from 1e+06 to 1e+15; nearest valid value: 1e+06"));
  CHECK_THAT(said("bytes: {value: 80e9", "bytes: {value: .nan"), Contains("must be a number"));
  CHECK_THAT(said("bytes: {value: 80e9", "bytes: {value: 1e999"), Contains("must be a number"));
  CHECK_THAT(said("source: published, reference: mamf", "source: publisht, reference: mamf"),
             Contains("matmul.sustained.source = publisht: must be one of measured, published, assumed; "
                      "nearest valid value: published"));
  CHECK_THAT(
      said("reference: mamf", "reference: mamv"),
      Contains("matmul.sustained.reference = mamv: must be a key of references; nearest valid value: mamf"));
  CHECK_THAT(said("sustained: {value: 0.803, source: published, reference: mamf}",
                  "sustained: {value: 0.8, source: published}"),
             Contains("matmul.sustained.reference: must be given"));
  CHECK_THAT(said("units: {", "unit: {"), Contains("matmul.unit: unknown key; nearest valid value: units"));
  CHECK_THAT(said("    bf16: {", "    bf17: {"),
             Contains("matmul.peak.bf17: unknown key; nearest valid value: bf16"));
  CHECK_THAT(said("tiles: [[128, 256, 1.0],", "tiles: [[128, 256],"),
             Contains("matmul.tiles = [128, 256]: must be a row of 3 numbers"));
  CHECK_THAT(said("tiles: [[128, 256, 1.0],", "tiles: [[128, 256, 2.0],"), Contains("the share at most 1"));
  CHECK_THAT(said("[[64, 0.42], [128, 0.545]]", "[[128, 0.42], [64, 0.545]]"),
             Contains("must rise from row to row"));
  CHECK_THAT(said("launch_seconds:", "launch_seconds: 3\nlaunch_second:"),
             Contains("launch_seconds = 3: must be a map of keys"));
  CHECK_THAT(said("power_watts:", "overlap: {value: 0.2, source: assumed}\npower_watts:"),
             Contains("overlap: duplicate key"));
  CHECK_THAT(said("cards: 8", "cards: 8.5"),
             Contains("node.cards = 8.5: must be a whole number; nearest valid value: 8"));
  const std::string sparse = "sparse_speedup: {value: 1.4, source: assumed}\n  sustained: {";
  CHECK_THAT(
      said("  sustained: {value: 0.803", "  " + sparse + "value: 0.803"),
      Contains("matmul.sparse_speedup = {value: 1.4, source: assumed}: is for kind: cpu; leave it out"));
  const std::string cpu = embedded("devices/cpu-16.yaml");
  CHECK(profile_of_device(find_builtin_device("cpu-16")).sparse_matmul_speedup == 1.4);
  CHECK(profile_of_device(find_builtin_device("h100")).sparse_matmul_speedup == 0);
  for (const char* value : {"0", "-1", "101", "1e999", ".nan", "fast"}) {
    INFO(value);
    const std::string text =
        replaced(cpu, "sparse_speedup: {value: 1.40", std::string("sparse_speedup: {value: ") + value);
    CHECK_THAT(refusal([&] { parse_device_profile(text, "cpu.yaml"); }),
               Contains("matmul.sparse_speedup.value = "));
  }
  for (const char* text : {"", "[]", "7", "\xff\xfe", "format: ltrain.device.v1", "{"})
    CHECK(refusal([&] { parse_device_profile(text, "card.yaml"); }) != "accepted");
  const std::string network = embedded("networks/roce-8x400g.yaml");
  CHECK_THAT(
      refusal([&] { parse_network_profile(replaced(network, "ranks: 3072", "ranks: -1"), "net.yaml"); }),
      Contains("levels[0].ranks = -1: must be from 0"));
  CHECK_THAT(refusal([&] { parse_network_profile(replaced(network, "    ranks: 3072\n", ""), "net.yaml"); }),
             Contains("comes after a level that joins all ranks"));
}

TEST_CASE("a plan names the attention kernels that its card has", "[plan]") {
  const auto attention = [](const std::string& card, const std::string& more) {
    const Recipe r = resolve(
        parse_recipe("device: cuda\nmodel: {architecture: llama, vocab_size: 512, hidden_size: 256, "
                     "num_hidden_layers: 1, num_attention_heads: 2}\ndata: {train: [{path: a}], seq_length: "
                     "128}\ntrain: {train_steps: 1}\n" +
                         more,
                     "r.yaml"),
        1);
    return make_plan(r, find_profile(card)).attention;
  };
  const std::string own = "precision: bf16\nattention_backend: own\n";
  CHECK(attention("h100", own) == "native kernels, on Hopper's tensor cores (wgmma)");
  CHECK(attention("a100", own) == "native kernels, on tensor cores (mma)");
  CHECK_THAT(attention("v100", own), Contains("none: the card has compute capability 7.0"));
  CHECK(attention("h100", "precision: fp32\n") ==
        "native kernels, in plain arithmetic, for f32 with head dim 128; not cuDNN: cuDNN takes bf16 and "
        "fp16, not f32");
  CHECK_THAT(attention("h100", "precision: bf16\n"),
             Contains("wgmma") && Contains("the forward ones are compared with cuDNN's"));
  CHECK(attention("mi300x", own).empty());
}

TEST_CASE("a profile that is written is read back with the same figures", "[plan]") {
  for (const DeviceHandle& d : builtin_devices()) {
    INFO(d->name);
    const std::string yaml = device_profile_yaml(*d);
    const DeviceProfile back = parse_device_profile(yaml, "back.yaml");
    CHECK(device_profile_yaml(back) == yaml);
    CHECK(back.memory_bytes_per_second.value == d->memory_bytes_per_second.value);
    CHECK(back.matmul.sustained.reference == d->matmul.sustained.reference);
    CHECK(back.matmul.tiles.size() == d->matmul.tiles.size());
    CHECK(back.attention.forward.points == d->attention.forward.points);
    REQUIRE(back.links.size() == d->links.size());
    CHECK(back.links[0].all_reduce.points == d->links[0].all_reduce.points);
  }
}

TEST_CASE("a cluster file names cards, nodes and networks, and what it says wrongly is refused", "[plan]") {
  const TemporaryFolder folder;
  const std::string good =
      "format: ltrain.cluster.v1\nname: ours\nprofile: h100\nnodes: 16\ngpus_per_node: 4\nnetwork: "
      "ethernet-100g\n";
  const std::string path = folder.path() + "/ours.yaml";
  write_file(path, good);
  const MachineProfile p = find_profile(path);
  CHECK((p.nodes == 16 && p.cards_per_node == 4 && p.card == "h100" && p.network_given));
  CHECK(p.levels.back().name == "Ethernet");
  CHECK(assumed_node(p, 64, 0).text() == "a node: 4 H100, by " + path);
  // A profile file beside it.
  write_file(folder.path() + "/mine.yaml",
             replaced(embedded("devices/h100.yaml"), "name: h100", "name: mine"));
  write_file(path, replaced(good, "profile: h100", "profile: mine.yaml"));
  CHECK(find_profile(path).device->name == "mine");
  const auto said = [&](const std::string& from, const std::string& to) {
    return refusal([&] { parse_cluster(replaced(good, from, to), "ours.yaml"); });
  };
  CHECK(said("nodes: 16", "nodes: 17") == "accepted");
  CHECK_THAT(said("nodes: 16", "nodes: 0"), Contains("ours.yaml:4:8: nodes = 0: must be from 1 to"));
  CHECK_THAT(said("profile: h100", "profile: h1000"),
             Contains("profile = h1000") && Contains("did you mean h100?"));
  CHECK_THAT(said("ethernet-100g", "ethernet-10g"), Contains("nearest valid value: ethernet-100g"));
  CHECK_THAT(said("network: ethernet-100g\n", ""), Contains("set one of network and levels"));
  CHECK_THAT(said("nodes: 16", "node: 16"), Contains("node: unknown key; nearest valid value: nodes"));
  // Two sites: half of the ranks each, one line between them that all of a site share.
  const MachineProfile sites = parse_cluster(replaced(good, "ethernet-100g", "wan-2x100g"), "ours.yaml");
  const ProfileCost cost(sites, 1, false, 4, 64);
  const std::vector<int> within = every(0, 4, 8), across = every(0, 4, 16);
  CHECK(cost.seconds(collective("all_gather", across, 1e9)) ==
        Approx(1e9 * 15 / 16 / (0.8 * 12.5e9 * 8 / 32)).epsilon(0.02));
  CHECK(cost.seconds(collective("all_gather", within, 1e9)) ==
        Approx(1e9 * 7 / 8 / (0.9 * 50e9)).epsilon(0.02));
  // The same by a level of sites above the nodes.
  const std::string link =
      "sites: 2\nreferences: {line: a line}\nsite_links:\n  - {name: line, ranks_a_link: 0, seconds: {value: "
      "5.0e-3, source: assumed, reference: line}, bytes_per_second: {value: 12.5e9, source: assumed, "
      "reference: "
      "line}, sustained: {value: 0.8, source: assumed, reference: line}}\n";
  const std::string ours = replaced(good, "ethernet-100g", "ib-8x400g");
  const ProfileCost linked(parse_cluster(ours + link, "ours.yaml"), 1, false, 4, 64);
  CHECK(linked.seconds(collective("all_gather", across, 1e9)) ==
        Approx(1e9 * 15 / 16 / (0.8 * 12.5e9 * 8 / 32)).epsilon(0.02));
  CHECK(linked.seconds(collective("all_gather", within, 1e9)) <
        linked.seconds(collective("all_gather", across, 1e9)) / 4);
  const auto of = [&](const std::string& text) { return refusal([&] { parse_cluster(text, "ours.yaml"); }); };
  CHECK(of(ours + link) == "accepted");
  CHECK_THAT(of(ours + "sites: 2\n"), Contains("must have 1 level for sites = 2, has 0"));
  CHECK_THAT(of(ours + replaced(link, "sites: 2\n", "")),
             Contains("must have 0 levels for sites = 1, has 1"));
  CHECK_THAT(of(ours + replaced(link, "sites: 2\n", "sites: 3\n")), Contains("must divide nodes = 16, is 3"));
  CHECK_THAT(of(replaced(good, "ethernet-100g", "wan-2x100g") + link),
             Contains("must be 1 where the network has parts"));
}

TEST_CASE("import reads nccl-tests and refuses what is none", "[plan]") {
  std::string text = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592\n# Using devices\n";
  for (int r = 0; r < 2; ++r)
    text += "#  Rank  " + std::to_string(r) + " Group  0 Pid  1 on node0 device  " + std::to_string(r) +
            " [0000:1b:00] NVIDIA H100 80GB HBM3\n";
  const std::string rows =
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw "
      "  busbw #wrong\n"
      "     1048576        262144     float     sum      -1    40.00   26.21   26.21      0    40.0   26.2   "
      "26.2      0\n"
      "  1073741824     268435456     float     sum      -1   4000.0  268.44  268.44      0  4000.0  268.4  "
      "268.4      0\n"
      "# Out of bounds values : 0 OK\n";
  const DeviceProfile one = parse_device_profile(import_profile(text + rows, "log").yaml, "made.yaml");
  CHECK(one.links[0].all_reduce.source == FigureSource::measured);
  REQUIRE(one.links[0].all_reduce.points.size() == 2);
  CHECK(one.links[0].all_reduce.points[1].second == Approx(268.44e9).epsilon(1e-4));
  // A log of eight H100 that NVIDIA published (dgxc-benchmarking, nccl/README.md): its own busbw.
  const DeviceProfile eight = parse_device_profile(
      import_profile(read_file(LTRAIN_SOURCE_DIR "/tests/golden/all_reduce_perf.log"), "log").yaml,
      "made.yaml");
  REQUIRE(eight.links[0].all_reduce.points.size() == 32);
  CHECK(eight.links[0].all_reduce.at(1073741824) == Approx(467.85e9).epsilon(1e-4));
  CHECK(eight.links[0].all_reduce.at(4194304) == Approx(136.37e9).epsilon(1e-3));
  const std::string two = replaced(text, " on node0 device  1", " on node1 device  1") + rows;
  const MachineProfile cluster = parse_cluster(import_profile(two, "log").yaml, "made.yaml");
  CHECK((cluster.nodes == 2 && cluster.cards_per_node == 1));
  CHECK(cluster.levels.back().bytes_per_second.value == Approx(1073741824 / 4000e-6));
  const auto said = [&](const std::string& log) { return refusal([&] { import_profile(log, "log"); }); };
  CHECK_THAT(said("hello"), Contains("log: is neither output of nccl-tests"));
  CHECK_THAT(said(text), Contains("has no row of sizes and times"));
  CHECK_THAT(said("# nThread 1\n" + rows), Contains("names 0 ranks"));
  CHECK_THAT(said(text + "1 2 3\n"), Contains("log:5: a line of nccl-tests must be size, count"));
  CHECK_THAT(said(text + "8 2 float sum -1 -5 1 1\n"), Contains("log:5: size 8, time -5 us"));
  const std::string mixed = replaced(text, "H100 80GB HBM3", "Q1");
  CHECK_THAT(said(mixed + rows), Contains("log:4: ranks on NVIDIA Q1 and on NVIDIA H100 80GB HBM3"));
  CHECK_THAT(said(replaced(mixed, "H100 80GB HBM3", "Q1") + rows),
             Contains("no profile of the card \"NVIDIA Q1\""));
  CHECK_THAT(said("# Collective test starting: all_gather_perf\n" + text + rows),
             Contains("is not of all_reduce_perf"));
}
