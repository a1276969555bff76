// Drawings of plans: what their boxes say against the plan, and a page that asks nothing of anybody.
#include "planner/report/pictures.h"

#include <catch2/catch.hpp>
#include <set>

#include "runtime/machines/machine_profile.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/plan_print.h"
#include "tests/support/occurrences.h"

using namespace ltrain;
using Catch::Contains;
using ltrain::test::occurrences;

namespace {

const char* kSmall =
    "name: small\ndevice: cuda\nprecision: bf16\n"
    "model: {architecture: llama, vocab_size: 32000, hidden_size: 1024, intermediate_size: 2816, "
    "num_hidden_layers: 8, num_attention_heads: 16, num_key_value_heads: 8, max_position_embeddings: 4096}\n"
    "data: {seq_length: 2048}\n"
    "train: {global_batch_size: 32, train_steps: 10}\n";

/// The values of an attribute, in their order.
std::vector<double> values(const std::string& svg, const std::string& attribute) {
  std::vector<double> out;
  const std::string mark = " " + attribute + "=\"";
  for (size_t at = svg.find(mark); at != std::string::npos; at = svg.find(mark, at + 1))
    out.push_back(std::stod(svg.substr(at + mark.size())));
  return out;
}

double sum(const std::vector<double>& of) {
  double total = 0;
  for (double v : of) total += v;
  return total;
}

struct Drawing {
  MachineProfile profile = find_profile("h100");
  Recipe recipe;
  Plan plan;
  RankMap map;
  explicit Drawing(const std::vector<std::string>& settings, int world = 16) {
    recipe = resolve(parse_recipe(kSmall, "small.yaml", settings), world, 8);
    plan = make_plan(recipe, profile);
    map = map_ranks(recipe, host_names(world / 8, {}));
  }
};

}  // namespace

TEST_CASE("bars of memory add up to the bytes of the plan") {
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"parallel.data=16"},
        {"parallel.data=4", "parallel.pipeline=4"},
        {"parallel.data=16", "parallel.zero_stage=2", "offload.optimizer.device=cpu"}}) {
    const Drawing d(settings);
    int64_t bytes = 0;
    for (const RankPlan& r : d.plan.ranks) bytes += r.total_bytes + r.host_bytes;
    const std::string svg = memory_svg(d.plan);
    CHECK(static_cast<int64_t>(sum(values(svg, "data-bytes"))) == bytes);
    CHECK(occurrences(svg, "#c00000") >= d.plan.ranks.size());  // memory of a card
  }
}

TEST_CASE("a timeline has the time of every op, also of those that are drawn together") {
  const Drawing d({"parallel.data=8", "parallel.tensor=2"});
  const std::vector<TraceEntry> entries = step_entries(d.recipe, d.profile, 0);
  double seconds = 0;
  size_t ops = 0;
  for (const TraceEntry& e : entries) seconds += e.seconds, ops += e.seconds > 0;
  const std::string svg = timeline_svg(entries, 0);
  CHECK(sum(values(svg, "data-seconds")) == Approx(seconds).epsilon(1e-7));
  CHECK(static_cast<size_t>(sum(values(svg, "data-ops"))) == ops);
  CHECK(values(svg, "data-ops").size() < ops);  // some are joined
  CHECK(svg.find(">compute<") < svg.find(">tensor<"));
  const std::string detail = timeline_svg(first_part(entries), 0);
  CHECK(sum(values(detail, "data-seconds")) < seconds);
  CHECK(values(detail, "data-ops").size() > 100);
}

