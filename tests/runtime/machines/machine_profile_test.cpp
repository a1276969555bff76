// Machine profiles: written and read back; broken files are refused with path and reason; prices.
#include "runtime/machines/machine_profile.h"
#include "base/json/json.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>

#include "base/error.h"
#include "runtime/files/write_file.h"
#include "runtime/machines/cluster.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;
using nlohmann::json;

namespace {

MachineProfile example() {
  MachineProfile p;
  p.machine = "a \"machine\"";
  p.cores = 4;
  p.process_bytes = 123456789;
  for (int threads : {1, 4}) {
    RankProfile r;
    r.threads = threads;
    r.ops["matmul_nt/f32"] = {{100, 2e6, 1e-3 / threads, 10, 20, 30},
                              {1e4, 2e9, 0.1 / threads, 1000, 1000, 1000}};
    r.ops["cast/f32"] = {{1e6, 0, 1e-4, 0, 0, 0}};
    r.peak_flops = {{"f32", 2e10 * threads}};
    p.ranks.push_back(r);
  }
  p.collectives = {{"all_reduce", 2, 1e3, 1e-4, 5e-5}, {"all_reduce", 2, 1e6, 1e-3, 5e-4}};
  return p;
}

OpCost cost(const char* name, OpClass cls, double bytes, double flops, int64_t m = 0, int64_t n = 0,
            int64_t k = 0) {
  OpCost c;
  c.name = name, c.cls = cls, c.bytes = bytes, c.flops = flops, c.dtype = DType::f32;
  c.m = m, c.n = n, c.k = k;
  return c;
}

}  // namespace

TEST_CASE("a profile is read back as it was written", "[plan]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/deep/er/profile.json";  // folders are made
  const MachineProfile p = example();
  save_profile(p, path);
  const MachineProfile q = load_profile(path);
  CHECK(q.machine == p.machine);
  CHECK(q.source == path);
  CHECK(q.measured);
  CHECK(q.cores == 4);
  CHECK(q.process_bytes == p.process_bytes);
  REQUIRE(q.ranks.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(q.ranks[i].threads == p.ranks[i].threads);
    CHECK(q.ranks[i].peak_flops == p.ranks[i].peak_flops);
    REQUIRE(q.ranks[i].ops.size() == 2);
    const OpSample &a = q.ranks[i].ops.at("matmul_nt/f32").at(1),
                   &b = p.ranks[i].ops.at("matmul_nt/f32").at(1);
    CHECK((a.bytes == b.bytes && a.flops == b.flops && a.seconds == b.seconds && a.m == b.m && a.n == b.n &&
           a.k == b.k));
  }
  REQUIRE(q.collectives.size() == 2);
  CHECK((q.collectives[1].op == "all_reduce" && q.collectives[1].seconds == 1e-3 &&
         q.collectives[1].cpu_seconds == 5e-4));
  save_profile(q, folder.path() + "/again.json");
  CHECK(read_file(folder.path() + "/again.json") == read_file(path));
  CHECK(q.sparse_matmul_speedup == 0);  // older files have none
  MachineProfile sparse = p;
  sparse.sparse_matmul_speedup = 1.4375;
  save_profile(sparse, path);
  CHECK(load_profile(path).sparse_matmul_speedup == 1.4375);
}

