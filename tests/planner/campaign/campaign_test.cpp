// A run to its end with failures: the formula against the simulation, against Daly and Young, and against the
// public record of Llama 3 405B.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "planner/campaign/campaign_simulation.h"

using namespace ltrain;
using Catch::Contains;

namespace {

/// Llama 3 405B by arXiv:2407.21783: 3.8e25 FLOPs at 400 TFLOP/s a GPU on 16,384 GPUs (table
/// 4), and storage of 2 TB/s. Assumed: 12 bytes a parameter in a checkpoint.
CampaignJob llama3_405b() {
  CampaignJob job;
  job.gpus = 16384;
  job.work_seconds = 3.8e25 / (400e12 * 16384);
  job.step_seconds = 16e6 * 6 * 405e9 / (400e12 * 16384);
  job.checkpoint_bytes = 405e9 * 12;
  return job;
}

CampaignSettings llama3_settings() {
  return parse_campaign(
      "format: ltrain.campaign.v1\n"
      "references: {herd: 'arXiv:2407.21783'}\n"
      "storage_bytes_per_second: {value: 2e12, source: published, reference: herd}\n"
      "maintenance_interval_hours: {value: 27.57, source: published, reference: herd}\n",  // 47 in 54 days
      "llama3.yaml");
}

double difference(double a, double b) { return std::abs(a / b - 1); }

}  // namespace

TEST_CASE("the formula and the simulation of a campaign agree within 2 %") {
  for (const int64_t gpus : {100, 2048, 16384, 65536, 200000})
    for (const bool async : {true, false})
      for (const double stragglers : {0.0, 0.02}) {
        CampaignJob job = llama3_405b();
        job.gpus = gpus;
        job.async_save = async;
        job.work_seconds = 3e6;
        CampaignSettings s = llama3_settings();
        s.straggler_deviation.value = stragglers;
        s.storage_bytes_per_second.value = 1e11;  // saves take long enough to matter
        const CampaignTerms t = campaign_terms(job, s);
        const double best = best_interval(t);
        for (const double interval : {best, 3 * best}) {
          const CampaignTimes times = campaign_times(job, t, interval);
          const SimulatedCampaign simulated = simulate_campaign(job, t, s, interval);
          INFO(gpus << " GPUs, async " << async << ", stragglers " << stragglers << ", a save every "
                    << interval << " s: " << times.total << " s by formula, " << simulated.seconds << " +- "
                    << simulated.error);
          CHECK(difference(times.total, simulated.seconds) < 0.02);
          CHECK(difference(times.failures, simulated.failures) < 0.05);
        }
      }
}

TEST_CASE("waiting for spare nodes is by Erlang's loss formula, and the simulation waits as long") {
  // Two machines offered a load of one: 1/5 of the calls are lost (1/2 / (1 + 1 + 1/2)).
  CHECK(mean_spare_wait(1.0 / 3600, 3600, 2) == Approx(0.2 * 3600 / 3));
  CampaignJob job = llama3_405b();
  CampaignSettings s = llama3_settings();
  for (const double spares : {2.0, 6.0, 10.0}) {
    s.spare_nodes = {spares, FigureSource::assumed, "", true};
    const CampaignTerms t = campaign_terms(job, s);
    const CampaignTimes times = campaign_times(job, t, best_interval(t));
    INFO(spares << " spares: waits " << times.spare_waits / times.total);
    CHECK(difference(times.total, simulate_campaign(job, t, s, best_interval(t)).seconds) < 0.02);
  }
}

TEST_CASE("the slowest of many ranks: published means of the largest of normal numbers") {
  // Halves of the mean ranges of Tippett, Biometrika 17 (1925).
  CHECK(straggler_slowdown(2, 1) == Approx(1.56419).epsilon(0.002));
  CHECK(straggler_slowdown(10, 1) == Approx(2.53875).epsilon(0.002));
  CHECK(straggler_slowdown(100, 1) == Approx(3.50759).epsilon(0.002));
  CHECK(straggler_slowdown(1000, 1) == Approx(4.24144).epsilon(0.002));
}

