// Files of measured links, and plans that are priced by them.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/bench/links_file.h"
#include "runtime/machines/cluster.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "tests/runtime/plan/tiny_recipe.h"

using namespace ltrain;
using Catch::Contains;
using nlohmann::json;

namespace {

/// Links of `hosts` hosts below switches of two: all pairs of a host, and those of one index between hosts.
/// `leaf` and `spine`: rates between hosts below one switch, and of others.
LinksFile made_up(int hosts, int on_host, double inside, double leaf, double spine,
                  DeviceKind device = DeviceKind::cuda) {
  LinksFile f;
  f.file = "links.json", f.device = device, f.ranks_on_host = on_host;
  const int n = hosts * on_host;
  for (int r = 0; r < n; ++r)
    f.ranks.push_back(
        {"h" + std::to_string(r / on_host), hosts > 1 ? "s" + std::to_string(r / on_host / 2) : ""});
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b) {
      if (a / on_host == b / on_host)
        f.links.push_back({a, b, inside});
      else if (a % on_host == b % on_host)
        f.links.push_back({a, b, a / on_host / 2 == b / on_host / 2 ? leaf : spine});
    }
  return f;
}

std::string text_of(const LinksFile& f) {
  return links_file_json(f.links, judge_links(f.links, f.ranks), f.ranks, f.device);
}

std::string refusal(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "was accepted";
}

Recipe on_h100(int ranks, int on_host) {
  Recipe r = test::tiny_recipe(
      ranks, {"train.global_batch_size=48", "parallel.data=" + std::to_string(ranks)}, on_host);
  r.device = DeviceChoice::cuda;
  return r;
}

/// Seconds and bytes of the collectives that leave a host.
std::pair<double, double> network_of(const Plan& p) {
  double seconds = 0, bytes = 0;
  for (const CollectivePlan& c : p.ranks[0].collectives)
    if (c.network_bytes > 0) seconds += c.seconds, bytes += static_cast<double>(c.wire_bytes);
  REQUIRE(bytes > 0);
  return {seconds, bytes};
}

}  // namespace

TEST_CASE("a file of measured links is read as it was written") {
  const LinksFile f = made_up(4, 2, 1.25e9, 3.5e8, 1.0 / 3 * 1e9, DeviceKind::cpu);
  const LinksFile read = parse_links(text_of(f), "links.json");
  CHECK(read.device == DeviceKind::cpu);
  CHECK(read.ranks_on_host == 2);
  REQUIRE(read.links.size() == f.links.size());
  for (size_t i = 0; i < f.links.size(); ++i)
    CHECK((read.links[i].from == f.links[i].from && read.links[i].to == f.links[i].to &&
           read.links[i].bytes_per_second == f.links[i].bytes_per_second));
  REQUIRE(read.ranks.size() == f.ranks.size());
  CHECK((read.ranks[5].host == "h2" && read.ranks[5].switches == "s1"));
}

