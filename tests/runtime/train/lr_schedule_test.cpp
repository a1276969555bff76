// Learning rates against Megatron-LM's OptimizerParamScheduler (megatron/core/optimizer_param_scheduler.py),
// written down here from its definitions, and at the boundaries.
#include "runtime/program/lr_schedule.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/recipe/recipe.h"

using namespace ltrain;

namespace {

constexpr double kLr = 3e-4, kMin = 3e-5;

OptimizerKeys optimizer() {
  OptimizerKeys o;
  o.lr = kLr, o.min_lr = kMin;
  return o;
}

LrSchedule schedule(LrDecayStyle style, int64_t warmup, int64_t decay) {
  LrSchedule s;
  s.lr_decay_style = style;
  s.lr_warmup_steps = warmup;
  s.lr_decay_steps = decay;
  return s;
}

/// Megatron's get_lr with init_lr 0, of `num_steps`.
double megatron(const LrSchedule& s, double num_steps) {
  const double warmup = s.lr_warmup_steps, decay = s.lr_decay_steps;
  if (warmup > 0 && num_steps <= warmup) return kLr * num_steps / warmup;
  if (s.lr_decay_style == LrDecayStyle::constant) return kLr;
  if (num_steps > decay) return kMin;
  if (s.lr_decay_style == LrDecayStyle::inverse_square_root) {
    const double w = std::max(warmup, 1.0), n = std::max(num_steps, 1.0);
    return std::max(kMin, kLr * std::sqrt(w) / std::sqrt(n));
  }
  const double ratio = (num_steps - warmup) / (decay - warmup), delta = kLr - kMin;
  double coefficient = 0;
  switch (s.lr_decay_style) {
    case LrDecayStyle::linear:
      coefficient = 1 - ratio;
      break;
    case LrDecayStyle::cosine:
      coefficient = 0.5 * (std::cos(M_PI * ratio) + 1);
      break;
    case LrDecayStyle::wsd: {
      const double anneal_start = decay - static_cast<double>(s.lr_wsd_decay_steps);
      if (num_steps <= anneal_start) {
        coefficient = 1;
      } else {
        const double done = (num_steps - anneal_start) / static_cast<double>(s.lr_wsd_decay_steps);
        coefficient =
            s.lr_wsd_decay_style == LrDecayStyle::cosine ? 0.5 * (std::cos(M_PI * done) + 1) : 1 - done;
      }
      break;
    }
    default:
      FAIL("style");
  }
  return kMin + coefficient * delta;
}

}  // namespace

TEST_CASE("learning rates are Megatron's at every step, of every style", "[train]") {
  for (LrDecayStyle style : {LrDecayStyle::constant, LrDecayStyle::linear, LrDecayStyle::cosine,
                             LrDecayStyle::inverse_square_root, LrDecayStyle::wsd})
    for (int64_t warmup : {0, 1, 7})
      for (LrDecayStyle anneal : {LrDecayStyle::linear, LrDecayStyle::cosine}) {
        LrSchedule s = schedule(style, warmup, 50);
        s.lr_wsd_decay_steps = 12, s.lr_wsd_decay_style = anneal;
        for (int64_t step = 1; step <= 60; ++step) {
          INFO(to_string(style) << " warmup " << warmup << " step " << step);
          CHECK(learning_rate(optimizer(), s, step) ==
                Approx(megatron(s, static_cast<double>(step))).epsilon(1e-12));
        }
      }
}

TEST_CASE("learning rates at the boundaries, as numbers", "[train]") {
  const auto at = [](const LrSchedule& s, int64_t step) { return learning_rate(optimizer(), s, step); };
  const LrSchedule cosine = schedule(LrDecayStyle::cosine, 10, 110);
  CHECK(at(cosine, 1) == Approx(3e-5));  // lr / warm-up
  CHECK(at(cosine, 10) == Approx(kLr));  // warm-up's last step
  CHECK(at(cosine, 60) == Approx((kLr + kMin) / 2));
  CHECK(at(cosine, 110) == Approx(kMin));
  CHECK(at(cosine, 111) == kMin);  // after the end: min_lr, not the cosine's way back up
  CHECK(at(cosine, 100000) == kMin);

  const LrSchedule linear = schedule(LrDecayStyle::linear, 10, 110);
  CHECK(at(linear, 35) == Approx(kMin + 0.75 * (kLr - kMin)));
  CHECK(at(linear, 110) == Approx(kMin));

  const LrSchedule root = schedule(LrDecayStyle::inverse_square_root, 4, 100);
  CHECK(at(root, 4) == Approx(kLr));
  CHECK(at(root, 16) == Approx(kLr / 2));
  CHECK(at(root, 100) == Approx(kLr / 5));
  CHECK(at(root, 101) == kMin);                                                    // after the end
  CHECK(at(schedule(LrDecayStyle::inverse_square_root, 4, 10000), 1600) == kMin);  // never below min_lr
  CHECK(at(schedule(LrDecayStyle::constant, 4, 100), 5000) == kLr);

  LrSchedule wsd = schedule(LrDecayStyle::wsd, 10, 100);
  wsd.lr_wsd_decay_steps = 20;
  CHECK(at(wsd, 11) == kLr);
  CHECK(at(wsd, 80) == kLr);  // stable until the anneal starts
  CHECK(at(wsd, 81) == Approx(kMin + 0.95 * (kLr - kMin)));
  CHECK(at(wsd, 90) == Approx((kLr + kMin) / 2));
  CHECK(at(wsd, 100) == Approx(kMin));
  wsd.lr_wsd_decay_style = LrDecayStyle::cosine;
  CHECK(at(wsd, 90) == Approx((kLr + kMin) / 2));
  CHECK(at(wsd, 85) == Approx(kMin + 0.5 * (1 + std::cos(M_PI / 4)) * (kLr - kMin)));
  wsd.lr_wsd_decay_steps = 0;  // no anneal: stable to the end, then min_lr
  CHECK(at(wsd, 100) == kLr);
  CHECK(at(wsd, 101) == kMin);

  // Warm-up as long as the whole schedule.
  CHECK(at(schedule(LrDecayStyle::cosine, 100, 100), 100) == Approx(kLr));
  CHECK(at(schedule(LrDecayStyle::cosine, 100, 100), 101) == kMin);
}

