#include "app/data/data_stats.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/load_with_notes.h"
#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/check/check_job.h"
#include "runtime/check/data_reads.h"
#include "runtime/check/data_sources.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/program/recipe_program.h"
#include "runtime/train/training_data.h"

namespace ltrain::app {
namespace {

struct StatsCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
  int64_t read_steps = 0;

  void run() const {
    const Recipe given = load_with_notes(recipe, overrides);
    const JobSize size = planned_size(given, {}, 0);
    Recipe r = resolve(given, size.world, size.ranks_per_node);
    check_data_given(r);
    resolve_sources(r, true);
    for (const std::vector<DataSource>* list : lists_of(r))
      for (const DataSource& s : *list)
        if (s.pending) refuse_unknown(s.path);
    if (!training_files_exist(r)) refuse_unknown(r.data.train[0].path);
    check_data(r);
    const std::vector<SourceStatistics> all = source_statistics(r);
    const std::optional<ReadRate> rate =
        read_steps > 0 ? std::optional(read_as_rank(r, read_steps)) : std::nullopt;
    json ? print_json(given, r, all, rate) : print(given, r, all);
    if (rate && !json)
      std::printf("one of %d data-parallel ranks reads %.3g tokens/s: %lld in %.3f s\n", rate->ranks,
                  static_cast<double>(rate->tokens) / rate->seconds, static_cast<long long>(rate->tokens),
                  rate->seconds);
  }

  [[noreturn]] static void refuse_unknown(const std::string& path) {
    fail(ExitCode::data,
         "{}: is not tokenised yet, and its tokens are not known. `ltrain data prepare RECIPE` makes the "
         "token "
         "files, as `ltrain run` does before it trains, or with data.shuffle_window while it trains",
         printable(path));
  }

  static std::vector<const std::vector<DataSource>*> lists_of(const Recipe& r) {
    std::vector<const std::vector<DataSource>*> lists{&r.data.train};
    for (const DataStage& stage : r.data.stages) lists.push_back(&stage.train);
    return lists;
  }

  /// Path of a source as the recipe has it.
  static std::string path_of(const Recipe& given, const SourceStatistics& s) {
    const std::vector<DataSource>* list = &given.data.train;
    for (size_t i = 0; i < given.data.stages.size(); ++i)
      if (s.list == fmt::format("data.stages.{}.train", i)) list = &given.data.stages[i].train;
    return list->at(static_cast<size_t>(s.number)).path;
  }

  static int64_t samples_of(const Recipe& r) { return samples_before_step(r, r.train.train_steps + 1); }

  /// Tokens that the first data-parallel rank reads in some steps, and the time that it takes.
  struct ReadRate {
    int ranks = 0;
    int64_t tokens = 0;
    double seconds = 0;
  };
  static ReadRate read_as_rank(const Recipe& r, int64_t steps) {
    const data::LoaderOptions options = training_options(r, mesh_of(r, 0));
    const auto begin = std::chrono::steady_clock::now();
    data::BatchLoader loader(options, 0);
    data::Batch batch;
    ReadRate rate{.ranks = static_cast<int>(r.parallel.data)};
    for (int64_t i = 0; i < steps * loader.micro_steps(); ++i) {
      loader.next(batch);
      rate.tokens += static_cast<int64_t>(batch.tokens.size());
    }
    rate.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return rate;
  }

  static void print(const Recipe& given, const Recipe& r, const std::vector<SourceStatistics>& all) {
    const bool packed = r.data.packing != data::SamplePacking::concatenate;
    std::printf("%-28s %12s %15s %10s %7s %8s%s\n", "source", "documents", "tokens", "mean", "share",
                "epochs", packed ? " padding" : "");
    std::string list;
    for (const SourceStatistics& s : all) {
      if (s.list != list && all.back().list != "data.train") std::printf("%s:\n", s.list.c_str());
      list = s.list;
      std::printf("%-28s %12lld %15lld %10.1f %6.1f%% %8.2f%s\n", printable(path_of(given, s), 60).c_str(),
                  static_cast<long long>(s.documents), static_cast<long long>(s.tokens), mean(s),
                  100 * s.share, s.reads.epochs(),
                  packed ? fmt::format(" {:6.2f}%", 100 * padding(r, s)).c_str() : "");
    }
    std::printf("%lld steps read %lld samples of %lld tokens; epochs are those of the run, over all stages\n",
                static_cast<long long>(r.train.train_steps), static_cast<long long>(samples_of(r)),
                static_cast<long long>(r.data.seq_length));
  }

  static void print_json(const Recipe& given, const Recipe& r, const std::vector<SourceStatistics>& all,
                         const std::optional<ReadRate>& rate) {
    nlohmann::ordered_json j{{"schema", 1},
                             {"train_steps", r.train.train_steps},
                             {"samples", samples_of(r)},
                             {"seq_length", r.data.seq_length},
                             {"packing", to_string(r.data.packing)},
                             {"sources", nlohmann::ordered_json::array()}};
    for (const SourceStatistics& s : all)
      j["sources"].push_back({{"list", s.list},
                              {"path", path_of(given, s)},
                              {"token_files", s.files},
                              {"documents", s.documents},
                              {"tokens", s.tokens},
                              {"mean_document_tokens", mean(s)},
                              {"share", s.share},
                              {"padding", padding(r, s)},
                              {"samples", s.reads.samples},
                              {"samples_read", s.reads.read},
                              {"epochs", s.reads.epochs()}});
    if (rate) j["read"] = {{"ranks", rate->ranks}, {"tokens", rate->tokens}, {"seconds", rate->seconds}};
    std::printf("%s\n", j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }

  /// Share of padding in the samples of a source.
  static double padding(const Recipe& r, const SourceStatistics& s) {
    return static_cast<double>(s.reads.padding) /
           (static_cast<double>(s.reads.samples) * static_cast<double>(r.data.seq_length));
  }

  static double mean(const SourceStatistics& s) {
    return s.documents > 0 ? static_cast<double>(s.tokens) / static_cast<double>(s.documents) : 0;
  }
};

}  // namespace

void add_stats(CLI::App& data) {
  auto c = std::make_shared<StatsCommand>();
  CLI::App* s =
      data.add_subcommand("stats",
                          "documents, tokens, share and epochs of each training source of a recipe\n"
                          "Example: ltrain data stats recipes/quickstart.yaml");
  s->add_option("recipe", c->recipe, "YAML recipe")->required();
  s->add_option("overrides", c->overrides, "key=value");
  s->add_option("--read", c->read_steps, "read so many steps as a data-parallel rank does, and show the rate")
      ->check(CLI::PositiveNumber);
  s->add_flag("--json", c->json, "as JSON");
  s->allow_extras();
  s->callback([c, s] {
    take_extras(*s, c->overrides);
    c->run();
  });
}

}  // namespace ltrain::app
