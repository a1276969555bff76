// The output layer in FP8: losses and gradients of one micro-batch against sums of rounded numbers by hand.
#include <catch2/catch.hpp>
#include <cmath>

#include "models/layers/head.h"
#include "tests/models/differences.h"
#include "tests/models/layer_rig.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kVocab = 24, kHidden = 8, kLogitRows = 48, kChunk = 16;
constexpr double kGradScale = 0.25;  // layer_rig.h has it
/// Largest magnitudes of input, weight and gradient that delayed scaling expects.
constexpr double kExpected[kFp8Roles] = {3, 0.75, 0.25};

struct HeadRun {
  LayerResult result;       // dx: gradient of y, the final norm's result
  std::vector<double> w;    // (V, H)
  std::vector<float> amax;  // noted by role
};

ModelConfig config() {
  ModelConfig c;
  c.family = &family_of("llama");
  c.vocab_size = kVocab;
  c.hidden_size = kHidden;
  c.initializer_range = 0.3;
  return c;
}

HeadRun run_head(Fp8Recipe recipe) {
  HeadRun run;
  const auto make = [&]() -> LayerCase {
    auto head = std::make_shared<Head>();
    return {[=](ParameterStore& s, const Groups& g, bool sp) {
              ModelConfig c = config();
              c.tie_word_embeddings = false;
              head->declare(s, g, c, sp, true, -1);
            },
            [=, &run](LayerRank& r) {
              Fp8Settings settings;
              settings.recipe = recipe;
              settings.history = 2;
              Fp8State fp8(settings, r.step.compute, r.step.memory, 1);
              for (int i = 0; i < kFp8Roles; ++i)
                fp8.expect(r.step.compute, 0, static_cast<Fp8Role>(i), kExpected[i]);
              fp8.begin_step(r.step.compute);
              std::vector<Fp8Weight> weights;
              head->quantize_operands(r.step.params, settings, 0, weights);
              REQUIRE(weights.size() == 1);
              r.step.fp8 = &fp8;
              r.step.logits_chunk.rows = kChunk;
              Residual in;
              in.x = r.x;
              in.kept = true;
              head->loss(r.step, r.mb, in, [&](Tensor y, Tensor dy) {
                std::copy_n(y.ptr<double>(), r.y.elements(), r.y.ptr<double>());
                std::copy_n(dy.ptr<double>(), r.dx.elements(), r.dx.ptr<double>());
                r.step.release(y);
              });
              const Tensor w = r.step.params.value(head->weight());
              run.w.assign(w.ptr<double>(), w.ptr<double>() + w.elements());
              fp8.finish_step(r.step.compute, r.step.groups.world);
              for (int i = 0; i < kFp8Roles && fp8.history().defined(); ++i)
                run.amax.push_back(fp8.history().ptr<float>()[2 * i]);
              r.step.fp8 = nullptr;
            }};
  };
  LayerLayout layout;
  layout.batch = 4, layout.seq = kLogitRows / 4, layout.hidden = kHidden;
  run.result = run_layer(make, layout);
  return run;
}

using Values = std::vector<double>;

/// A matrix (rows, cols) in e4m3 or e5m2, with a step for the elements of each group.
Values rounded(const Values& x, int64_t cols, bool e5m2,
               const std::function<int64_t(int64_t, int64_t)>& group, double expected) {
  const int top = fp8_top_exponent(e5m2 ? DType::f8e5m2 : DType::f8e4m3);
  std::map<int64_t, float> largest;
  const auto of = [&](size_t i) {
    return group(static_cast<int64_t>(i) / cols, static_cast<int64_t>(i) % cols);
  };
  for (size_t i = 0; i < x.size(); ++i) {
    float& most = largest[of(i)];
    most = std::max(most, std::abs(static_cast<float>(x[i])));
  }
  Values out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const float step = fp8::step_of(expected > 0 ? static_cast<float>(expected) : largest[of(i)], top, 0);
    const float v = static_cast<float>(x[i]) / step;
    out[i] = (e5m2 ? E5m2::from(E5m2::to(v)) : E4m3::from(E4m3::to(v))) * step;
  }
  return out;
}

