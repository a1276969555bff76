// Agreement on the new groups of Communicator::split through the store.
#pragma once
#include <string>

#include "parallel/comm/key_value_store.h"

namespace ltrain {

struct SplitPlace {
  int place = 0,
      count = 0;  ///< this rank's index among the `count` ranks of its colour; unset for colour < 0
};

/// Collective over the `size` ranks of a group; `base` is a key prefix that no other split of the job uses.
SplitPlace agree_on_split(KeyValueStore& store, const std::string& base, int rank, int size, int color,
                          int key, double timeout_seconds);

}  // namespace ltrain