TEST_CASE(
    "the best interval between saves is where the formula is least, and near Young's where failures are "
    "rare") {
  for (const int64_t gpus : {100, 16384, 200000}) {
    CampaignJob job = llama3_405b();
    job.gpus = gpus;
    job.async_save = false;
    const CampaignTerms t = campaign_terms(job, llama3_settings());
    const double best = best_interval(t), least = campaign_times(job, t, best).total;
    CHECK(campaign_times(job, t, best * 1.05).total > least);
    CHECK(campaign_times(job, t, best * 0.95).total > least);
    if (gpus == 100) CHECK(best == Approx(young_interval(t)).epsilon(0.01));
  }
}

TEST_CASE("Llama 3 405B's public record: failures, effective time and GPU hours") {
  const CampaignJob job = llama3_405b();
  const CampaignTerms t = campaign_terms(job, llama3_settings());
  CHECK(t.failure_rate * 54 * 86400 == Approx(419));
  CHECK(1 / t.failure_rate / 3600 == Approx(3.09).epsilon(0.01));
  const CampaignTimes times = campaign_times(job, t, best_interval(t));
  const double hours = times.total * 16384 / 3600;
  INFO("effective " << times.effective() << ", " << hours / 1e6 << " million GPU hours, "
                    << times.total / 86400 << " days, a save every " << best_interval(t) << " s");
  CHECK(times.effective() > 0.90);
  CHECK(times.effective() < 0.97);
  CHECK(difference(hours, 30.84e6) < 0.10);  // the model card of Llama 3.1 405B
}

/// OPT-175B by arXiv:2205.01068, section 2.5, and its model card: 992 A100, 33 days of continuous training
/// within 57 days (the logbook: 10 November 2021 to 6 January 2022), at least 35 manual and about 70
/// automatic restarts.
TEST_CASE("OPT-175B's public record: four times the failures of Llama 3, and hours for each") {
  CampaignJob job;
  job.gpus = 992;
  job.work_seconds = 33 * 86400;
  job.step_seconds = 33 * 86400 / 143000.0;
  job.checkpoint_bytes = 175e9 * 12;
  const double days = 57 * 86400, failures = 105;
  const CampaignSettings usual = default_campaign_settings();
  const double as_llama = campaign_terms(job, usual).failure_rate * days;
  CHECK(as_llama == Approx(26.8).epsilon(0.01));
  CHECK(failures / as_llama == Approx(3.9).epsilon(0.02));
  const auto days_with = [&](double restart_hours) {
    CampaignSettings s = usual;
    for (Figure* hours : {&s.gpu_hours, &s.node_hours, &s.network_hours, &s.software_hours})
      hours->value *= as_llama / failures;
    s.restart_seconds.value = restart_hours * 3600;
    const CampaignTerms t = campaign_terms(job, s);
    return campaign_times(job, t, best_interval(t)).total / 86400;
  };
  CHECK(days_with(1.0 / 6) < 36);  // restarts by a machine alone would have cost two days
  CHECK(days_with(7) == Approx(57).epsilon(0.02));
}

TEST_CASE("a campaign that does not end, and saves that overtake each other, are refused") {
  CampaignJob job = llama3_405b();
  job.gpus = 200000;
  CampaignSettings s = llama3_settings();
  s.restart_seconds.value = 36000;
  const CampaignTerms t = campaign_terms(job, s);
  CHECK_THROWS_WITH(campaign_times(job, t, best_interval(t)),
                    Contains("the run does not end: a failure every"));
  CHECK_THROWS_WITH(
      campaign_times(llama3_405b(), campaign_terms(llama3_405b(), default_campaign_settings()), 10),
      Contains("saves overtake each other; nearest valid value: 48 s"));
}

TEST_CASE("a campaign's file is checked as recipes are") {
  const auto refused = [](const std::string& lines) {
    try {
      parse_campaign("format: ltrain.campaign.v1\n" + lines, "c.yaml");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(refused("restart_second: {value: 1, source: assumed}\n"),
             Contains("c.yaml:2:1: restart_second: unknown key; nearest valid value: restart_seconds"));
  CHECK_THAT(refused("power_usage_effectiveness: {value: 0.5, source: assumed}\n"),
             Contains("c.yaml:2") && Contains("must be from 1 to 5; nearest valid value: 1"));
  CHECK_THAT(refused("gpu_hours: {value: 1000, source: published}\n"),
             Contains("gpu_hours.reference: must be given"));
  CHECK(refused("gpu_hours: {value: 1000, source: assumed}\n") == "accepted");
}