double relative_to_largest(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most / largest(b);
}

}  // namespace

TEST_CASE("the output layer in FP8 multiplies rounded operands, chunk by chunk, and notes their largest") {
  for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    CAPTURE(static_cast<int>(recipe));
    const HeadRun run = run_head(recipe);
    const Values &y = run.result.y, &w = run.w;
    const bool delayed = recipe == Fp8Recipe::delayed, blocks = recipe == Fp8Recipe::blockwise;
    const auto round = [&](const Values& x, int64_t cols, Fp8Role role, bool transposed) {
      const auto group = [&](int64_t row, int64_t col) -> int64_t {
        if (role == Fp8Role::weight) return 0;
        if (blocks) return transposed ? col : row;  // all is smaller than a block, and one chunk
        return row / kChunk;
      };
      return rounded(x, cols, role == Fp8Role::gradient, group,
                     delayed ? kExpected[static_cast<int>(role)] : 0);
    };
    const Values wq = round(w, kHidden, Fp8Role::weight, false), x = round(y, kHidden, Fp8Role::input, false),
                 xt = round(y, kHidden, Fp8Role::input, true);
    double loss = 0;
    Values gradient(static_cast<size_t>(kLogitRows * kVocab));
    for (int64_t r = 0; r < kLogitRows; ++r) {
      const int64_t target = r % 5 == 4 ? -1 : r % 7;
      Values logits(static_cast<size_t>(kVocab));
      double sum = 0;
      for (int64_t v = 0; v < kVocab; ++v) {
        for (int64_t h = 0; h < kHidden; ++h)
          logits[static_cast<size_t>(v)] +=
              x[static_cast<size_t>(r * kHidden + h)] * wq[static_cast<size_t>(v * kHidden + h)];
        sum += std::exp(logits[static_cast<size_t>(v)]);
      }
      if (target < 0) continue;
      loss += std::log(sum) - logits[static_cast<size_t>(target)];
      for (int64_t v = 0; v < kVocab; ++v)
        gradient[static_cast<size_t>(r * kVocab + v)] =
            kGradScale * (std::exp(logits[static_cast<size_t>(v)]) / sum - (v == target));
    }
    const Values g = round(gradient, kVocab, Fp8Role::gradient, false),
                 gt = round(gradient, kVocab, Fp8Role::gradient, true);
    Values dy(y.size()), dw(w.size());
    for (int64_t r = 0; r < kLogitRows; ++r)
      for (int64_t v = 0; v < kVocab; ++v)
        for (int64_t h = 0; h < kHidden; ++h) {
          const auto at = static_cast<size_t>(r * kHidden + h), row = static_cast<size_t>(v * kHidden + h),
                     logit = static_cast<size_t>(r * kVocab + v);
          dy[at] += g[logit] * wq[row];
          dw[row] += gt[logit] * xt[at];
        }
    CHECK(std::abs(run.result.loss / loss - 1) < 1e-13);
    CHECK(relative_to_largest(run.result.dx, dy) < 1e-12);
    CHECK(relative_to_largest(run.result.gradients.at("lm_head.weight"), dw) < 1e-12);
    if (!delayed) continue;
    const Values found(run.amax.begin(), run.amax.end());
    const Values noted{largest(y), largest(w), largest(gradient)};
    CHECK(relative_to_largest(found, noted) < 1e-6);
    // The first chunk has not the largest of all, so that all chunks are noted.
    REQUIRE(largest(y, 0, kChunk * kHidden) < (1 - 1e-4) * noted[0]);
    REQUIRE(largest(gradient, 0, kChunk * kVocab) < (1 - 1e-4) * noted[2]);
  }
}
