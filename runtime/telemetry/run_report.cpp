#include "runtime/telemetry/run_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/telemetry/metrics_lines.h"

namespace ltrain {
namespace {

using nlohmann::json;

constexpr size_t kStretches = 120;  // maximum number; a longer run has longer stretches

/// Reads one metrics.jsonl line by line.
class Reader {
 public:
  explicit Reader(RunReport& report) : r_(report), lines_(report.path) {}

  void read() {
    json line;
    while (lines_.next(line)) take(line);
    r_.cut_off = lines_.cut_off();
    if (r_.steps == 0 && r_.evaluations.empty())
      fail(ExitCode::data, "{}: has no step yet; the first is written when it is done", r_.path);
  }

 private:
  void take(const json& j) {
    const int64_t step = lines_.whole_number(j, "step");
    if (j.contains("eval_loss")) {
      const auto set = j.find("eval_set");
      if (set != j.end() && !set->is_string()) lines_.wrong("eval_set must be a text");
      if (const auto loss = lines_.number(j, "eval_loss"))
        r_.evaluations.push_back({.step = step,
                                  .set = set == j.end() ? "" : set->get<std::string>(),
                                  .loss = *loss,
                                  .of_tokens = !j.contains("eval_rewards/margin")});
      return;
    }
    if (j.contains("gpus")) return;  // other ranks' GPUs
    if (j.contains("routing_churn")) return take_churn(j);
    if (j.contains("restart") || j.contains("straggler")) return take_event(step, j);
    if (step <= r_.last_step)
      lines_.wrong(fmt::format("step {} after step {}: steps must ascend", step, r_.last_step));
    if (r_.steps++ == 0) r_.first_step = step;
    r_.last_step = step;
    if (j.contains("consumed_tokens")) r_.tokens = lines_.whole_number(j, "consumed_tokens");
    ReportStretch s;
    s.first_step = s.last_step = step;
    s.steps = 1;
    const auto add = [&](ReportStretch::Mean& m, const char* key) {
      if (const auto v = lines_.number(j, key)) m.add(*v);
    };
    add(s.loss, "lm_loss");
    add(s.grad_norm, "grad_norm");
    add(s.tokens_per_sec, "tokens_per_sec");
    add(s.mfu, "mfu");
    add(s.drop_rate, "drop_rate");
    add(s.balance_loss, "balance_loss");
    add(s.rows_beyond_budget, "rows_beyond_budget");
    add(s.slices_beyond_budget, "slices_beyond_budget");
    add(s.step_ms, "step_time_ms");
    add(s.data_ms, "data_time_ms");
    add(s.mem_peak_gib, "mem_peak_gib");
    add(s.mem_plan_gib, "mem_plan_gib");
    add(s.gpu_clock_mhz, "gpu_sm_clock_mhz");
    add(s.gpu_power_w, "gpu_power_w");
    take_time(j, s);
    add_exposed(j, s);
    if (j.contains("expert_tokens")) experts(j, s);
    if (!r_.stretches.empty() && !same_experts(r_.stretches.back(), s))
      lines_.wrong("expert_tokens has other layers or experts than the step before");
    if (!s.loss.known()) {
      ++r_.not_finite;
    } else {
      r_.last_loss = s.loss.value();
      if (r_.steps - r_.not_finite == 1 || r_.last_loss < r_.best_loss) {
        r_.best_loss = r_.last_loss;
        r_.best_step = step;
      }
    }
    keep(std::move(s));
  }

  void take_time(const json& j, const ReportStretch& s) {
    const auto time = lines_.number(j, "time");
    if (!time || !s.step_ms.known()) return;
    const double seconds = s.step_ms.value() / 1e3;
    if (r_.step_seconds == 0) r_.first_time = *time - seconds;
    r_.last_time = *time;
    r_.step_seconds += seconds;
  }

  /// A routing probe after the last step read.
  void take_churn(const json& j) {
    const auto list = j.find("routing_churn_by_layer");
    if (r_.stretches.empty() || list == j.end() || !list->is_array()) return;
    std::vector<ReportStretch::Layer>& layers = r_.stretches.back().layers;
    for (size_t i = 0; i < std::min(layers.size(), list->size()); ++i)
      if ((*list)[i].is_number()) layers[i].churn.add((*list)[i].get<double>());
  }

  /// A record beside those of the steps.
  void take_event(int64_t step, const json& j) {
    const auto text = [&](const char* key) {
      const auto at = j.find(key);
      return at != j.end() && at->is_string() ? at->get<std::string>() : std::string();
    };
    if (j.contains("restart")) {
      const int64_t lost = lines_.whole_number(j, "lost_steps");
      r_.events.push_back(
          {step, fmt::format("restart {}, {} step{} lost: {}", lines_.whole_number(j, "restart"), lost,
                             lost == 1 ? " is" : "s are", text("reason"))});
    } else {
      r_.events.push_back({step, fmt::format("rank {} on host {} holds up the others: {}{}",
                                             lines_.whole_number(j, "straggler"), text("straggler_host"),
                                             text("straggler_reason"),
                                             with_unit(j, "straggler_sm_clock_mhz", "MHz") +
                                                 with_unit(j, "straggler_temperature_c", "C"))});
    }
  }

