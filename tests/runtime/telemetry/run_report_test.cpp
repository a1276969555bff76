// The report of a run: what it reads, what it refuses, what it shows.
#include "runtime/telemetry/run_report.h"
#include "base/json/json.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "base/error.h"
#include "runtime/telemetry/metrics.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

class Metrics : public TemporaryFolder {
 public:
  explicit Metrics(const std::string& text) { std::ofstream(path() + "/metrics.jsonl") << text; }
  RunReport read() const { return read_run_report(path()); }
};

std::string step_line(int64_t n, const std::string& more) {
  return fmt::format("{{\"step\":{}{}}}\n", n, more);
}

/// Files of a trainer with 300 steps of two layers of four experts, the first of which is dense.
std::string run_of_moe(const std::string& folder, bool budgeted = false) {
  MetricsWriter writer(folder, false, 0);
  for (int64_t i = 1; i <= 300; ++i) {
    StepMetrics m;
    m.step = i;
    m.lm_loss = 5 - 0.01 * static_cast<double>(i);
    m.tokens_per_sec = 1000;
    m.consumed_tokens = i * 64;
    // Expert 3 starves from step 151 on.
    m.expert_tokens = {{},
                       i <= 150 ? std::vector<double>{16, 16, 16, 16} : std::vector<double>{32, 16, 16, 0}};
    m.drop_rate_by_layer = {std::nan(""), 0.25};
    m.drop_rate = 0.25;
    if (budgeted) {
      m.rows_beyond_budget = i <= 150 ? 0 : 0.125;
      m.slices_beyond_budget = i <= 150 ? 0 : 1.5;
      m.slices_beyond_budget_by_layer = {std::nan(""), m.slices_beyond_budget};
    }
    writer.step(m);
    if (i % 100 == 0) writer.eval(i, "", 4 - 0.001 * static_cast<double>(i), 0);
  }
  return folder;
}

}  // namespace

TEST_CASE("the report of an MoE model: means by stretches, loads by layer and expert") {
  TemporaryFolder folder;
  const RunReport r = read_run_report(run_of_moe(folder.path()));
  CHECK((r.steps == 300 && r.first_step == 1 && r.last_step == 300 && r.tokens == 300 * 64 && !r.cut_off));
  CHECK((r.last_loss == Approx(2) && r.best_step == 300 && r.evaluations.size() == 3));
  CHECK((r.stretches.size() > 60 && r.stretches.size() <= 120));
  int64_t steps = 0;
  double tokens = 0;
  for (const ReportStretch& s : r.stretches) {
    CHECK(s.last_step - s.first_step + 1 == s.steps);
    steps += s.steps;
    for (double n : s.layers.at(1).tokens) tokens += n;
  }
  CHECK((steps == 300 && tokens == 300 * 64));
  CHECK(r.stretches.front().layers[1].entropy.value() == Approx(1));
  const double skewed = (0.5 * std::log(2.0) + 0.5 * std::log(4.0)) / std::log(4.0);
  CHECK(r.stretches.back().layers[1].entropy.value() == Approx(skewed));
  CHECK(r.stretches.back().layers[1].drop_rate.value() == Approx(0.25));

  const std::string text = report_text(r, {});
  INFO(text);
  CHECK_THAT(text, Catch::Contains("steps 1 to 300, 19.2k tokens") && Catch::Contains("2.0000 last") &&
                       Catch::Contains("3 evaluations"));
  CHECK_THAT(text,
             Catch::Contains("    1   0.7500  25.00 %   0.00   2.00  *== "));  // layer 1, of four experts
  CHECK_THAT(text, Catch::Contains("layer 1, steps 1 to 300"));
  CHECK(text.find('\033') == std::string::npos);
  // Expert 3 over time: even, then nothing; expert 0: even, then twice as much.
  const size_t first = text.find("\n    0 ="), last = text.find("\n    3 =");
  REQUIRE((first != std::string::npos && last != std::string::npos));
  const std::string crowded = text.substr(first + 7, 66), starving = text.substr(last + 7, 66);
  CHECK((starving.substr(0, 32) == std::string(32, '=') && starving.substr(34, 32) == std::string(32, ' ')));
  CHECK((crowded.substr(0, 32) == std::string(32, '=') && crowded.substr(34, 32) == std::string(32, '*')));
  CHECK(report_text(r, {.colour = true}).find("\033[48;5;244m") != std::string::npos);
  CHECK_THROWS_WITH(report_text(r, {.layer = 0}), Catch::Contains("has no experts; layers are 0 to 1"));
  CHECK_THROWS_WITH(report_text(r, {.layer = 2}), Catch::Contains("--layer 2"));

  const auto j = nlohmann::json::parse(report_json(r));
  CHECK(j["schema"] == "ltrain.report.v1");
  CHECK(j["stretches"].size() == r.stretches.size());
  CHECK(j["stretches"].back()["layers"][1]["expert_load_entropy"].get<double>() == Approx(skewed));
  CHECK(j["stretches"].back()["layers"][0]["drop_rate"].is_null());
}