TEST_CASE("what is no profile is refused with its path, the value and the way out", "[plan]") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/profile.json";
  save_profile(example(), path);
  const json good = json::parse(read_file(path));
  const auto refusal = [&](const std::function<void(json&)>& change) {
    json j = good;
    change(j);
    write_file(path, j.dump());
    try {
      load_profile(path);
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::usage);
      CHECK_THAT(e.what(), Contains("profile " + path + ": "));
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal([](json&) {}) == "accepted");  // the control
  CHECK_THAT(refusal([](json& j) { j["format"] = 2; }), Contains("format 2, this ltrain reads 1"));
  CHECK_THAT(refusal([](json& j) { j["format"] = 1e300; }), Contains("format is 1e+300"));
  CHECK_THAT(refusal([](json& j) { j["cores"] = 0; }), Contains("cores is 0, must be a number from 1"));
  CHECK_THAT(refusal([](json& j) { j["cores"] = 1.5; }), Contains("cores is 1.5, must be a whole number"));
  CHECK_THAT(refusal([](json& j) { j["cores"] = "2"; }), Contains("cores is \"2\""));
  CHECK_THAT(refusal([](json& j) { j["process_bytes"] = -1; }), Contains("process_bytes is -1"));
  for (const json& value :
       {json(0), json(-1.4), json(100.5), json(1e300), json("1.4"), json(nullptr), json(true)})
    CHECK_THAT(refusal([&](json& j) { j["sparse_matmul_speedup"] = value; }),
               Contains("sparse_matmul_speedup is " + value.dump() + ", must be a number from 0.1 to 100"));
  CHECK_THAT(refusal([](json& j) { j["ranks"] = json::array(); }), Contains("no rank timings"));
  CHECK_THAT(refusal([](json& j) { j["ranks"][0]["threads"] = -3; }), Contains("threads is -3"));
  CHECK_THAT(refusal([](json& j) { j["ranks"][1]["peak_flops"]["f32"] = -1e9; }),
             Contains("peak_flops is -1"));
  CHECK_THAT(refusal([](json& j) { j["ranks"][1]["peak_flops"]["f32"] = nullptr; }),
             Contains("peak_flops is null"));
  CHECK_THAT(refusal([](json& j) { j["ranks"][0]["ops"]["cast/f32"][0][2] = -1; }),
             Contains("seconds of an op is -1"));
  CHECK_THAT(refusal([](json& j) {
               j["ranks"][0]["ops"]["cast/f32"][0] = {1, 2};
             }),
             Contains("[bytes, flops, seconds, m, n, k]"));
  CHECK_THAT(refusal([](json& j) { j["ranks"][0]["ops"]["cast/f32"][0][3] = 1e300; }),
             Contains("m of an op is 1e+300"));
  CHECK_THAT(refusal([](json& j) { j["collectives"][0]["bytes"] = 0; }),
             Contains("bytes of a collective is 0"));
  CHECK_THAT(refusal([](json& j) { j["collectives"][0]["ranks"] = 1; }),
             Contains("ranks of a collective is 1"));
  for (const char* key : {"format", "machine", "cores", "process_bytes", "ranks", "collectives"})
    CHECK_THAT(refusal([&](json& j) { j.erase(key); }), Contains("not a machine profile") && Contains(key));
  for (const char* text : {"", "{", "[]", "7", "{\"format\": 1e999}", "\xff\xfe", "null"}) {
    write_file(path, text);
    INFO(text);
    CHECK_THROWS_WITH(load_profile(path),
                      Contains("profile " + path + ": ") && Contains("run `ltrain bench` again"));
  }
  CHECK_THROWS_WITH(load_profile(folder.path() + "/none.json"),
                    Contains("none.json: cannot be read: No such file"));
  CHECK_THROWS_WITH(load_profile(folder.path()), Contains("profile " + folder.path()));
}

TEST_CASE("the default profile: LTRAIN_PROFILE, a guess without a file, an error for a bad one", "[plan]") {
  const TemporaryFolder folder;
  const char* old = std::getenv("LTRAIN_PROFILE");
  const std::string kept = old ? old : "";
  const std::string path = folder.path() + "/p.json";
  ::setenv("LTRAIN_PROFILE", path.c_str(), 1);
  CHECK(default_profile_path() == path);
  CHECK_FALSE(default_profile().measured);
  save_profile(example(), path);
  CHECK(default_profile().measured);
  write_file(path, "{}");
  CHECK_THROWS_WITH(default_profile(), Contains(path));
  old ? ::setenv("LTRAIN_PROFILE", kept.c_str(), 1) : ::unsetenv("LTRAIN_PROFILE");
}

namespace {

/// The variables of an environment, as they were when it goes.
struct KeptVariables {
  std::vector<std::pair<std::string, std::optional<std::string>>> before;
  explicit KeptVariables(const std::vector<std::string>& names) {
    for (const std::string& n : names) {
      const char* v = std::getenv(n.c_str());
      before.emplace_back(n, v ? std::optional<std::string>(v) : std::nullopt);
      ::unsetenv(n.c_str());
    }
  }
  ~KeptVariables() {
    for (const auto& [n, v] : before) v ? ::setenv(n.c_str(), v->c_str(), 1) : ::unsetenv(n.c_str());
  }
};

/// Root may read everything: what follows is done as nobody.
struct Nobody {
  bool root = ::geteuid() == 0;
  Nobody() {
    if (root) REQUIRE(::seteuid(65534) == 0);
  }
  ~Nobody() {
    if (root && ::seteuid(0) != 0) std::abort();
  }
};

}  // namespace

