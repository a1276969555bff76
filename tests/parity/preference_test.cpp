// Preference pairs under every layout: the losses, gradients and sums of one process.
#include <map>
#include <mutex>

#include "runtime/data/pair_segments.h"
#include "tests/parity/parity.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

TinyOptions with_pairs(PreferenceKind kind = PreferenceKind::sigmoid) {
  TinyOptions o;
  o.packed = true;
  o.layers = 5;
  o.steps = 2;
  o.preference.emplace();
  o.preference->kind = kind;
  o.preference->beta = 0.4;
  o.preference->sft_weight = 0.25;
  return o;
}

/// Sums of the texts of each held-out sample, by sample.
using Sums = std::map<int64_t, std::vector<double>>;

struct Scored {
  TinyResult result;
  Sums sums;
};

Scored run(const TinyOptions& o) {
  Scored r;
  std::mutex mutex;
  TinyHooks hooks;
  hooks.end = [&](const TinyRank& rank) {
    const Mesh mesh = tiny_mesh(o, rank.rank);
    const auto batches = tiny_batches(o, 500, mesh.place_in(kDataAxes), mesh.coordinate(Axis::context));
    size_t at = 0;
    rank.program.score_pairs([&] { return at < batches.size() ? &batches[at++] : nullptr; },
                             [&](const HostBatch& batch, const std::vector<double>& sums) {
                               std::lock_guard lock(mutex);
                               const auto each = static_cast<std::ptrdiff_t>(2 * data::max_segments(o.seq));
                               for (size_t b = 0; b < batch.sample_index.size(); ++b) {
                                 const auto first = sums.begin() + static_cast<std::ptrdiff_t>(b) * each;
                                 r.sums[batch.sample_index[b]].assign(first, first + each);
                               }
                             });
  };
  r.result = train_tiny(o, {}, hooks);
  return r;
}

void check_same_scores(const Scored& one, const Scored& many) {
  require_parity(one.result, many.result, 1e-12);
  CHECK(many.result.plan_bytes == many.result.used_bytes);
  REQUIRE(many.sums.size() == one.sums.size());
  for (const auto& [sample, sums] : one.sums)
    for (size_t i = 0; i < sums.size(); ++i)
      CHECK(std::abs(sums[i] - many.sums.at(sample)[i]) <= 1e-11 * (1 + std::abs(sums[i])));
}

/// A check that `base` with a change has the results of `one`, which outlives it.
auto same_scores_as(const Scored& one, const TinyOptions& base) {
  return [&one, base](const char* name, const std::function<void(TinyOptions&)>& change) {
    INFO(name);
    TinyOptions o = base;
    change(o);
    check_same_scores(one, run(o));
  };
}

}  // namespace