TEST_CASE("a file of links with a wrong value is refused by its key and value") {
  const json good = json::parse(text_of(made_up(2, 2, 4e11, 5e10, 5e10)));
  const auto said = [&](const char* pointer, const json& value) {
    json j = good;
    j[json::json_pointer(pointer)] = value;
    return refusal([&] { parse_links(j.dump(), "links.json"); });
  };
  CHECK_THAT(said("/schema", "ltrain.links.v9"),
             Contains("links.json: schema = \"ltrain.links.v9\": must be"));
  CHECK_THAT(said("/device", "tpu"), Contains("device = \"tpu\": must be cpu or cuda"));
  for (const json& rate : {json(0), json(-1.5), json(1e16), json("fast"), json(nullptr)})
    CHECK_THAT(
        said("/links/1/bytes_per_second", rate),
        Contains("links.json: links[1].bytes_per_second = " + rate.dump() + ": must be a number from 1"));
  for (const json& rank : {json(-1), json(4), json(1e300), json(0.5), json("0")})
    CHECK_THAT(said("/links/0/from", rank), Contains("links[0].from = " + rank.dump() + ": must be"));
  CHECK_THAT(said("/links/0/to", 0), Contains("links[0] = {") && Contains("must join two ranks"));
  CHECK_THAT(said("/links/2", 7), Contains("links[2] = 7: must be an object"));
  CHECK_THAT(said("/links", json::array()), Contains("links = 0: must be a list of 1"));
  CHECK_THAT(said("/ranks", "all"), Contains("ranks = \"all\": must be a list of 2"));
  CHECK_THAT(said("/ranks/3/host", std::string(5000, 'h')), Contains("ranks[3].host = ") && Contains("4096"));
  CHECK_THAT(said("/ranks/3/host", "\x1b[2J"), Contains("2 ranks on host h0 and 1 on host h1"));
  CHECK_THAT(said("/ranks/3/host", "h0"), Contains("ranks[3].host = h0: ranks of one host must follow"));
  CHECK_THAT(said("/ranks/1/switches", 3), Contains("ranks[1].switches = 3: must be a text"));
  json without = good;
  without["ranks"][1].erase("host");
  CHECK_THAT(refusal([&] { parse_links(without.dump(), "links.json"); }),
             Contains("links.json: ranks[1] has no key host"));
  // A number that is not finite, a key twice, and a text that ends early.
  std::string huge = good.dump();
  huge.replace(huge.find("400000000000"), 12, "1e9999999999");
  CHECK_THAT(refusal([&] { parse_links(huge, "links.json"); }), Contains("links.json: "));
  CHECK_THAT(refusal([&] { parse_links("{\"schema\":1,\"schema\":2}", "links.json"); }), Contains("schema"));
  CHECK_THAT(refusal([&] { parse_links(good.dump().substr(0, 200), "l\x1b"); }), Contains("l\\x1b: "));
  CHECK_THAT(refusal([] { read_links("/nowhere/links.json"); }),
             Contains("--links /nowhere/links.json: ") && Contains("ltrain bench --links --output"));
}

TEST_CASE("a plan has the measured rates of its levels, and half the rate takes its bytes' time twice") {
  const Recipe r = on_h100(16, 8);
  const auto plan = [&](double network) {
    MachineProfile p = card_profile("h100");
    price_by_links(p, made_up(2, 8, 3e11, network, network), DeviceKind::cuda, 8);
    return make_plan(r, p);
  };
  const double rate = 1e9;  // each rank's, far below the one within a host
  const Plan whole = plan(rate), half = plan(rate / 2);
  const auto [fast, bytes] = network_of(whole);
  const auto [slow, same] = network_of(half);
  CHECK(bytes == same);
  // A ring for each of the eight ranks of a host.
  CHECK(slow - fast == Approx(bytes / (8 * rate)).epsilon(1e-9));
  CHECK(whole.network_bytes_per_second == Approx(8 * rate));
  CHECK(whole.network_given);
  CHECK(whole.network_source == "measured in links.json: median of 8 links");
  CHECK_THAT(
      plan_text(whole, r),
      Contains("(links measured in links.json: NVLink 300.000 GB/s (median of 56), InfiniBand 1.000 GB/s "
               "(median of 8))") &&
          Contains("between nodes: 64.0 Gbit/s") && !Contains("slow links"));
  const json j = json::parse(plan_json(whole));
  CHECK(j["links"]["levels"][1]["bytes_per_second"] == rate);
  int measured = 0;
  for (const json& f : j["figures"])
    measured += f["source"] == "measured" && f["reference"] == "links.json: median of 8 links";
  CHECK(measured == 2);  // the rate, and the share of it
  // Without the file the profile's figures are back, and the JSON has no links.
  const Plan plain = make_plan(r, card_profile("h100"));
  CHECK_FALSE(json::parse(plan_json(plain)).contains("links"));
  CHECK(network_of(plain).first < fast);
}