TEST_CASE("a default profile that cannot be looked at is done without, and the plan says why", "[plan]") {
  const TemporaryFolder folder;
  const KeptVariables kept({"LTRAIN_PROFILE", "XDG_CACHE_HOME", "HOME"});
  const auto source = [] {
    const MachineProfile p = default_profile();
    CHECK_FALSE(p.measured);
    return p.source;
  };
  ::chmod(folder.path().c_str(), 0755);
  const std::string home = folder.path() + "/home";
  save_profile(example(), home + "/.cache/ltrain/profile.json");
  ::setenv("HOME", home.c_str(), 1);
  CHECK(default_profile().measured);
  ::chmod(home.c_str(), 0);  // the home of somebody else, after sudo -u
  {
    const Nobody nobody;
    CHECK_THAT(source(),
               Contains("(" + home + "/.cache/ltrain/profile.json cannot be read: Permission denied)"));
    CHECK_THROWS_WITH(find_profile(home + "/.cache/ltrain/profile.json"), Contains("profile " + home));
    CHECK_THROWS_AS(save_profile(example(), home + "/.cache/ltrain/profile.json"), Error);
  }
  ::chmod(home.c_str(), 0755);
  CHECK(default_profile().measured);  // negative control
  {
    const Nobody nobody;
    CHECK(default_profile().measured);
  }
  ::setenv("HOME", (folder.path() + "/none").c_str(), 1);
  CHECK(source() == "built in");
  ::unsetenv("HOME");
  CHECK_NOTHROW(default_profile());
  write_file(folder.path() + "/file", "x");
  ::setenv("XDG_CACHE_HOME", (folder.path() + "/file").c_str(), 1);
  CHECK(source() == "built in");
  CHECK_THROWS_AS(save_profile(example(), default_profile_path()), Error);
  ::setenv("XDG_CACHE_HOME", std::string(5000, 'x').c_str(), 1);
  CHECK_THAT(source(), Contains("cannot be read: File name too long"));
}