TEST_CASE("a timeline of 200,000 ops of three classes has no more boxes than pixels, and all their time") {
  const OpClass classes[] = {OpClass::matmul, OpClass::elementwise, OpClass::attention};
  std::vector<TraceEntry> entries;
  for (int i = 0; i < 200'000; ++i) {
    TraceEntry e;
    e.name = "op";
    e.stream = "compute";
    e.cls = classes[i % 3];
    e.start = i;
    e.seconds = 0.5;
    entries.push_back(e);
  }
  entries[100'000].seconds = 1000;  // stays a box of its own
  const std::string svg = timeline_svg(entries, 0);
  CHECK(sum(values(svg, "data-seconds")) == Approx(199'999 * 0.5 + 1000).epsilon(1e-7));
  CHECK(sum(values(svg, "data-ops")) == 200'000);
  CHECK(values(svg, "data-ops").size() <= 1400 / 2 * 3 + 2);
  CHECK_THAT(svg, Contains("data-ops=\"1\" data-seconds=\"1000\""));
}

TEST_CASE("a map draws every rank on its node, and the bytes that ranks send") {
  const Drawing d({"parallel.data=2", "parallel.pipeline=4", "parallel.tensor=2"});
  const std::string svg = rank_map_svg(d.map, d.plan);
  const std::vector<double> ranks = values(svg, "data-rank");
  CHECK(ranks.size() == 16);
  CHECK(std::set<double>(ranks.begin(), ranks.end()).size() == 16);
  CHECK(values(svg, "data-node") == std::vector<double>{0, 1});
  double sent = 0, network = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const RankPlan& r = d.plan.ranks[static_cast<size_t>(stage)];
    sent += 4.0 * static_cast<double>(r.train_wire_bytes);
    for (const CollectivePlan& c : r.collectives) network += 4.0 * static_cast<double>(c.network_bytes);
  }
  CHECK(network > 0);
  CHECK(sum(values(svg, "data-network-bytes")) == network);
  CHECK(sum(values(svg, "data-inside-bytes")) == sent - network);
}

TEST_CASE("of a thousand nodes the first are drawn, and the others named") {
  const Drawing d({"parallel.data=512", "train.global_batch_size=512"}, 512);
  const std::string svg = rank_map_svg(d.map, d.plan);
  CHECK(values(svg, "data-node").size() == 32);
  CHECK_THAT(svg, Contains("and 32 nodes more"));
}

TEST_CASE("a drawing of a search has every layout that was tried, and numbers the list") {
  const LoadRecipe load = [](const std::vector<std::string>& s) {
    return parse_recipe(kSmall, "small.yaml", s);
  };
  const MachineProfile profile = find_profile("h100");
  SearchLimits limits;
  limits.world = 16, limits.ranks_per_node = 8;
  const SearchResult result = search_layouts(load, profile, limits, 3);
  REQUIRE(result.found.size() == 3);
  CHECK(result.tried.size() >= 3);
  CHECK(result.tried[0].step_seconds == Approx(result.found[0].plan.step_seconds()).epsilon(1e-9));
  const std::string svg = search_svg(result, load({}), limits);
  CHECK(occurrences(svg, "<circle") == result.tried.size() + 3);
  for (const char* number : {"1", "2", "3"})
    CHECK_THAT(svg, Contains(std::string("data-layout=\"") + number + "\""));
}

TEST_CASE("a page asks no other host, runs no scripts, and escapes what the recipe says") {
  const Drawing d({"parallel.data=4", "parallel.pipeline=4"});
  const std::vector<Picture> pictures = plan_pictures(d.plan, d.recipe, d.profile, d.map);
  std::vector<std::string> names;
  for (const Picture& p : pictures) names.push_back(p.name);
  CHECK(names == std::vector<std::string>{"memory", "timeline", "detail", "schedule", "map"});
  const std::string page = html_page("<script>alert('a & b')</script>", plan_lead(d.plan), pictures,
                                     plan_text(d.plan, d.recipe, &d.map));
  CHECK(occurrences(page, "<script") == 0);
  CHECK_THAT(page, Contains("&lt;script&gt;alert('a &amp; b')&lt;/script&gt;"));
  CHECK(occurrences(page, "http") ==
        1 + occurrences(page, "<svg xmlns=\"http://www.w3.org/2000/svg\""));  // and http-equiv
  for (const char* attribute : {" src=", "url(", "@import", "<link", "<iframe"})
    CHECK(occurrences(page, attribute) == 0);
  CHECK_THAT(page, Contains("default-src 'none'") && Contains("fits: a rank needs"));
  CHECK(occurrences(page, "<h2 id=") == pictures.size() + 1);
}
