#include "app/data/data_ledger.h"

#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/check/data_sources.h"
#include "runtime/check/ledger_check.h"

namespace ltrain::app {
namespace {

using nlohmann::ordered_json;

struct LedgerCommand {
  std::string run_dir;
  int64_t step = 0;
  bool json = false;

  void run() const {
    const std::string file = run_dir + "/recipe.yaml";
    Recipe r = load_recipe(file);
    r.output_dir = run_dir;
    resolve_sources(r, true);
    if (!training_files_exist(r))
      fail(ExitCode::data, "{}: not all of its token files are there", printable(file));
    std::vector<LedgerEntry> shown;
    const LedgerReport report = check_ledger(r, [&](int64_t at, const std::vector<LedgerEntry>& entries) {
      if (at == step) shown = entries;
    });
    if (step > 0 && shown.empty())
      fail(ExitCode::usage, "--step {}: the ledger has steps {} to {}", step, report.first_step,
           report.last_step);
    json ? print_json(report, shown) : print(report, shown);
  }

  static void print(const LedgerReport& report, const std::vector<LedgerEntry>& shown) {
    for (const LedgerEntry& e : shown)
      std::printf("sample %lld: %lld of %s, CRC-32 %08x\n", static_cast<long long>(e.index),
                  static_cast<long long>(e.in_source), printable(e.file).c_str(), e.crc);
    std::printf("%-40s %12s %12s %s\n", "source", "samples", "read", "each");
    for (const LedgerSource& s : report.sources)
      std::printf("%-40s %12lld %12lld %s\n", printable(s.file, 60).c_str(),
                  static_cast<long long>(s.samples), static_cast<long long>(s.read),
                  s.least == s.most ? fmt::format("{} times", s.least).c_str()
                                    : fmt::format("{} to {} times", s.least, s.most).c_str());
    std::printf(
        "steps %lld to %lld: %lld samples, each once, as the recipe's order has them; their tokens are those "
        "of the token files\n",
        static_cast<long long>(report.first_step), static_cast<long long>(report.last_step),
        static_cast<long long>(report.samples));
  }

  static void print_json(const LedgerReport& report, const std::vector<LedgerEntry>& shown) {
    ordered_json j{{"schema", 1},
                   {"first_step", report.first_step},
                   {"last_step", report.last_step},
                   {"first_sample", report.first_sample},
                   {"samples", report.samples},
                   {"sources", ordered_json::array()}};
    for (const LedgerSource& s : report.sources)
      j["sources"].push_back({{"token_file", s.file},
                              {"samples", s.samples},
                              {"read", s.read},
                              {"least", s.least},
                              {"most", s.most}});
    if (!shown.empty()) j["step"] = ordered_json::array();
    for (const LedgerEntry& e : shown)
      j["step"].push_back(
          {{"sample", e.index}, {"token_file", e.file}, {"in_source", e.in_source}, {"crc32", e.crc}});
    std::printf("%s\n", j.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
  }
};

}  // namespace

void add_ledger(CLI::App& data) {
  auto c = std::make_shared<LedgerCommand>();
  CLI::App* s = data.add_subcommand(
      "ledger",
      "the samples that a run with data.ledger was trained on, compared with the order of its recipe\n"
      "Example: ltrain data ledger runs/quickstart");
  s->add_option("run_dir", c->run_dir, "output_dir of a run with data.ledger: true")->required();
  s->add_option("--step", c->step, "show the samples of this step")->check(CLI::PositiveNumber);
  s->add_flag("--json", c->json, "as JSON");
  s->callback([c] { c->run(); });
}

}  // namespace ltrain::app