TEST_CASE("measured links price a cluster level by level, and slow links are named beside the medians") {
  const std::string figures =
      "seconds: {value: 4.0e-6, source: assumed, reference: x}, bytes_per_second: {value: 50e9, source: "
      "assumed, reference: x}, sustained: {value: 0.9, source: assumed, reference: x}";
  MachineProfile p = parse_cluster(
      "format: ltrain.cluster.v1\nname: ours\nprofile: h100\nnodes: 8\n"
      "gpus_per_node: 4\nlevels:\n  - {name: Leaf, ranks: 8, " +
          figures + "}\n  - {name: Spine, " + figures + "}\n",
      "c.yaml");
  LinksFile f = made_up(4, 4, 3e11, 4e10, 2e10);
  for (RankLink& l : f.links)
    if (l.from == 11 && l.to == 15) l.bytes_per_second = 1e9;  // below one switch
  price_by_links(p, f, DeviceKind::cuda, 4);
  REQUIRE(p.links.levels.size() == 3);
  CHECK((p.levels[1].name == "Leaf" && p.levels[1].bytes_per_second.value == 4e10));
  CHECK((p.levels[2].name == "Spine" && p.levels[2].bytes_per_second.value == 2e10));
  CHECK((p.levels[1].sustained.value == 1 && p.levels[1].ranks_a_link == 1 && p.levels[1].ranks == 8));
  CHECK((p.links.levels[1].slow == 1 && p.links.levels[1].lowest == 1e9 && p.links.levels[2].slow == 0));
  const Recipe r = on_h100(16, 4);
  CHECK_THAT(
      plan_text(make_plan(r, p), r),
      Contains("(slow links: 1, the slowest of them 1.000 GB/s between rank 11 on host h2 and rank 15 on "
               "host h3; "));
  // A network of one level has the median of all.
  MachineProfile one = card_profile("h100");
  price_by_links(one, f, DeviceKind::cuda, 4);
  CHECK(one.levels.back().bytes_per_second.value == 2e10);
}

TEST_CASE("links between CPU ranks replace the samples of one host and the network of several") {
  MachineProfile laptop = builtin_profile(4);
  laptop.collectives = {{"all_reduce", 2, 1e6, 1.0, 1.0}};
  price_by_links(laptop, made_up(1, 2, 2e9, 0, 0, DeviceKind::cpu), DeviceKind::cpu, 2);
  CHECK(laptop.link_bytes_per_second == 2e9);
  CHECK(laptop.collectives.empty());
  CHECK_FALSE(laptop.network_given);
  MachineProfile hosts = builtin_profile(4);
  LinksFile f = made_up(2, 2, 1, 5e8, 5e8, DeviceKind::cpu);
  std::erase_if(f.links, [](const RankLink& l) { return l.bytes_per_second == 1; });
  const double before = hosts.link_bytes_per_second;
  price_by_links(hosts, f, DeviceKind::cpu, 2);
  CHECK(hosts.link_bytes_per_second == before);
  CHECK(hosts.adapter_bytes_per_second == 5e8);
  const Plan plan = make_plan(test::tiny_recipe(4, {}, 2), hosts);
  CHECK(plan.network_bytes_per_second == 1e9);
  CHECK_THAT(plan_text(plan, test::tiny_recipe(4, {}, 2)), !Contains("was not measured"));
}

TEST_CASE("links of another device or another number of ranks on a host price no plan") {
  MachineProfile p = card_profile("h100");
  const auto said = [&](const LinksFile& f, int on_host) {
    return refusal([&] { price_by_links(p, f, DeviceKind::cuda, on_host); });
  };
  CHECK_THAT(said(made_up(2, 8, 3e11, 5e10, 5e10, DeviceKind::cpu), 8),
             Contains("--links links.json: was measured with --device cpu, and the plan has device: cuda"));
  CHECK_THAT(said(made_up(4, 1, 3e11, 5e10, 5e10), 8), Contains("was measured with 1 rank on a host") &&
                                                           Contains("the plan has 8") &&
                                                           Contains("with 8 on each host"));
  p.site_profiles = {p};
  CHECK_THAT(said(made_up(2, 8, 3e11, 5e10, 5e10), 8), Contains("site_profiles"));
}
