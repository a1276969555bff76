// Profiles of other trainers for the steps that ltrain plans: rates of their kernels, by card
// (docs/machines.md).
#pragma once
#include <string>
#include <vector>

#include "runtime/machines/machine_profile.h"

namespace ltrain {

inline constexpr const char* kTrainerFormat = "ltrain.trainer.v1";

/// Figures of a trainer on cards of one compute capability. Figures that are not given are ltrain's own.
struct TrainerRates {
  int64_t compute_capability = 0;
  AttentionRates attention;  ///< replaces the card's
  Figure matmul, traffic;    ///< DeviceProfile::trainer_matmul, trainer_traffic
};

struct TrainerProfile {
  std::string name, text, file;  ///< text: description for people
  std::vector<TrainerRates> cards;
};

/// Throws Error (usage) with every problem found: location, key, value, rule. `name` stands for the file.
TrainerProfile parse_trainer_profile(const std::string& text, const std::string& name);
/// Trainers compiled in from runtime/machines/trainers, sorted by name.
const std::vector<TrainerProfile>& builtin_trainers();
/// Reads a trainer profile file, or finds a built-in trainer by name. Throws Error (usage) for anything else.
TrainerProfile find_trainer(const std::string& path_or_name);
/// Changes the prices of `profile` to those of `trainer`. Throws Error (usage) if the trainer has no figures
/// for the profile's card, or if the profile has measurements of ltrain's kernels.
void price_as(MachineProfile& profile, const TrainerProfile& trainer);

}  // namespace ltrain
