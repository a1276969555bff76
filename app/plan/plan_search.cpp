#include "app/plan/plan_search.h"

#include <chrono>
#include <cstdio>

#include "app/progress_line.h"
#include "base/bytes_text.h"
#include "base/error.h"
#include "planner/search/search.h"
#include "runtime/files/write_file.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/make_plan.h"
#include "runtime/plan/rank_map.h"
#include "runtime/recipe/diagnostics.h"
#include "runtime/recipe/schema/schema_parts.h"
#include "runtime/weights/frozen_model.h"

namespace ltrain::app {
namespace {

constexpr int kMostRanksSearched = 1 << 18;
constexpr int64_t kMostBatch = int64_t{1} << 24;

/// Layouts whose speeds differ by less count as equally fast, because plans are not more exact than that.
constexpr double kTie = 0.005;
/// Without --keep-free, 1/32 of the memory of a card or host stays free for memory that plans do not include:
/// other programs and allocator fragmentation.
constexpr int64_t kKeptShare = 32;

/// `memory`: bytes of a card or of this host.
int64_t bytes_to_keep(const std::string& text, int64_t memory) {
  if (text.empty()) return memory / kKeptShare;
  const double bytes = recipe::read_bytes(text);
  if (bytes != 0 && !(bytes >= 0x1p20 && bytes < 0x1p50))
    fail(ExitCode::usage,
         "--keep-free {}: must be an amount of memory, 0 or 1MiB and more; nearest valid value: 4GiB", text);
  return static_cast<int64_t>(bytes);
}

/// Parses "256..2048".
std::pair<int64_t, int64_t> batch_range(const std::string& text, const Recipe& given) {
  if (text.empty()) return {0, 0};
  long long low = 0, high = 0;
  int end = 0;
  const bool read = std::sscanf(text.c_str(), "%lld..%lld%n", &low, &high, &end) == 2 &&
                    end == static_cast<int>(text.size());
  const bool turned = read && high >= 1 && high < low && low <= kMostBatch;
  if (!read || low < 1 || high < low || high > kMostBatch)
    fail(ExitCode::usage,
         "--global-batch {}: must be LOW..HIGH, sequences of a step, 1 to {}; nearest valid value: {}..{}",
         text, kMostBatch, turned ? high : given.train.global_batch_size,
         turned ? low : 2 * given.train.global_batch_size);
  return {low, high};
}

/// Refuses limits that contradict the recipe or the machine, because no layout could be found.
void check_limits(const SearchOptions& o, const SearchLimits& limits, const Recipe& given,
                  const MachineProfile& profile) {
  const Parallel& p = given.parallel;
  const auto sets = [&](const char* key) { return given.origins && given.origins->has(key); };
  const auto place = [&](const char* key) { return given.origins->place(key).text(); };
  if (o.max_tensor > 0 && sets("parallel.tensor") && p.tensor > o.max_tensor)
    fail(ExitCode::usage,
         "--max-tensor {}: {} sets parallel.tensor to {}, and what a recipe sets stays; nearest valid value: "
         "{}",
         o.max_tensor, place("parallel.tensor"), p.tensor, p.tensor);
  if (profile.device_bytes > 0 && limits.keep_free >= profile.device_bytes)
    fail(ExitCode::usage,
         "--keep-free {}: a card has {}, and nothing would be left; nearest valid value: 4GiB", o.keep_free,
         bytes_text(profile.device_bytes));
  const std::pair<const char*, int64_t> axes[] = {{"parallel.tensor", p.tensor},
                                                  {"parallel.pipeline", p.pipeline},
                                                  {"parallel.context", p.context},
                                                  {"parallel.data", p.data}};
  int64_t ranks = 1;
  std::string which;
  for (const auto& [key, size] : axes)
    if (sets(key) && size > 1) {
      ranks *= size;
      which += fmt::format("{}{} {}", which.empty() ? "" : ", ", key, size);
    }
  if (o.gpus % ranks != 0)
    fail(ExitCode::usage,
         "--gpus {}: what the recipe sets ({}) makes groups of {} ranks; nearest valid value: {}", o.gpus,
         which, ranks, std::max<int64_t>(1, (o.gpus + ranks / 2) / ranks) * ranks);
}

/// Shows the progress of a search on a terminal line. The line is removed when the search ends.
class SearchLine {
 public:
  explicit SearchLine(SearchLimits& limits) {
    if (!stderr_redraws()) return;
    std::fprintf(stderr, "\rlooking at the layouts of %d ranks\033[K", limits.world);
    open_ = true;
    limits.progress = [this, most = limits.seconds](int64_t tried, int64_t open) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
      std::fprintf(stderr, "\r%lld layouts tried, %lld may be faster, %.0f of at most %.0f s\033[K",
                   static_cast<long long>(tried), static_cast<long long>(open), elapsed.count(), most);
    };
  }
  ~SearchLine() {
    if (open_) std::fputs("\r\033[K", stderr);
  }
  SearchLine(const SearchLine&) = delete;
  SearchLine& operator=(const SearchLine&) = delete;

