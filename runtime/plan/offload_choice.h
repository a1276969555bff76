// Choice of the devices of offload.optimizer, params and activations that a recipe leaves to the plan.
#pragma once
#include <optional>
#include <string>

#include "runtime/plan/plan_types.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

struct OffloadChoice {
  OffloadDevices devices;
  std::string text;  ///< the choice and its reason, a line for plans and logs
};

/// True if the plan chooses a device of offload.
bool chooses_offload(const Recipe& recipe);
/// Chooses for each device that is auto among none, cpu with steps on a GPU, and nvme with a path: the
/// placement with the shortest planned step whose ranks fit, with the fewest sections away where several are
/// equal. Where none fits, the one that needs the least memory. Plans each placement.
OffloadChoice choose_offload(const Recipe& resolved, const MachineProfile& profile);
/// Sets the devices; the update of states that are not in a GPU's host memory is that of the device.
void set_offload(Recipe& recipe, const OffloadDevices& devices);
/// Chooses, sets the devices in the recipe and adds a note; nothing if the recipe leaves nothing to the plan.
std::optional<OffloadChoice> take_offload_choice(Recipe& resolved, const MachineProfile& profile);
/// Returns what rank 0 chooses for all ranks: pipeline_layout after take_offload_choice, with its devices.
PipelineLayout choose_layout(Recipe& resolved, const MachineProfile& profile);

}  // namespace ltrain