TEST_CASE("a card is found in the name that its driver gives, and nowhere else", "[plan]") {
  for (const char* name : {"h100", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"})
    CHECK(card_profile(name).built_in);
  for (const char* name : {"h1000", "GH200 480GB", "H20", "h100x", "", "NVIDIA"})
    CHECK_FALSE(card_profile(name).built_in);
  CHECK(find_profile("H200").source == "h200, built in");
  // A card that was measured has the network of the machine that it is sold in, unless the file has one.
  const TemporaryFolder folder;
  MachineProfile card = example();
  card.machine = "NVIDIA H100 80GB HBM3";
  card.device_bytes = 80000000000;
  save_profile(card, folder.path() + "/card.json");
  const MachineProfile read = load_profile(folder.path() + "/card.json");
  CHECK((read.card == "h100" && read.cards_per_node == 8 && read.adapter_bytes_per_second == 0.9 * 50e9));
  CHECK_FALSE(read.network_given);
  CHECK(read.network_source == card_profile("h100").network_source);
  card.network_given = true;
  save_profile(card, folder.path() + "/network.json");
  CHECK(load_profile(folder.path() + "/network.json").adapter_bytes_per_second == 0);
  CHECK(load_profile(folder.path() + "/network.json").network_source == "by the profile");
  CHECK_THROWS_WITH(find_profile("h1000"), Contains("did you mean h100?"));
  CHECK_THROWS_WITH(
      find_profile("NVIDIA H100 80GB HBM3"),
      Contains("the cards built in are a100-40, a100, b200") && Contains("h100-pcie, h100, h200"));
}

TEST_CASE("prices: the sample's own time at its size, work over rate elsewhere", "[plan]") {
  const MachineProfile p = example();
  const ProfileCost one(p, 1, false), four(p, 4, false);
  CHECK(one.seconds(cost("matmul_nt", OpClass::matmul, 1e4, 2e9, 1000, 1000, 1000)) ==
        Approx(0.1).epsilon(1e-3));
  CHECK(four.seconds(cost("matmul_nt", OpClass::matmul, 1e4, 2e9, 1000, 1000, 1000)) ==
        Approx(0.025).epsilon(1e-3));
  CHECK(one.seconds(cost("cast", OpClass::elementwise, 2e6, 0)) == Approx(2e-4));
  // An op that was not measured is priced as the nearest of its kind, never as free.
  CHECK(one.seconds(cost("novel", OpClass::elementwise, 2e6, 0)) == Approx(2e-4));
  CHECK(one.seconds(cost("matmul_novel", OpClass::matmul, 1e4, 2e9, 1000, 1000, 1000)) ==
        Approx(0.1).epsilon(1e-3));
  CHECK(one.seconds(cost("empty", OpClass::elementwise, 0, 0)) == 0);
  CHECK(p.for_threads(3).threads == 4);
  // A matmul that skips zeros has its own speed over the dense one, if it was measured.
  OpCost sparse = cost("matmul_nt_sparse", OpClass::matmul, 1e4, 2e9, 1000, 1000, 1000);
  sparse.nonzeros = 0.5;
  CHECK(one.seconds(sparse) == Approx(0.1).epsilon(1e-3));
  MachineProfile skips = p;
  skips.sparse_matmul_speedup = 1.6;
  CHECK(ProfileCost(skips, 1, false).seconds(sparse) == Approx(0.1 / 1.6).epsilon(1e-3));
  CHECK(ProfileCost(skips, 1, false, 1, 0, false).seconds(sparse) == Approx(0.1).epsilon(1e-3));

  // Files have rates of their own, which ranks of a host share.
  MachineProfile disk = p;
  disk.offload_read_bytes_per_second = 2e9, disk.offload_write_bytes_per_second = 5e8;
  CHECK(ProfileCost(disk, 1, false).seconds(cost("offload_fetch", OpClass::offload, 1e9, 0)) == Approx(0.5));
  CHECK(ProfileCost(disk, 1, false, 2).seconds(cost("offload_store", OpClass::offload, 1e9, 0)) == Approx(4));

  OpCost c;
  c.name = c.collective = "all_reduce";
  c.cls = OpClass::collective;
  c.group_size = 2;
  const auto at = [&](double bytes) {
    c.bytes = c.wire_bytes = bytes;
    return one.seconds(c);
  };
  CHECK(at(1e3) == Approx(1e-4));
  CHECK(at(1e6) == Approx(1e-3));
  CHECK(at(std::sqrt(1e9)) == Approx(std::sqrt(1e-7)).epsilon(1e-3));  // halfway in log size
  CHECK(at(10) == Approx(1e-4));                                       // no faster than the smallest
  CHECK(at(1e7) == Approx(1e-2));
  c.group_size = 4;
  CHECK(at(1e6) == Approx(1.5e-3));  // (n - 1) / n over that of the measured group
  c.group_size = 1;
  CHECK(at(1e6) == 0);
  c.group_size = 2;
  CHECK(at(1e6) > 0);
  CHECK(one.stolen_seconds(c) == 0);
  CHECK(ProfileCost(p, 4, true).stolen_seconds(c) == Approx(5e-4));
}

TEST_CASE("nodes with a measured CPU are priced by the rate that their link sustains", "[plan]") {
  const TemporaryFolder folder;
  save_profile(example(), folder.path() + "/mine.json");
  const auto seconds = [&](const std::string& sustained, const std::string& ranks_a_link) {
    const std::string text =
        "format: ltrain.cluster.v1\nname: ours\nprofile: mine.json\nnodes: 2\ngpus_per_node: 4\n"
        "references: {tc: the bucket}\nlevels:\n  - name: link\n    ranks_a_link: " +
        ranks_a_link +
        "\n    seconds: {value: 1e-3, source: measured, reference: tc}\n"
        "    bytes_per_second: {value: 1e6, source: measured, reference: tc}\n"
        "    sustained: {value: " +
        sustained + ", source: measured, reference: tc}\n";
    const MachineProfile p = parse_cluster(text, folder.path() + "/ours.yaml");
    OpCost op = cost("all_reduce", OpClass::collective, 4e6, 0);
    op.collective = "all_reduce", op.group_size = 8, op.wire_bytes = op.network_bytes = 4e6;
    return ProfileCost(p, 1, false, 4, 8).seconds(op);
  };
  CHECK(seconds("1", "1") == Approx(4 + 2e-3).epsilon(1e-3));
  CHECK(seconds("0.5", "1") == Approx(8 + 2e-3).epsilon(1e-3));
  CHECK(seconds("0.5", "0") == Approx(4 * 8 + 2e-3).epsilon(1e-3));  // one link for the four ranks of a node
}