 private:
  bool open_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Refuses --allow-fp8 if no layout could use it.
void check_fp8_open(const Recipe& given, const MachineProfile& profile) {
  if (given.origins->has("precision"))
    fail(ExitCode::usage,
         "--allow-fp8: {} sets precision to {}, and what a recipe sets stays; leave out one of both",
         given.origins->place("precision").text(), to_string(given.precision));
  if (!profile.device || !profile.device->matmul.peak.contains("fp8"))
    fail(ExitCode::usage, "--allow-fp8: {} has no matmuls of FP8; leave it out, or take --profile h100",
         profile.source);
}

/// Writes the scatter plot, and the drawings of the first layout in the list.
void draw(const PictureOptions& o, const SearchResult& result, const Recipe& given, const Recipe& best,
          const SearchLimits& limits, const MachineProfile& profile, const std::string& text) {
  const int nodes = (limits.world + limits.ranks_per_node - 1) / limits.ranks_per_node;
  const Plan& plan = result.found.front().plan;
  std::vector<Picture> pictures = plan_pictures(
      plan, best, profile, map_ranks(best, host_names(nodes, process_variables(), plan.for_this_machine)));
  pictures.insert(pictures.begin(),
                  {"search", "Layouts: time of a step against memory", search_svg(result, given, limits)});
  std::vector<std::string> lead = plan_lead(plan);
  lead.insert(
      lead.begin() + 1,
      fmt::format(
          "The {} on {} ranks{}: {}. The drawings after the first are of it.",
          result.untried > 0
              ? fmt::format("fastest of {} layouts that were tried", result.composed + result.whole)
              : fmt::format("fastest layout of {}", result.allowed),
          limits.world,
          result.untried > 0 ? fmt::format("; {} were not tried and may be faster", result.untried) : "",
          layout_text(result.found.front().layout, given)));
  write_pictures(o, fmt::format("Layouts of {} on {} ranks", given.name, limits.world), lead, pictures, text);
}

const FoundLayout& numbered(const SearchResult& result, int number) {
  if (number < 1 || number > static_cast<int>(result.found.size()))
    fail(ExitCode::usage, "--explain {}: the list has layouts 1 to {}; nearest valid value: {}", number,
         result.found.size(), number < 1 ? size_t{1} : result.found.size());
  return result.found[static_cast<size_t>(number) - 1];
}

}  // namespace

void add_search(CLI::App& plan, SearchOptions& o) {
  plan.add_flag("--search", o.on, "Find the fastest layouts of the recipe that fit; what it sets stays");
  plan.add_option("--gpus", o.gpus, "Ranks of the layouts that --search looks at")
      ->check(CLI::Range(1, kMostRanksSearched));
  plan.add_option(
      "--keep-free", o.keep_free,
      "Memory that a layout of --search leaves on each card or host: 4GiB; default: a 32nd of it");
  plan.add_option("--max-tensor", o.max_tensor,
                  "Most tensor ranks that --search tries; default: the ranks of a node")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 18));
  plan.add_option("--global-batch", o.global_batch,
                  "LOW..HIGH: global batches that --search tries, from the low one doubling");
  plan.add_flag("--allow-fp8", o.allow_fp8,
                "Of the fastest layouts try FP8 in linear layers, which changes the numbers of a run");
  plan.add_option("--seconds", o.seconds, "Time after which --search tries no more of the fastest layouts")
      ->check(CLI::Range(1.0, 1e6));
  plan.add_option("--explain", o.explain, "Compare two layouts of the list of --search by their numbers")
      ->expected(2);
  plan.add_option("--write", o.write, "Write the recipe with the first layout of --search to a file");
}

