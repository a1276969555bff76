#include <fmt/format.h>

#include "base/json/json.h"
#include "planner/campaign/campaign.h"
#include "planner/campaign/campaign_simulation.h"
#include "runtime/plan/checkpoint_size.h"
#include "runtime/telemetry/metrics.h"

namespace ltrain {
namespace {

constexpr double kDay = 86400, kSecondsPerHour = 3600;

/// Hours or money as text: "12.81", "100.5k".
std::string amount(double v) { return v < 1e4 ? fmt::format("{:.4g}", v) : format_count(v); }

struct Answer {
  CampaignTerms terms;
  double interval = 0, best = 0;
  CampaignTimes times;
  SimulatedCampaign simulated;
  double kilowatt_hours = 0;  ///< 0: the power is unknown
};

Answer answer(const CampaignJob& job, const CampaignSettings& s, double watts) {
  Answer a;
  a.terms = campaign_terms(job, s);
  a.best = best_interval(a.terms);
  a.interval = job.save_interval > 0 ? static_cast<double>(job.save_interval) * job.step_seconds : a.best;
  a.times = campaign_times(job, a.terms, a.interval);
  a.simulated = simulate_campaign(job, a.terms, s, a.interval);
  if (s.watts_per_gpu.given) watts = s.watts_per_gpu.value;
  a.kilowatt_hours = static_cast<double>(job.gpus) * watts / 1000 * s.power_usage_effectiveness.value *
                     a.times.total / kSecondsPerHour;
  return a;
}

std::string part(const char* name, double seconds, const CampaignTimes& t) {
  if (seconds == 0) return "";
  return fmt::format("  {:<28}{:10.2f} days {:6.2f} %\n", name, seconds / kDay, 100 * seconds / t.total);
}

std::string figures_text(const CampaignSettings& s) {
  std::string out = "figures, of which a file for --campaign-file may give others\n";
  for (const CampaignKey& key : campaign_keys()) {
    const Figure& f = s.*key.member;
    if (f.given)
      out += fmt::format("  {:<28}{:>12.6g} {:<10} {}: {}\n", key.name, f.value, key.unit,
                         figure_source_name(f.source), f.reference);
  }
  return out;
}

}  // namespace

CampaignJob campaign_job(const Recipe& recipe, const MachineProfile& profile, const Plan& plan,
                         int ranks_per_node) {
  CampaignJob job;
  job.gpus = plan.world;
  job.gpus_per_node = ranks_per_node;
  job.work_seconds = plan.total_seconds();
  job.step_seconds = plan.step_seconds();
  job.checkpoint_bytes = static_cast<double>(checkpoint_bytes(recipe, profile));
  job.async_save = recipe.checkpoint.async_save;
  job.save_interval = recipe.checkpoint.save_interval;
  return job;
}

std::string campaign_text(const CampaignJob& job, const CampaignSettings& s, double watts) {
  const Answer a = answer(job, s, watts);
  const CampaignTimes& t = a.times;
  std::string out =
      fmt::format("campaign: {} GPUs on {} node{} and {} spare, {:.2f} days of work\n", job.gpus, job.nodes(),
                  job.nodes() == 1 ? "" : "s", a.terms.spares, job.work_seconds / kDay);
  out += fmt::format(
      "  to the end: {:.2f} days by formula, {:.2f} +- {:.2f} by simulation ({} runs); {:.1f} % effective\n",
      t.total / kDay, a.simulated.seconds / kDay, a.simulated.error / kDay, a.simulated.runs,
      100 * t.effective());
  out += fmt::format("  failures: {:.1f}, one in {:.2f} hours; a checkpoint of {:.2f} GB\n", t.failures,
                     1 / a.terms.failure_rate / kSecondsPerHour, job.checkpoint_bytes / 1e9);
  out += part("work", t.work, t) + part("stragglers", t.stragglers, t) + part("saves", t.saves, t) +
         part("detection, restart, load", t.restarts, t) + part("lost work, done again", t.lost, t) +
         part("waiting for a spare node", t.spare_waits, t) + part("maintenance", t.maintenance, t);
  const double best_steps = std::max(1.0, a.best / job.step_seconds);
  out += fmt::format(
      "  a save every {:.0f} s of work; best: {:.0f} s, checkpoint.save_interval: {:.0f} ({:.1f} % "
      "effective); "
      "Young: {:.0f} s\n",
      a.interval, a.best, best_steps, 100 * campaign_times(job, a.terms, a.best).effective(),
      young_interval(a.terms));
  const double hours = static_cast<double>(job.gpus) * t.total / kSecondsPerHour;
  out += fmt::format("  {} GPU hours", amount(hours));
  if (a.kilowatt_hours > 0) out += fmt::format(", {} kWh", amount(a.kilowatt_hours));
  if (s.gpu_hour_price.given) out += fmt::format(", {} for GPUs", amount(hours * s.gpu_hour_price.value));
  if (s.kilowatt_hour_price.given && a.kilowatt_hours > 0)
    out += fmt::format(", {} for energy", amount(a.kilowatt_hours * s.kilowatt_hour_price.value));
  return out + "\n" + figures_text(s);
}

std::string campaign_json(const CampaignJob& job, const CampaignSettings& s, double watts) {
  const Answer a = answer(job, s, watts);
  const CampaignTimes& t = a.times;
  const double hours = static_cast<double>(job.gpus) * t.total / kSecondsPerHour;
  nlohmann::ordered_json j{{"schema", "ltrain.campaign.plan.v1"},
                           {"gpus", job.gpus},
                           {"nodes", job.nodes()},
                           {"spare_nodes", a.terms.spares},
                           {"seconds", t.total},
                           {"simulated_seconds", a.simulated.seconds},
                           {"simulated_standard_error", a.simulated.error},
                           {"effective", t.effective()},
                           {"checkpoint_bytes", job.checkpoint_bytes},
                           {"failures", t.failures},
                           {"mean_seconds_between_failures", 1 / a.terms.failure_rate},
                           {"work_seconds", t.work},
                           {"straggler_seconds", t.stragglers},
                           {"save_seconds", t.saves},
                           {"restart_seconds", t.restarts},
                           {"lost_seconds", t.lost},
                           {"spare_wait_seconds", t.spare_waits},
                           {"maintenance_seconds", t.maintenance},
                           {"save_interval_seconds", a.interval},
                           {"best_save_interval_seconds", a.best},
                           {"gpu_hours", hours}};
  if (a.kilowatt_hours > 0) j["kilowatt_hours"] = a.kilowatt_hours;
  if (s.gpu_hour_price.given) j["gpu_price"] = hours * s.gpu_hour_price.value;
  if (s.kilowatt_hour_price.given && a.kilowatt_hours > 0)
    j["energy_price"] = a.kilowatt_hours * s.kilowatt_hour_price.value;
  j["figures"] = nlohmann::ordered_json::array();
  for (const CampaignKey& key : campaign_keys()) {
    const Figure& f = s.*key.member;
    if (f.given)
      j["figures"].push_back({{"name", key.name},
                              {"value", f.value},
                              {"source", figure_source_name(f.source)},
                              {"reference", f.reference}});
  }
  return j.dump(2);
}

}  // namespace ltrain
