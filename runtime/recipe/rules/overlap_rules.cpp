// Rules of overlapped micro-batches and of chunked tensor-parallel matmuls.
#include "base/error.h"
#include "runtime/recipe/derived.h"
#include "runtime/recipe/rules/rules_parts.h"

namespace ltrain::recipe {

void overlap_rules(const Recipe& r, const BrokenRule& broken) {
  if (r.parallel.async_tensor_parallel == OverlapChoice::on)
    for (const Hindrance& h : chunk_hindrances(r))
      broken("parallel.async_tensor_parallel", h.why + "; nearest valid value: auto", {h.key});
  if (r.parallel.overlap_micro_batches != OverlapChoice::on) return;
  if (r.parallel.pipeline > 1 && r.parallel.chooses_schedule() && !r.parallel.schedule_file)
    broken("parallel.overlap_micro_batches",
           "parallel.schedule: auto may choose one without a forward and backward beside each other; nearest "
           "valid value: auto",
           {"parallel.schedule"});
  for (const Hindrance& h : overlap_hindrances(r))
    broken("parallel.overlap_micro_batches", h.why + "; nearest valid value: auto", {h.key});
}

}  // namespace ltrain::recipe
