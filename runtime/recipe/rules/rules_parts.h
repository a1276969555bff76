// Rules with a source file of their own.
#pragma once
#include "parallel/mesh/mesh.h"
#include "runtime/recipe/rules/moe_rules.h"

namespace ltrain::recipe {

void level_rules(const Recipe& recipe, const BrokenRule& broken);
/// Returns Parallel::shard_ranks; 0: one level. Reports violations to `broken` if it is set.
int64_t level_layout(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node,
                     const BrokenRule& broken);
/// Ranks per host in each group of `mesh` over `axes`; 0 if the number differs between hosts.
int64_t on_each_host(const Mesh& mesh, AxisSet axes, int64_t per_host);
/// "node", or the number of ranks of the first level.
std::string level_text(int64_t ranks);
void recompute_rules(const Recipe& recipe, const BrokenRule& broken);
void graph_rules(const Recipe& recipe, const BrokenRule& broken);
void graph_layout_rules(const Recipe& recipe, int64_t world_size, const BrokenRule& broken);
void overlap_rules(const Recipe& recipe, const BrokenRule& broken);
void feed_forward_rules(const Recipe& recipe, const BrokenRule& broken);
void attention_rules(const Recipe& recipe, const BrokenRule& broken);
void fp8_rules(const Recipe& recipe, const BrokenRule& broken);
void precision_rules(const Recipe& recipe, const BrokenRule& broken);
void launch_rules(const Recipe& recipe, const BrokenRule& broken);
void data_rules(const Recipe& recipe, const BrokenRule& broken);
void profile_rules(const Recipe& recipe, const BrokenRule& broken);
void profile_layout_rules(const Recipe& recipe, int64_t world_size, const BrokenRule& broken);
void offload_rules(const Recipe& recipe, const BrokenRule& broken);
/// Checks a resolved recipe for offload that its device does not support.
void offload_device_rules(const Recipe& resolved, const BrokenRule& broken);
void attention_device_rules(const Recipe& resolved, const BrokenRule& broken);
/// `data`: number of data-parallel ranks.
void batch_ramp_rules(const Recipe& recipe, int64_t data, const BrokenRule& broken);
/// Checks everything about the pipeline except the number of micro-batches.
void pipeline_rules(const Recipe& recipe, const RecipeOrigins& origins, const BrokenRule& broken);
/// `micros`: micro-batches per step on each data rank. `unit`: sequences of a micro-batch over all data
/// ranks.
void pipeline_batch_rules(const Recipe& recipe, int64_t micros, int64_t unit, const BrokenRule& broken);
void optimizer_rules(const Recipe& recipe, const BrokenRule& broken);
/// Refuses optimizers whose steps are of two kinds with `key`, which 0 turns off. `why` goes into the
/// message.
void one_kind_of_step_rule(const Recipe& recipe, const BrokenRule& broken, const std::string& key,
                           const char* why);
/// Notes on parameters that an optimizer leaves to AdamW, and on a short warm-up of 1-bit optimizers.
void optimizer_notes(const Recipe& recipe, const RecipeOrigins& origins, std::vector<std::string>& notes);
void checkpoint_rules(const Recipe& recipe, const BrokenRule& broken);
/// Refuses tensor parallelism in two or three dims with `key`, whose value `off` turns it off.
void one_axis_rule(const Recipe& recipe, const BrokenRule& broken, const char* key, const char* off);
void sparsity_rules(const Recipe& recipe, const BrokenRule& broken);
void diloco_rules(const Recipe& recipe, const BrokenRule& broken);
void replica_rules(const Recipe& recipe, const BrokenRule& broken);
/// Checks that sites divide the ranks and are full nodes.
void diloco_layout_rules(const Recipe& recipe, int64_t world_size, int64_t ranks_per_node,
                         const BrokenRule& broken);
void tensor_grid_rules(const Recipe& recipe, const BrokenRule& broken);
void quantization_rules(const Recipe& recipe, const BrokenRule& broken);
void lora_rules(const Recipe& recipe, const BrokenRule& broken);
void preference_rules(const Recipe& recipe, const BrokenRule& broken);
void distillation_rules(const Recipe& recipe, const BrokenRule& broken);
void onebit_rules(const Recipe& recipe, const BrokenRule& broken);
void sophia_rules(const Recipe& recipe, const BrokenRule& broken);

/// Name and key of an optimizer rule that does not update each element independently, in the optimizer
/// section or a group; else two empty texts. 8-bit AdamW counts, because its states have their own format.
std::pair<std::string, std::string> not_by_element(const Recipe& recipe);

}  // namespace ltrain::recipe
