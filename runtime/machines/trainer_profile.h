// What other trainers take for the steps that ltrain plans: their kernels, by the card (docs/machines.md).
#pragma once
#include <string>
#include <vector>

#include "runtime/machines/machine_profile.h"

namespace ltrain {

inline constexpr const char* kTrainerFormat = "ltrain.trainer.v1";

/// Figures of a trainer on cards of one compute capability; what is not given is as ltrain's own.
struct TrainerRates {
  int64_t compute_capability = 0;
  AttentionRates attention;  ///< in the place of the card's
  Figure matmul, traffic;    ///< DeviceProfile::trainer_matmul, trainer_traffic
};

struct TrainerProfile {
  std::string name, text, file;  ///< text: what it is, for people
  std::vector<TrainerRates> cards;
};

/// Throws Error (usage) with every problem found: place, key, value, rule. `name` stands for the file.
TrainerProfile parse_trainer_profile(const std::string& text, const std::string& name);
/// By name; compiled in of runtime/machines/trainers.
const std::vector<TrainerProfile>& builtin_trainers();
/// A trainer profile's file, or the name of one that is built in. Error (usage) where it is neither.
TrainerProfile find_trainer(const std::string& path_or_name);
/// Prices what `profile` prices as `trainer` runs it. Error (usage) where the profile is not of a card that
/// the trainer has figures of, or has measurements of ltrain's kernels.
void price_as(MachineProfile& profile, const TrainerProfile& trainer);

}  // namespace ltrain