TEST_CASE("preference: losses and gradients equal one process to 1e-12 in fp64 under every layout") {
  const Scored one = run(with_pairs());
  CHECK(one.result.losses[0] > 0.1);
  const auto check = same_scores_as(one, with_pairs());
  check("micro-batch 4", [](TinyOptions& o) { o.micro_batch = 4; });
  check("small chunks of logits", [](TinyOptions& o) { o.micro_batch = 2, o.logits_chunk.rows = 5; });
  check("data 2, ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; });
  check("tensor 2", [](TinyOptions& o) { o.tensor = 2; });
  check("tensor 2, sequence, data 2",
        [](TinyOptions& o) { o.tensor = o.ranks = 2, o.sequence_parallel = true; });
  check("context 2, p2p", [](TinyOptions& o) { o.context = 2; });
  check("context 2, all_gather", [](TinyOptions& o) { o.context = 2, o.context_comm = "all_gather"; });
  check("1f1b, data 2, ZeRO-1", [](TinyOptions& o) { o.pipeline = o.ranks = 2, o.zero_stage = 1; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
}

TEST_CASE("preference: each loss is the same on one rank and on data, tensor and context ranks") {
  for (const PreferenceKind kind :
       {PreferenceKind::ipo, PreferenceKind::hinge, PreferenceKind::robust, PreferenceKind::sigmoid_norm,
        PreferenceKind::simpo, PreferenceKind::apo_zero, PreferenceKind::orpo,
        PreferenceKind::apo_zero_unpaired}) {
    INFO(static_cast<int>(kind));
    TinyOptions o = with_pairs(kind);
    o.steps = 1;
    if (kind == PreferenceKind::robust) o.preference->label_smoothing = 0.1;
    if (kind == PreferenceKind::simpo) o.preference->gamma = 0.3;
    TinyOptions many = o;
    many.ranks = many.tensor = many.context = 2;
    check_same_scores(run(o), run(many));
  }
}

TEST_CASE(
    "preference: kto's losses, divergences and gradients equal one process in fp64 under every layout") {
  TinyOptions base = with_pairs(PreferenceKind::kto);
  base.preference->sft_weight = 0;
  base.preference->undesirable_weight = 1.5;
  const Scored one = run(base);
  CHECK(one.result.losses[0] > 0.1);
  const auto check = same_scores_as(one, base);
  check("micro-batch 4", [](TinyOptions& o) { o.micro_batch = 4; });
  check("small chunks of logits", [](TinyOptions& o) { o.micro_batch = 2, o.logits_chunk.rows = 5; });
  check("data 2, ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; });
  check("tensor 2, sequence, data 2",
        [](TinyOptions& o) { o.tensor = o.ranks = 2, o.sequence_parallel = true; });
  check("context 2, p2p", [](TinyOptions& o) { o.context = 2; });
  check("1f1b, data 2, ZeRO-1", [](TinyOptions& o) { o.pipeline = o.ranks = 2, o.zero_stage = 1; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
  check("data, tensor and context 2", [](TinyOptions& o) { o.ranks = o.tensor = o.context = 2; });
}

TEST_CASE("preference: scores, losses and gradients of a reward model equal one process in fp64") {
  TinyOptions base = with_pairs(PreferenceKind::reward);
  base.preference->sft_weight = 0;
  base.preference->center_coefficient = 0.1;
  const Scored one = run(base);
  CHECK(one.result.losses[0] > 0.1);
  const auto check = same_scores_as(one, base);
  check("micro-batch 4", [](TinyOptions& o) { o.micro_batch = 4; });
  check("data 2, ZeRO-3", [](TinyOptions& o) { o.ranks = 2, o.zero_stage = 3; });
  check("tensor 2", [](TinyOptions& o) { o.tensor = 2; });
  check("tensor 2, sequence, data 2",
        [](TinyOptions& o) { o.tensor = o.ranks = 2, o.sequence_parallel = true; });
  check("context 2, p2p", [](TinyOptions& o) { o.context = 2; });
  check("1f1b, data 2, ZeRO-1", [](TinyOptions& o) { o.pipeline = o.ranks = 2, o.zero_stage = 1; });
  check("zbv", [](TinyOptions& o) { o.pipeline = 2, o.schedule = "zbv", o.chunks = 2; });
  check("data, tensor, sequence and context 2",
        [](TinyOptions& o) { o.ranks = o.tensor = o.context = 2, o.sequence_parallel = true; });
}

TEST_CASE("preference: the gradient is that of the loss, against differences") {
  const bool scores = GENERATE(false, true);
  TinyOptions o = with_pairs(scores ? PreferenceKind::reward : PreferenceKind::sigmoid);
  if (scores) o.preference->sft_weight = 0, o.preference->center_coefficient = 0.1;
  o.clip = 0;
  o.steps = 2;
  const std::string name = "model.layers.2.mlp.down_proj.weight";
  const auto moved = [&](int64_t element, double by) {
    TinyHooks hooks;
    hooks.begin = [&, element, by](const TinyRank& rank) -> int64_t {
      rank.program.initialize();
      for (const OwnedPiece& p : rank.program.parameters().owned_pieces())
        if (rank.program.parameters().spec(p.id).name == name) p.master.ptr<double>()[element] += by;
      return 1;
    };
    return train_tiny(o, {}, hooks);
  };
  const TinyResult base = moved(0, 0);
  REQUIRE(base.gradients.count(name) == 1);
  const double e = 1e-5;
  for (const int64_t element : {3, 101, 700}) {
    const double slope = (moved(element, e).losses[0] - moved(element, -e).losses[0]) / (2 * e);
    const double gradient = base.gradients.at(name)[static_cast<size_t>(element)];
    CHECK(std::abs(gradient) > 1e-6);
    CHECK(std::abs(slope - gradient) < 1e-7 * (1 + std::abs(gradient)));
  }
}
