// Keys of 2:4 sparse matrices.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
void add_sparsity_keys(std::vector<Key>& t) {
  t.push_back(
      texts("sparsity.match", LT_MEMBER(sparsity.match), "pattern", "[\"*.mlp.*\"]",
            "Matrices of linear layers: patterns of full names, * for any characters, ? for one. Of each "
            "four neighbours in a row, the two of largest magnitude stay and the others are zero."));
  Key at = integer("sparsity.at_step", LT_MEMBER(sparsity.at_step),
                   "Update, counted from 1, before which the zeros are chosen. They stay zero from then on.")
               .between(1, kMaxSteps);
  at.when("sparsity.match", true, [](const Recipe& r) { return r.sparsity.on(); });
  t.push_back(std::move(at));
}

}  // namespace ltrain::recipe
