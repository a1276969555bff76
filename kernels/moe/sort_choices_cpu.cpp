#include "kernels/moe/sort_choices.h"

#include <algorithm>

#include "kernels/tensor/parallel_for.h"

namespace ltrain::LT_ISA {

void sort_choices_cpu(ChoicePointers p) {
  std::fill(p.counts, p.counts + p.n, 0);
  for (int64_t i = 0; i < p.choices; ++i)
    if (const int64_t e = p.place(i); e >= 0) ++p.counts[e];
  int64_t* next = scratch<int64_t>(0, p.n);
  for (int64_t e = 0, row = 0; e < p.n; row += p.counts[e++]) next[e] = row;
  for (int64_t i = 0; i < p.choices; ++i) {
    const int64_t e = p.place(i);
    p.slots[i] = e < 0 ? -1 : static_cast<int32_t>(next[e]);
    if (e >= 0) p.sources[next[e]++] = static_cast<int32_t>(i);
  }
  p.counts[p.n] = *p.last;
}

}  // namespace ltrain::LT_ISA
