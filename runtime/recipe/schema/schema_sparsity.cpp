// Keys of sparse matrices.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {

void add_sparsity_keys(std::vector<Key>& t) {
  t.push_back(
      texts("sparsity.match", LT_MEMBER(sparsity.match), "pattern", "[\"*.mlp.*\"]",
            "Sparse matrices of linear layers: patterns of full names, * for any characters, ? for one."));
  const auto add = [&](Key k) {
    k.when("sparsity.match", true, [](const Recipe& r) { return r.sparsity.on(); });
    t.push_back(std::move(k));
  };
  add(integer(
          "sparsity.at_step", LT_MEMBER(sparsity.at_step),
          "Update, counted from 1, before which the zeros are chosen. They stay zero from then on, unless "
          "sparsity.mask_interval moves them.")
          .between(1, kMaxSteps));
  add(text("sparsity.pattern", LT_MEMBER(sparsity.pattern),
           "N:M: of each M neighbours in a row the N of largest magnitude stay. M is 4, 8 or 16. Sparse "
           "tensor cores multiply 2:4."));
  add(truth("sparsity.transposable", LT_MEMBER(sparsity.transposable),
            "Of each block of 4 x 4 elements two of each row and two of each column stay: the mask with the "
            "largest sum of magnitudes. Forward and the gradient of inputs then both have 2:4 sparse "
            "matrices."));
  add(integer("sparsity.mask_interval", LT_MEMBER(sparsity.mask_interval),
              "Updates from one choice of masks to the next. Master weights stay dense and train on; each "
              "step multiplies with masked ones. 0: zeros are chosen once and stay.")
          .between(0, kMaxSteps));
  add(choice(
      "sparsity.gradient_estimator", LT_MEMBER(sparsity.gradient_estimator), {},
      "Estimator of output gradients dy in weight gradients dy^T x, in updates with sparse weights. mvue: "
      "of each four neighbouring tokens two stay, at random and without bias. none: dense ones."));
  const auto add_moving = [&](Key k) {
    k.when("sparsity.mask_interval", true, [](const Recipe& r) { return r.sparsity.moves(); });
    t.push_back(std::move(k));
  };
  add_moving(number("sparsity.masked_decay", LT_MEMBER(sparsity.masked_decay),
                    "Share of a masked weight that is added to its gradient, after clipping: it keeps masks "
                    "from changing to and fro. 0: none.")
                 .at_least(0));
  add_moving(number("sparsity.dense_tail", LT_MEMBER(sparsity.dense_tail),
                    "Share of train.train_steps, the last ones, that are trained without masks. 0: masks to "
                    "the end, and a sparse model.")
                 .between(0, 1));
}

}  // namespace ltrain::recipe
