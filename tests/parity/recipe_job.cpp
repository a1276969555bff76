#include "tests/parity/recipe_job.h"

#include "runtime/plan/make_plan.h"
#include "runtime/program/recipe_program.h"
#include "runtime/recipe/derived.h"

namespace ltrain::test {

TinyOptions job_of(const Recipe& r, const std::string& precision) {
  TinyOptions o;
  o.architecture = r.model.family->name;
  o.precision = precision;
  o.tied = r.model.tie_word_embeddings;
  o.untied = !o.tied;
  o.dropout = r.model.resid_pdrop;
  o.layers = r.model.num_hidden_layers;
  if (r.model.hidden_size != o.hidden)  // the recipe's own shape
    o.hidden = r.model.hidden_size, o.intermediate = r.model.intermediate_size;
  o.heads = static_cast<int>(r.model.num_attention_heads);
  o.kv_heads = static_cast<int>(r.model.num_key_value_heads);
  o.ranks = static_cast<int>(r.parallel.data / std::max<int64_t>(1, r.diloco.sites));
  o.tensor = static_cast<int>(r.parallel.tensor);
  o.tensor_mode = to_string(r.parallel.tensor_mode);
  o.tensor_depth = static_cast<int>(r.parallel.tensor_depth);
  o.sequence_parallel = r.parallel.sequence_parallel;
  o.zero_stage = static_cast<int>(r.parallel.zero_stage);
  o.reshard = r.parallel.reshard_after_forward;
  o.zero_layers = static_cast<int>(r.parallel.zero_layers);
  o.shard = static_cast<int>(r.parallel.shard_ranks);
  o.context = static_cast<int>(r.parallel.context);
  o.context_comm = to_string(r.parallel.context_comm);
  o.context_inner = static_cast<int>(r.parallel.context_inner);
  o.modules = r.model.num_nextn_predict_layers;
  o.modules_scale = r.model.mtp_loss_scaling_factor;
  o.moe = r.model.moe;
  o.lora = r.model.lora;
  o.expert = static_cast<int>(r.parallel.expert);
  o.expert_tensor = r.parallel.expert_tensor == r.parallel.tensor;
  o.dispatch = dispatch_options(r);
  o.intra_node_experts = static_cast<int>(r.parallel.intra_node_experts);
  o.packed = r.data.reset_attention_mask;
  if (trains_preferences(r.task)) o.preference = r.preference;
  o.micro_batch = r.train.micro_batch_size;
  o.global_batch = r.train.global_batch_size;
  o.seq = r.data.seq_length;
  o.interleaved = recipe::overlaps_micro_batches(r);
  o.steps = 2;
  o.pipeline = static_cast<int>(r.parallel.pipeline);
  if (o.pipeline > 1) {
    const PipelineLayout layout = pipeline_layout(r, builtin_profile(2));
    o.schedule = layout.schedule.name;
    o.chunks = layout.schedule.chunks;
  }
  o.recompute = recompute_options(r);
  if (computes_in(r, Precision::fp8)) o.fp8 = r.fp8;
  o.activations = activation_offload(r);
  o.offload = program_options(r).offload;
  o.optimizer = optimizer_settings(r);
  o.optimizer.quantization.group_size = 4;  // rows of tiny matrices are shorter than those of recipes
  o.ema_decay = r.train.ema_decay;
  o.z_loss_coeff = r.train.z_loss_coeff;
  o.reduce_bf16 = r.parallel.grad_reduce_dtype == GradReduceDtype::bf16;
  o.reduce_code = gradient_code(r);
  if (r.train.batch_ramp.start > 0)
    o.micros = global_batch_after(r, 0) / (r.train.micro_batch_size * r.parallel.data);
  return o;
}

Recipe recipe_of(const TinyOptions& o, const std::string& folder, const std::string& resume) {
  Recipe r;
  r.model = tiny_model(o);
  r.output_dir = folder;
  r.data.seq_length = o.seq;
  r.train.train_steps = o.steps;
  r.train.freeze_router = o.optimizer.freeze_routers;
  r.optimizer.frozen = o.optimizer.frozen;
  r.diloco = o.optimizer.diloco;
  r.checkpoint.async_save = false;
  r.checkpoint.resume = resume;
  return r;
}

TinyOptions one_rank(TinyOptions o) {
  o.micros *= o.ranks;
  o.ranks = o.tensor = o.context = o.pipeline = o.chunks = 1;
  o.tensor_mode = "1d";
  o.tensor_depth = 1;
  o.sequence_parallel = false;
  o.expert = 1;
  o.dispatch = {};
  o.intra_node_experts = 0;
  o.expert_tensor = true;
  o.zero_stage = o.shard = 0;
  o.schedule = "1f1b";
  o.recompute.run = 0;
  o.recompute.tensors = {};
  o.activations = {};
  o.offload = {.skip_untouched = o.offload.skip_untouched};  // changes the result
  o.context_comm = "p2p";
  o.reduce_bf16 = false, o.reduce_code.reset();
  o.interleaved = false;
  return o;
}

void save_rank(const TinyOptions& o, const TinyRank& at, const std::string& output_dir, int64_t step) {
  const Recipe recipe = recipe_of(o, output_dir, "never");
  const auto stream = make_inline_stream("checkpoint");
  TrainingState state(recipe, at.program.parameters(), at.control, *stream, at.rank);
  state.open_writer(step - 1, recipe.train.train_steps);
  state.note_health(1, 1);
  state.save(step, {step * o.global_batch, step * o.global_batch, step * o.global_batch * o.seq});
  state.finish(false);
}

TrainingState::Resumed resume_rank(const TinyOptions& o, const TinyRank& at, const std::string& path) {
  const Recipe recipe = recipe_of(o, path, path);
  const auto stream = make_inline_stream("checkpoint");
  return TrainingState(recipe, at.program.parameters(), at.control, *stream, at.rank).resume();
}

TinyHooks saves(const TinyOptions& o, const std::string& output_dir, int64_t step) {
  TinyHooks h;
  h.end = [=](const TinyRank& at) { save_rank(o, at, output_dir, step); };
  return h;
}

TinyHooks resumes(const TinyOptions& o, const std::string& output_dir) {
  TinyHooks h;
  h.begin = [=](const TinyRank& at) { return resume_rank(o, at, output_dir + "/checkpoints").step; };
  return h;
}

}  // namespace ltrain::test