  /// ", 1200 MHz" for a number of the record; empty if it is absent.
  std::string with_unit(const json& j, const char* key, const char* unit) const {
    const auto v = lines_.number(j, key);
    return v ? fmt::format(", {:.0f} {}", *v, unit) : "";
  }

  /// Adds the waits of a step for communication and for what is offloaded.
  void add_exposed(const json& j, ReportStretch& s) const {
    constexpr std::string_view kExposed = "exposed_comm_ms/";
    for (const auto& [key, value] : j.items()) {
      if (key != "exposed_offload_ms" && !key.starts_with(kExposed)) continue;
      if (const auto v = lines_.number(j, key.c_str()))
        s.exposed_ms[key.starts_with(kExposed) ? key.substr(kExposed.size()) : ""].add(*v);
    }
  }

  void experts(const json& j, ReportStretch& s) const {
    const json& all = j["expert_tokens"];
    const auto drops = j.find("drop_rate_by_layer"), slices = j.find("slices_beyond_budget_by_layer");
    const auto bad = [&](const std::string& why) { lines_.wrong("expert_tokens " + why); };
    if (!all.is_array()) bad("must be a list of layers");
    for (size_t i = 0; i < all.size(); ++i) {
      ReportStretch::Layer layer;
      if (!all[i].is_array()) bad(fmt::format("of layer {} must be a list of numbers", i));
      for (const json& n : all[i]) {
        if (!n.is_number() || !(n.get<double>() >= 0) || !std::isfinite(n.get<double>()))
          bad(fmt::format("of layer {} has {}, and must have counts", i, n.dump().substr(0, 40)));
        layer.tokens.push_back(n.get<double>());
      }
      if (!layer.tokens.empty()) layer.entropy.add(load_entropy(layer.tokens));
      const auto of_layer = [&](ReportStretch::Mean& m, const auto& list) {
        if (list != j.end() && list->is_array() && i < list->size() && (*list)[i].is_number())
          m.add((*list)[i].template get<double>());
      };
      of_layer(layer.drop_rate, drops);
      of_layer(layer.slices_beyond_budget, slices);
      s.layers.push_back(std::move(layer));
    }
  }

  static bool same_experts(const ReportStretch& a, const ReportStretch& b) {
    bool same = a.layers.size() == b.layers.size();
    for (size_t i = 0; same && i < a.layers.size(); ++i)
      same = a.layers[i].tokens.size() == b.layers[i].tokens.size();
    return same;
  }

  void keep(ReportStretch s) {
    if (!r_.stretches.empty() && r_.stretches.back().steps < width_)
      join(r_.stretches.back(), s);
    else
      r_.stretches.push_back(std::move(s));
    if (r_.stretches.size() <= kStretches) return;
    width_ *= 2;
    std::vector<ReportStretch> half;
    for (size_t i = 0; i < r_.stretches.size(); ++i) {
      if (i % 2 == 0)
        half.push_back(std::move(r_.stretches[i]));
      else
        join(half.back(), r_.stretches[i]);
    }
    r_.stretches = std::move(half);
  }

 public:
  static void join(ReportStretch& to, const ReportStretch& s) {
    to.last_step = s.last_step;
    to.steps += s.steps;
    to.loss.add(s.loss), to.grad_norm.add(s.grad_norm), to.tokens_per_sec.add(s.tokens_per_sec);
    to.mfu.add(s.mfu), to.drop_rate.add(s.drop_rate), to.balance_loss.add(s.balance_loss);
    to.rows_beyond_budget.add(s.rows_beyond_budget);
    to.slices_beyond_budget.add(s.slices_beyond_budget);
    to.step_ms.add(s.step_ms), to.data_ms.add(s.data_ms);
    to.mem_peak_gib.add(s.mem_peak_gib), to.mem_plan_gib.add(s.mem_plan_gib);
    to.gpu_clock_mhz.add(s.gpu_clock_mhz), to.gpu_power_w.add(s.gpu_power_w);
    for (const auto& [axis, ms] : s.exposed_ms) to.exposed_ms[axis].add(ms);
    for (size_t i = 0; i < to.layers.size(); ++i) {
      to.layers[i].slices_beyond_budget.add(s.layers[i].slices_beyond_budget);
      to.layers[i].entropy.add(s.layers[i].entropy);
      to.layers[i].drop_rate.add(s.layers[i].drop_rate);
      to.layers[i].churn.add(s.layers[i].churn);
      for (size_t e = 0; e < to.layers[i].tokens.size(); ++e) to.layers[i].tokens[e] += s.layers[i].tokens[e];
    }
  }