TEST_CASE("the report of a run with a budget of rows has what came beyond it, and of others nothing") {
  TemporaryFolder folder, other;
  const RunReport r = read_run_report(run_of_moe(folder.path(), true));
  CHECK(r.stretches.front().rows_beyond_budget.value() == 0);
  CHECK(r.whole().rows_beyond_budget.value() == Approx(0.125));
  CHECK_THAT(report_text(r, {}),
             Catch::Contains("beyond budget") &&
                 Catch::Contains("12.50 % of the rows, in 1.50 slices a micro-batch and layer"));
  const auto j = nlohmann::json::parse(report_json(r))["stretches"].back();
  CHECK((j["rows_beyond_budget"] == 0.125 && j["slices_beyond_budget"] == 1.5));
  CHECK((j["layers"][0]["slices_beyond_budget"].is_null() && j["layers"][1]["slices_beyond_budget"] == 1.5));
  const RunReport without = read_run_report(run_of_moe(other.path()));
  CHECK_THAT(report_text(without, {}), !Catch::Contains("beyond budget"));
  CHECK_FALSE(nlohmann::json::parse(report_json(without))["stretches"].back().contains("rows_beyond_budget"));
}

TEST_CASE("the report of a dense run, of one that is being written, and of steps that were not finite") {
  const Metrics dense(step_line(1, R"(,"lm_loss":3.5,"tokens_per_sec":100)") +
                      step_line(2, R"(,"lm_loss":null)") + step_line(5, R"(,"lm_loss":3.25,"mfu":0.5)") +
                      R"({"step":6,"lm_lo)");
  const RunReport r = dense.read();
  CHECK((r.steps == 3 && r.last_step == 5 && r.cut_off && r.not_finite == 1 && r.experts() == 0));
  CHECK((r.best_loss == 3.25 && r.best_step == 5 && r.stretches.size() == 3));
  const std::string text = report_text(r, {});
  CHECK_THAT(text, Catch::Contains("the last line is not finished") &&
                       Catch::Contains("1 steps had a loss") && !Catch::Contains("drop rate"));
  CHECK_THROWS_WITH(report_text(r, {.layer = 0}), Catch::Contains("the run is of a dense model"));
  CHECK(nlohmann::json::parse(report_json(r))["stretches"][1]["lm_loss"].is_null());
  const Metrics evaluations("{\"step\":4,\"eval_loss\":2.5}\n");
  CHECK_THAT(report_text(evaluations.read(), {}),
             Catch::Contains("no steps, 1 evaluations, the last loss 2.5"));
}

TEST_CASE("what no run writes is refused with file and line") {
  const std::string good = step_line(1, R"(,"lm_loss":3.5,"expert_tokens":[[1,2]])");
  const auto refused = [&](const std::string& text, const std::string& why) {
    const Metrics m(text);
    INFO(text.substr(0, 200));
    try {
      m.read();
      FAIL("accepted");
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::data);
      CHECK_THAT(e.what(), Catch::Contains("metrics.jsonl") && Catch::Contains(why));
    }
  };
  refused("", "has no step yet");
  refused(good + "not json\n", ":2: is no JSON object");
  refused("[1]\n" + good, ":1: is no JSON object");
  refused("{}\n", ":1: step is absent, and must be a whole number");
  refused("{\"step\":-1}\n", "step is -1");
  refused("{\"step\":1.5}\n", "step is 1.5");
  refused(good + good, ":2: step 1 after step 1: steps must ascend");
  refused(step_line(1, R"(,"lm_loss":"low")"), "lm_loss is \"low\"");
  refused(step_line(1, R"(,"expert_tokens":7)"), "must be a list of layers");
  refused(step_line(1, R"(,"expert_tokens":[7])"), "of layer 0 must be a list");
  refused(step_line(1, R"(,"expert_tokens":[[-1,2]])"), "of layer 0 has -1");
  refused(step_line(1, R"(,"expert_tokens":[[1e999,2]])"), "is no JSON object");
  refused(good + step_line(2, R"(,"expert_tokens":[[1,2,3]])"),
          ":2: expert_tokens has other layers or experts");
  refused(good + step_line(2, R"(,"lm_loss":1)") + step_line(3, R"(,"expert_tokens":[[1],[2]])"),
          "has other layers");
  refused(good + std::string(70 << 20, '['), ":2: is longer than 64 MiB");
  CHECK_THROWS_WITH(read_run_report("/nowhere/run"), Catch::Contains("there is no such file"));
}
