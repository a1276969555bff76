// How many checkpoints a run still writes: what the space is checked for.
#include <catch2/catch.hpp>

#include "runtime/checkpoint/training_state.h"

using namespace ltrain;

TEST_CASE("saves to come equal those that a loop over the steps makes", "[train]") {
  for (int64_t steps : {1, 5, 10, 12})
    for (int64_t every : {0, 1, 3, 5, 100})
      for (bool at_end : {false, true})
        for (int64_t from = 0; from <= steps; ++from) {
          Recipe r;
          r.train.train_steps = steps;
          r.checkpoint.save_interval = every;
          r.checkpoint.save_at_end = at_end;
          int64_t made = 0;
          for (int64_t step = from + 1; step <= steps; ++step)  // the same rule as Trainer::run
            made += (every > 0 && step % every == 0) || (step == steps && at_end);
          INFO(steps << " steps, every " << every << ", at end " << at_end << ", from " << from);
          // An early stop makes one where none was left, unless there is nothing to do or saving is off.
          const bool can_stop = from < steps && (every > 0 || at_end);
          CHECK(saves_to_come(r, from, r.train.train_steps) == (can_stop ? std::max<int64_t>(made, 1) : 0));
        }
}