 private:
  RunReport& r_;
  MetricsLines lines_;
  int64_t width_ = 1;
};

}  // namespace

double load_entropy(const std::vector<double>& tokens) {
  const double all = std::accumulate(tokens.begin(), tokens.end(), 0.0);
  double e = 0;
  for (double n : tokens)
    if (n > 0) e -= n / all * std::log(n / all);
  return tokens.size() > 1 && all > 0 ? e / std::log(static_cast<double>(tokens.size())) : 1;
}

std::vector<RunReport::Evaluation> RunReport::last_evaluations() const {
  std::vector<Evaluation> last;
  for (const Evaluation& e : evaluations) {
    const auto at =
        std::find_if(last.begin(), last.end(), [&](const Evaluation& l) { return l.set == e.set; });
    if (at == last.end())
      last.push_back(e);
    else
      *at = e;
  }
  return last;
}

std::string RunReport::name() const {
  constexpr std::string_view kFile = "/metrics.jsonl";  // all runs share it
  return path.ends_with(kFile) ? path.substr(0, path.size() - kFile.size()) : path;
}

int64_t RunReport::experts() const {
  size_t most = 0;
  if (!stretches.empty())
    for (const auto& layer : stretches.back().layers) most = std::max(most, layer.tokens.size());
  return static_cast<int64_t>(most);
}

ReportStretch RunReport::whole() const {
  const size_t n = stretches.size(), from = n - (n + 3) / 4;
  ReportStretch s = stretches.at(from);
  for (size_t i = from + 1; i < n; ++i) Reader::join(s, stretches[i]);
  return s;
}

std::optional<double> RunReport::goodput() const {
  const double all = last_time - first_time;
  if (!(all > 0) || !(step_seconds > 0)) return {};
  return std::min(1.0, step_seconds / all);
}

RunReport read_run_report(const std::string& where) {
  RunReport r;
  std::error_code error;
  r.path = std::filesystem::is_directory(where, error) ? where + "/metrics.jsonl" : where;
  const auto kind = std::filesystem::status(r.path, error).type();
  if (kind != std::filesystem::file_type::regular)
    fail(ExitCode::data, "{}: {}; give the output_dir of a run", printable(r.path),
         kind == std::filesystem::file_type::not_found ? "there is no such file"
         : error                                       ? error.message()
                                                       : std::string("is no regular file"));
  Reader(r).read();
  return r;
}

std::string report_json(const RunReport& r) {
  using nlohmann::ordered_json;
  const auto mean = [](const ReportStretch::Mean& m) {
    return m.known() && std::isfinite(m.value()) ? ordered_json(m.value()) : ordered_json(nullptr);
  };
  ordered_json stretches = ordered_json::array(), evaluations = ordered_json::array();
  for (const ReportStretch& s : r.stretches) {
    ordered_json j{{"first_step", s.first_step},
                   {"last_step", s.last_step},
                   {"lm_loss", mean(s.loss)},
                   {"grad_norm", mean(s.grad_norm)},
                   {"tokens_per_sec", mean(s.tokens_per_sec)},
                   {"mfu", mean(s.mfu)}};
    if (s.gpu_clock_mhz.known()) j["gpu_sm_clock_mhz"] = mean(s.gpu_clock_mhz);
    if (s.gpu_power_w.known()) j["gpu_power_w"] = mean(s.gpu_power_w);
    if (!s.layers.empty()) {
      j["drop_rate"] = mean(s.drop_rate);
      j["balance_loss"] = mean(s.balance_loss);
      const bool budgeted = s.slices_beyond_budget.known();
      if (budgeted) {
        j["rows_beyond_budget"] = mean(s.rows_beyond_budget);
        j["slices_beyond_budget"] = mean(s.slices_beyond_budget);
      }
      ordered_json layers = ordered_json::array();
      for (const auto& l : s.layers) {
        layers.push_back({{"expert_tokens", l.tokens},
                          {"expert_load_entropy", mean(l.entropy)},
                          {"drop_rate", mean(l.drop_rate)}});
        if (l.churn.known()) layers.back()["routing_churn"] = mean(l.churn);
        if (budgeted) layers.back()["slices_beyond_budget"] = mean(l.slices_beyond_budget);
      }
      j["layers"] = std::move(layers);
    }
    stretches.push_back(std::move(j));
  }
  for (const auto& e : r.evaluations) {
    evaluations.push_back({{"step", e.step}, {"eval_loss", e.loss}});
    if (!e.set.empty()) evaluations.back()["eval_set"] = e.set;
  }
  return ordered_json{{"schema", "ltrain.report.v1"},
                      {"metrics", r.path},
                      {"steps", r.steps},
                      {"first_step", r.first_step},
                      {"last_step", r.last_step},
                      {"consumed_tokens", r.tokens},
                      {"last_loss", r.last_loss},
                      {"best_loss", r.best_loss},
                      {"best_step", r.best_step},
                      {"steps_not_finite", r.not_finite},
                      {"goodput", r.goodput() ? ordered_json(*r.goodput()) : ordered_json(nullptr)},
                      {"cut_off", r.cut_off},
                      {"stretches", std::move(stretches)},
                      {"evaluations", std::move(evaluations)}}
      .dump();
}

}  // namespace ltrain