void check_search(const SearchOptions& o) {
  const std::pair<const char*, bool> given[] = {{"--gpus", o.gpus > 0},
                                                {"--seconds", o.seconds != SearchOptions().seconds},
                                                {"--keep-free", !o.keep_free.empty()},
                                                {"--max-tensor", o.max_tensor > 0},
                                                {"--allow-fp8", o.allow_fp8},
                                                {"--global-batch", !o.global_batch.empty()},
                                                {"--explain", !o.explain.empty()},
                                                {"--write", !o.write.empty()}};
  for (const auto& [name, is] : given)
    if (is && !o.on) fail(ExitCode::usage, "ltrain plan: {} is an option of --search; add --search", name);
  if (o.on && o.gpus == 0) fail(ExitCode::usage, "ltrain plan --search: on how many? --search --gpus 64");
}

void search(const SearchOptions& o, const PictureOptions& pictures, const std::string& path,
            const std::vector<std::string>& overrides, Recipe given, const PlanPrices& prices, bool json) {
  check_skew(given, prices.expert_skew, true);
  if (given.device == DeviceChoice::automatic)
    given.device = gpus_for(given) > 0 ? DeviceChoice::cuda : DeviceChoice::cpu;
  const LoadRecipe load = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), settings.begin(), settings.end());
    Recipe recipe = load_recipe(path, all);
    recipe.device = given.device;
    read_frozen_model(recipe);
    return recipe;
  };
  SearchLimits limits;
  limits.world = o.gpus;
  const JobSize size = planned_size(given, environment_for_plans(process_variables()), gpus_for(given),
                                    o.gpus, prices.profile);
  limits.ranks_per_node = size.ranks_per_node;
  limits.max_tensor = o.max_tensor;
  limits.seconds = o.seconds;
  std::tie(limits.batch_low, limits.batch_high) = batch_range(o.global_batch, given);
  const MachineProfile profile = profile_for(
      prices, given.device == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu, limits.ranks_per_node);
  if (o.allow_fp8) check_fp8_open(given, profile);
  limits.allow_fp8 = o.allow_fp8;
  limits.keep_free =
      bytes_to_keep(o.keep_free, profile.device_bytes > 0 ? profile.device_bytes : host_memory_bytes());
  limits.tie = kTie;
  check_limits(o, limits, given, profile);
  const SearchResult result = [&] {
    SearchLine line(limits);
    return search_layouts(load, profile, limits);
  }();
  std::string out = json ? search_json(result, given, limits) + "\n" : search_text(result, given, limits);
  if (!o.explain.empty() && !result.found.empty()) {
    const std::string text =
        explain_text(numbered(result, o.explain[0]), numbered(result, o.explain[1]), given);
    if (!json) out += "\n" + text;
  }
  std::fputs(out.c_str(), stdout);
  if (result.found.empty()) throw CLI::RuntimeError(static_cast<int>(ExitCode::does_not_fit));
  if (o.write.empty() && !pictures.given()) return;
  std::vector<std::string> settings;
  for (const auto& [key, value] : result.found.front().settings) settings.push_back(key + "=" + value);
  const Recipe best = load(settings);
  if (!o.write.empty()) write_file(o.write, dump_yaml(best));
  if (pictures.given())
    draw(pictures, result, given, resolve(best, limits.world, limits.ranks_per_node), limits, profile,
         search_text(result, given, limits));
}

}  // namespace ltrain::app