TEST_CASE("schedules of a recipe: lengths are filled in from train_steps", "[train]") {
  const Recipe r = parse_recipe(
      "model: {architecture: llama, vocab_size: 257, hidden_size: 32, num_hidden_layers: 1, "
      "num_attention_heads: 2}\n"
      "train: {train_steps: 200}\noptimizer: {lr: 1.0e-3, min_lr: 1.0e-4}\nschedule: {lr_decay_style: WSD}\n",
      "r.yaml");
  CHECK(learning_rate(r.optimizer, r.schedule, 180) == 1e-3);
  CHECK(learning_rate(r.optimizer, r.schedule, 190) == Approx(5.5e-4));
  CHECK(learning_rate(r.optimizer, r.schedule, 200) == Approx(1e-4));
}

TEST_CASE("cycles decay from lr again, each to min_lr") {
  LrSchedule s = schedule(LrDecayStyle::cosine, 10, 110);
  s.lr_num_cycles = 4;  // 25 steps
  const LrSchedule one = schedule(LrDecayStyle::cosine, 10, 35);
  for (int64_t t = 11; t <= 110; ++t)
    CHECK(learning_rate(optimizer(), s, t) == Approx(learning_rate(optimizer(), one, 11 + (t - 11) % 25)));
  CHECK(learning_rate(optimizer(), s, 36) > 0.98 * kLr);
  CHECK(learning_rate(optimizer(), s, 35) == Approx(kMin));
  CHECK(learning_rate(optimizer(), s, 111) == kMin);
}

TEST_CASE("every key of every schedule changes learning rates, or the recipe is told that it does not") {
  // A value of each key that differs from the default.
  const std::vector<std::pair<std::string, std::string>> keys{
      {"optimizer.min_lr", "2.0e-4"},       {"schedule.lr_warmup_steps", "3"},
      {"schedule.lr_decay_steps", "12"},    {"schedule.lr_num_cycles", "2"},
      {"schedule.lr_wsd_decay_steps", "7"}, {"schedule.lr_wsd_decay_style", "cosine"}};
  int changed = 0, said = 0;
  for (LrDecayStyle style : {LrDecayStyle::constant, LrDecayStyle::linear, LrDecayStyle::cosine,
                             LrDecayStyle::inverse_square_root, LrDecayStyle::wsd}) {
    const std::string model =
        "model: {architecture: llama, vocab_size: 257, hidden_size: 32, num_hidden_layers: 1, "
        "num_attention_heads: 2}\n";
    std::vector<std::string> settings{"train.train_steps=40", "optimizer.lr=1.0e-3",
                                      fmt::format("schedule.lr_decay_style={}", to_string(style))};
    const auto rates = [](const Recipe& r) {
      std::vector<double> all;
      for (int64_t step = 1; step <= 40; ++step) all.push_back(learning_rate(r.optimizer, r.schedule, step));
      return all;
    };
    const Recipe plain = parse_recipe(model, "r.yaml", settings);
    CHECK(plain.notes.empty());
    for (const auto& [key, value] : keys) {
      INFO(to_string(style) << " " << key);
      settings.push_back(key + "=" + value);
      try {
        const Recipe with = parse_recipe(model, "r.yaml", settings);
        const bool differs = rates(with) != rates(plain);
        const bool note =
            with.notes.size() == 1 && with.notes[0].find(key + " has no effect") != std::string::npos;
        CHECK(differs != note);
        ++(differs ? changed : said);
      } catch (const Error& e) {
        CHECK(std::string(e.what()).find(key + " = ") != std::string::npos);
        ++said;
      }
      settings.pop_back();
    }
  }
  CHECK(changed == 17);
  CHECK(said == 13);
}

TEST_CASE("weight decay moves from its start to its end") {
  OptimizerKeys o = optimizer();
  o.weight_decay = 0.1;
  LrSchedule s;
  CHECK(weight_decay(o, s, 7, 11) == 0.1);
  s.weight_decay_incr_style = WeightDecayStyle::linear;
  s.start_weight_decay = 0.0;
  s.end_weight_decay = 0.4;
  CHECK(weight_decay(o, s, 1, 11) == 0);
  CHECK(weight_decay(o, s, 6, 11) == Approx(0.2));
  CHECK(weight_decay(o, s, 11, 11) == Approx(0.4));
  s.weight_decay_incr_style = WeightDecayStyle::cosine;
  CHECK(weight_decay(o, s, 6, 11) == Approx(0.2));
  CHECK(weight_decay(o, s, 3, 11) < 0.04);
}
