#include "runtime/recipe/schema/schema.h"

#include <algorithm>
#include <unordered_map>

#include "parallel/pipeline/schedule.h"
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/moe_keys.h"
#include "runtime/recipe/schema/schema_parts.h"
#include "runtime/recipe/schema/schema_sections.h"

namespace ltrain::recipe {

namespace {

constexpr double kMaxRanks = 1 << 20;

bool has_pipeline(const Recipe& r) { return r.parallel.pipeline > 1; }
std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const pipeline::ScheduleInfo& i : pipeline::schedules()) names.emplace_back(i.name);
  names.push_back("auto");
  return names;
}

void add_run_keys(std::vector<Key>& t) {
  t.push_back(text("name", LT_MEMBER(name), "Name of the run: letters, digits, `.`, `_` and `-`.")
                  .changes(Effect::nothing));
  t.push_back(text("output_dir", LT_MEMBER(output_dir), "Folder for everything that the run writes.")
                  .changes(Effect::nothing)
                  .derived("runs/NAME", [](Recipe& r) { r.output_dir = "runs/" + r.name; }));
  t.push_back(integer("seed", LT_MEMBER(seed), "Keys initial values, dropout and the order of the data.")
                  .changes(Effect::data)
                  .at_least(0));
  t.push_back(choice("device", LT_MEMBER(device), {},
                     "Where the step runs. auto: a GPU where this build and this machine have one for each "
                     "rank, else cpu.")
                  .changes(Effect::speed)
                  .say({{"gpu", "cuda"}, {"gpus", "cuda"}, {"nvidia", "cuda"}}));
  t.push_back(
      text("cluster", LT_MEMBER(cluster),
           "Cluster file that plan and slurm price and lay out by: nodes, cards, networks; null: none.")
          .changes(Effect::nothing));
  t.push_back(with_precision_schedule(
      choice("precision", LT_MEMBER(precision), {},
             "What the step computes in. bf16, fp8 and fp16 keep fp32 master weights and moments; tf32 and "
             "fp8 are of products alone, around them is fp32 and bf16; fp16 scales the loss; fp64 is for "
             "parity tests. A list changes it by step.")
          .changes(Effect::function)
          .alias({"mixed_precision"})
          .say({{"no", "fp32"},
                {"none", "fp32"},
                {"false", "fp32"},
                {"32", "fp32"},
                {"float32", "fp32"},
                {"float", "fp32"},
                {"float16", "fp16"},
                {"half", "fp16"},
                {"bfloat16", "bf16"},
                {"float64", "fp64"},
                {"double", "fp64"}})));
}

void add_graph_keys(std::vector<Key>& t) {
  t.push_back(
      choice("cuda_graphs", LT_MEMBER(cuda_graphs), {},
             "On a GPU: forward and backward of a micro-batch are captured as CUDA graphs in the second "
             "step and launched as one from then on; with parallel.pipeline those of all micro-batches "
             "of a step, with a driver for CUDA 12.9 or newer. The bits stay the same. auto: on for one "
             "rank whose steps can be captured, off for several ranks.")
          .changes(Effect::speed));
  t.push_back(choice<AttentionBackend>(
                  "attention_backend", LT_MEMBER(attention_backend),
                  {{"auto", AttentionBackend::automatic},
                   {"own", AttentionBackend::own},
                   {"cudnn", AttentionBackend::cudnn}},
                  {},
                  "On a GPU: who computes attention. auto: cuDNN's graphs where the library is there, agrees "
                  "with ltrain's kernels when the run starts, and takes the recipe's attention, else "
                  "ltrain's kernels; the log says which and why. cudnn: an error where auto would not take "
                  "it. Backward is cuDNN's with deterministic: false, or, in slices of heads, with cudnn.")
                  .changes(Effect::speed));
  t.push_back(truth("deterministic", LT_MEMBER(deterministic),
                    "Two runs of a recipe on the same machines give the same bits. On a GPU the backward of "
                    "attention is then ltrain's own, or with attention_backend: cudnn cuDNN's deterministic "
                    "one; false lets it be cuDNN's that adds in no order. cuDNN's have a workspace that the "
                    "plan counts among the temporaries.")
                  .changes(Effect::speed));
}

void add_parallel_keys(std::vector<Key>& t) {
  t.push_back(integer("parallel.data", LT_MEMBER(parallel.data),
                      "Data-parallel ranks; -1: what the other axes leave.")
                  .between(-1, kMaxRanks)
                  .alias({"dp", "data_parallel_size"}));
  t.push_back(integer("parallel.tensor", LT_MEMBER(parallel.tensor), "Ranks that share each matmul.")
                  .between(1, kMaxRanks)
                  .alias({"tp", "tensor_model_parallel_size"}));
  t.push_back(truth("parallel.sequence_parallel", LT_MEMBER(parallel.sequence_parallel),
                    "Cut activations between the tensor-parallel matmuls by rows (tokens)."));
  t.push_back(choice("parallel.tensor_mode", LT_MEMBER(parallel.tensor_mode), {},
                     "How a tensor-parallel matmul is cut. 1d: weights. 2d: weights and activations, into q "
                     "x q blocks on tensor = q^2 ranks. 2.5d: tensor_depth such grids. 3d: over the axes of "
                     "a cube of tensor = l^3 ranks."));
  t.push_back(integer("parallel.tensor_depth", LT_MEMBER(parallel.tensor_depth),
                      "2.5d: grids of ranks, each with a copy of the weights and its own sequences: tensor = "
                      "tensor_depth * q^2.")
                  .between(1, kMaxRanks)
                  .when("parallel.tensor_mode: 2.5d", true, [](const Recipe& r) {
                    return r.parallel.tensor_mode == TensorModeChoice::two_and_half_d;
                  }));
  t.push_back(integer("parallel.pipeline", LT_MEMBER(parallel.pipeline), "Pipeline stages.")
                  .between(1, kMaxRanks)
                  .alias({"pp", "pipeline_model_parallel_size"}));
  t.push_back(name_choice("parallel.schedule", LT_MEMBER(parallel.schedule), schedule_names(), {},
                          "Order of forward and backward on the stages; `ltrain plan --schedule` draws it. "
                          "auto: the fastest that fits.")
                  .alias({"pipeline_parallel_schedule"})
                  .when("parallel.pipeline above 1", false, has_pipeline));
  t.push_back(text("parallel.schedule_file", LT_MEMBER(parallel.schedule_file),
                   "Instead of schedule: a CSV file of torch.distributed.pipelining, one line a rank: "
                   "0F0,0F1,0B0. Transfers and sharding in it are passed over, with a note.")
                  .when("parallel.pipeline above 1", false, has_pipeline));
  t.push_back(
      integer("parallel.virtual_pipeline", LT_MEMBER(parallel.virtual_pipeline),
              "Model chunks a pipeline rank: its stages.")
          .between(1, 10000)
          .alias({"vpp", "virtual_pipeline_model_parallel_size"})
          .derived("what the schedule needs: 2 for interleaved, zbv and dualpipev, else 1", [](Recipe& r) {
            const pipeline::ScheduleInfo* info = pipeline::find_schedule(r.parallel.schedule);
            r.parallel.virtual_pipeline =
                info && has_pipeline(r) && !r.parallel.schedule_file ? info->least_chunks : 1;
          }));
  t.push_back(integers(
      "parallel.pipeline_layers",
      [](Recipe& r) -> std::vector<int64_t>& { return r.parallel.pipeline_layers; },
      "Layers of each stage, in the order of the stages; empty: split so that the costliest stage costs "
      "least."));
  t.push_back(integer("parallel.context", LT_MEMBER(parallel.context), "Ranks that share each sequence.")
                  .between(1, kMaxRanks)
                  .alias({"cp", "context_parallel_size"}));
  t.push_back(
      choice("parallel.context_comm", LT_MEMBER(parallel.context_comm), {},
             "How attention sees the other parts of the sequence: keys and values travel a ring, or are "
             "gathered; or the ranks exchange sequence for heads.")
          .alias({"cp_comm_type"})
          .when("parallel.context above 1", false, [](const Recipe& r) { return r.parallel.context > 1; }));
  t.push_back(
      integer("parallel.context_inner", LT_MEMBER(parallel.context_inner),
              "a2a+p2p: neighbouring context ranks that exchange sequence for heads; rings across them.")
          .between(2, kMaxRanks)
          .when("parallel.context_comm: a2a+p2p", false, [](const Recipe& r) {
            return r.parallel.context > 1 && r.parallel.context_comm == ContextComm::a2a_p2p;
          }));
  t.push_back(
      integer("parallel.expert", LT_MEMBER(parallel.expert),
              "Ranks that the experts of a layer are cut over. Everything else sees these as data-parallel "
              "ranks, or as context and tensor ranks too: the axes' product stays the number of ranks.")
          .between(1, kMaxRanks)
          .alias({"ep", "expert_model_parallel_size"}));
  t.push_back(integer("parallel.expert_tensor", LT_MEMBER(parallel.expert_tensor),
                      "Ranks that share each expert's matmul: those of parallel.tensor, or 1, when tensor "
                      "ranks have experts of their own.")
                  .between(1, kMaxRanks)
                  .derived("parallel.tensor", [](Recipe& r) { r.parallel.expert_tensor = r.parallel.tensor; })
                  .alias({"expert_tensor_parallel_size"}));
  const auto experts_cut = [](const Recipe& r) { return r.parallel.expert > 1; };
  t.push_back(
      choice("parallel.expert_dispatch", LT_MEMBER(parallel.expert_dispatch), {},
             "How tokens are dispatched to experts on other ranks: each to those of the experts that it "
             "chose, or all to all ranks, for small groups whose tokens choose experts of most of them.")
          .alias({"moe_token_dispatcher_type"})
          .when("parallel.expert above 1", false, experts_cut));
  t.push_back(
      integer(
          "parallel.expert_chunks", LT_MEMBER(parallel.expert_chunks),
          "Parts that a micro-batch's tokens go to experts in: one travels while experts work on another.")
          .between(1, 64)
          .when("parallel.expert above 1", false, experts_cut));
  t.push_back(
      integer("parallel.shadow_experts", LT_MEMBER(parallel.replicated_experts),
              "Most experts of a layer that all ranks get copies of while a micro-batch has more bytes of "
              "tokens for them than they have weights: their tokens stay (FasterMoE's replication).")
          .between(0, 8)
          .when("parallel.expert above 1", false, experts_cut));
  t.push_back(level_ranks("parallel.hierarchical_all_to_all", LT_MEMBER(parallel.hierarchical_all_to_all),
                          "none",
                          "Tokens go to experts on two levels: first to a rank of the node (or of that many "
                          "neighbours), then all in one message to that rank's peer on the other node.")
                  .when("parallel.expert above 1", false, experts_cut));
  t.push_back(
      integer("parallel.zero_stage", LT_MEMBER(parallel.zero_stage),
              "What the data-parallel ranks share: 0 nothing, 1 optimizer state, 2 gradients, 3 weights.")
          .between(0, 3));
  t.push_back(truth("parallel.reshard_after_forward", LT_MEMBER(parallel.reshard_after_forward),
                    "true: a layer's weights are gathered before its forward and again before its backward. "
                    "false: all are gathered once a step, and released after its last backward: what "
                    "zero_stage: 2 sends, and a rank has its shard alone between steps. The same bits.")
                  .changes(Effect::speed)
                  .when("parallel.zero_stage: 3", false,
                        [](const Recipe& r) { return r.parallel.sharding().shards_weights(); }));
  t.push_back(level_ranks("parallel.shard_group", LT_MEMBER(parallel.shard_group), "all",
                          "What zero_stage shards over: all data-parallel ranks; those of a node, with "
                          "copies on the others (hybrid sharding); or that many neighbours."));
  t.push_back(level_ranks("parallel.hierarchical_reduction", LT_MEMBER(parallel.hierarchical_reduction),
                          "none",
                          "Without zero_stage: sum gradients on two levels, first among the ranks of a node "
                          "(or that many neighbours), of which each then sums its part with other nodes."));
  t.push_back(choice("parallel.grad_reduce_dtype", LT_MEMBER(parallel.grad_reduce_dtype), {},
                     "What gradients are rounded to before they are summed over data and context, and sent "
                     "in; sums are of fp32, and so is what micro-batches add up to. int8: blocks of 256 with "
                     "a scale, and what rounding leaves over is added the next time.")
                  .changes(Effect::function));
  t.push_back(
      choice("parallel.overlap_micro_batches", LT_MEMBER(parallel.overlap_micro_batches), {},
             "The backward of a micro-batch and the forward of the next one run by turns: where one "
             "waits for a collective, the other computes. In a pipeline those that its schedule has "
             "beside each other: of dualpipev, of interleaved, and OVERLAP_F_B of a schedule_file. The "
             "same bits, and a little more memory. auto: on with tensor or expert above 1, or context "
             "above 1 without p2p, but not with interleaved, nor with what `on` is refused with.")
          .changes(Effect::speed));
  t.push_back(
      choice("parallel.async_tensor_parallel", LT_MEMBER(parallel.async_tensor_parallel), {},
             "Products of tensor-parallel linear layers run in parts, each beside the collective of another: "
             "with sequence_parallel a rank multiplies its own rows while others come around a ring, and "
             "while a part is summed over ranks the next one is multiplied. auto: on on a GPU with "
             "sequence_parallel where no micro-batches run by turns, but not with what `on` is refused with.")
          .changes(Effect::speed));
  t.push_back(axis_order("parallel.order", LT_MEMBER(parallel.order),
                         "How ranks are laid out over the axes, innermost (neighbours) first: tensor, "
                         "context, data, pipeline. `ltrain plan` prints the map."));
}

void add_data_keys(std::vector<Key>& t) {
  t.push_back(sources(
      "data.train", [](Recipe& r) -> std::vector<DataSource>& { return r.data.train; }, false,
      "Token files (`ltrain data build`), mixed by weight. A path may be a pattern, shard-*: the files that "
      "match share its weight in proportion to their samples."));
  t.push_back(sources(
                  "data.eval", [](Recipe& r) -> std::vector<DataSource>& { return r.data.eval; }, true,
                  "Held-out token files. Those of one name are a set of their own, with a loss of its own; "
                  "without names all are "
                  "one set.")
                  .changes(Effect::nothing));
  t.push_back(
      choice("data.tokenizer.kind", LT_MEMBER(data.tokenizer.kind), {"tiktoken"},
             "byte: bytes and an end mark, 257 ids. gpt2: byte-pair ranks in tiktoken form, 50257 ids. "
             "huggingface: a tokenizer.json, or SentencePiece's tokenizer.model; also the default where "
             "model.from names a folder that has one.")
          .say({{"sentencepiece", "huggingface"}, {"spm", "huggingface"}}));
  t.push_back(
      text(
          "data.tokenizer.path", LT_MEMBER(data.tokenizer.path),
          "gpt2: the rank file. huggingface: a tokenizer.json, tokenizer.model or tekken.json, or the folder "
          "that has it.")
          .alias({"tokenizer_model"})
          .when("data.tokenizer.kind: gpt2 or huggingface", false,
                [](const Recipe& r) { return r.data.tokenizer.kind != TokenizerKind::byte; }));
  t.push_back(integer("data.tokenizer.eod", LT_MEMBER(data.tokenizer.eod),
                      "End-of-document token of token files without a sidecar; null: the tokenizer's, which "
                      "must then be given by kind. none: documents end where the index says alone.")
                  .or_word("none", -1)
                  .between(0, kMaxIds - 1)
                  .alias({"eod_id", "eos_token_id"}));
  t.push_back(integer("data.seq_length", LT_MEMBER(data.seq_length), "Tokens of a sequence.")
                  .between(1, kMaxIds)
                  .alias({"sequence_length", "max_seq_length"}));
  t.push_back(truth("data.reset_attention_mask", LT_MEMBER(data.reset_attention_mask),
                    "Tokens see their own document alone. Documents end behind an end-of-document token and "
                    "where the token file's index says."));
  t.push_back(truth("data.reset_position_ids", LT_MEMBER(data.reset_position_ids),
                    "Positions begin again at 0 in each document."));
  t.push_back(
      truth("data.eod_mask_loss", LT_MEMBER(data.eod_mask_loss),
            "Do not count the prediction of a document's first token from the end of the one before."));
}

void add_train_keys(std::vector<Key>& t) {
  t.push_back(integer("train.micro_batch_size", LT_MEMBER(train.micro_batch_size),
                      "Sequences that a rank computes at once.")
                  .changes(Effect::speed)
                  .between(1, kMaxDim)
                  .alias({"per_device_train_batch_size"}));
  t.push_back(integer("train.global_batch_size", LT_MEMBER(train.global_batch_size),
                      "Sequences of an optimizer step, over all ranks and micro-batches.")
                  .changes(Effect::schedule)
                  .between(1, 1 << 30));
  t.push_back(integer("train.train_steps", LT_MEMBER(train.train_steps), "Optimizer steps.")
                  .changes(Effect::schedule)
                  .between(0, kMaxSteps)
                  .alias({"train_iters", "max_steps"})
                  .derived("from train_tokens when given, else 1000", [](Recipe& r) {
                    if (r.train.train_tokens)
                      r.train.train_steps = steps_for_tokens(r, *r.train.train_tokens);
                  }));
  t.push_back(integer("train.stop_step", LT_MEMBER(train.stop_step),
                      "The run ends after this step as after its last, with its evaluation and save, and "
                      "leaves the schedule alone; null: train_steps.")
                  .between(1, kMaxSteps));
  t.push_back(integer("train.train_tokens", LT_MEMBER(train.train_tokens),
                      "Tokens to train on, in place of train_steps.")
                  .changes(Effect::schedule)
                  .between(1, 9e15));
  t.push_back(
      number("train.clip_grad", LT_MEMBER(train.clip_grad), "Largest norm of the gradient; 0: no clipping.")
          .changes(Effect::function)
          .at_least(0)
          .alias({"max_grad_norm"}));
  t.push_back(
      number(
          "train.skip_grad_norm", LT_MEMBER(train.skip_grad_norm),
          "A step whose gradients have a larger norm, before clipping, makes no update; 0: none is skipped.")
          .changes(Effect::function)
          .at_least(0));
  Key most = integer("train.max_skipped_steps", LT_MEMBER(train.max_skipped_steps),
                     "Steps skipped in a row after which the run ends with exit code 76.")
                 .between(1, kMaxSteps);
  most.when("train.skip_grad_norm", true, [](const Recipe& r) { return r.train.skip_grad_norm > 0; });
  t.push_back(std::move(most));
  t.push_back(integer("train.batch_ramp.start", LT_MEMBER(train.batch_ramp.start),
                      "Sequences of the first steps, which grow to train.global_batch_size; 0: no ramp.")
                  .between(0, kMaxDim));
  const auto ramp = [](Key key) {
    key.when("train.batch_ramp.start", true, [](const Recipe& r) { return r.train.batch_ramp.start > 0; });
    return key;
  };
  t.push_back(ramp(integer("train.batch_ramp.increment", LT_MEMBER(train.batch_ramp.increment),
                           "Sequences by which the batch grows.")
                       .between(1, kMaxDim)));
  t.push_back(ramp(integer("train.batch_ramp.samples", LT_MEMBER(train.batch_ramp.samples),
                           "Sequences after which the batch is whole; it grows in equal parts of them.")
                       .between(1, kMaxSteps)));
  t.push_back(number("train.ema_decay", LT_MEMBER(train.ema_decay),
                     "Keeps an average of the weights, which evaluations see: it moves by 1 - min(this, (1 + "
                     "step) / (10 + step)) of the difference in each update; 0: none.")
                  .changes(Effect::function)
                  .between(0, 0.9999999));
  t.push_back(
      number("train.z_loss_coeff", LT_MEMBER(train.z_loss_coeff),
             "Coefficient of the z-loss on output logits, log(Z)^2 of each counted token with Z the sum "
             "of exp(logits) (PaLM: 1e-4); 0: none.")
          .changes(Effect::function)
          .at_least(0)
          .alias({"z_loss", "z_loss_weight"}));
  t.push_back(number("train.stop_loss", LT_MEMBER(train.stop_loss),
                     "A larger loss ends the run with exit code 76 before its update; 0: none does.")
                  .at_least(0));
  t.push_back(
      integer("train.eval_interval", LT_MEMBER(train.eval_interval), "Steps between evaluations; 0: never.")
          .between(0, kMaxSteps)
          .derived("500 when data.eval is given, else 0",
                   [](Recipe& r) { r.train.eval_interval = r.data.eval.empty() ? 0 : 500; }));
  t.push_back(integer("train.eval_steps", LT_MEMBER(train.eval_steps), "Global batches of an evaluation.")
                  .between(1, kMaxSteps)
                  .alias({"eval_iters"}));
  t.push_back(integer("train.log_interval", LT_MEMBER(train.log_interval), "Steps between log lines.")
                  .between(1, kMaxSteps)
                  .alias({"logging_steps"}));
  t.push_back(number("train.exit_duration_in_mins", LT_MEMBER(train.exit_duration_in_mins),
                     "Save and stop after this long; null: no limit.")
                  .above(0));
  t.push_back(
      integer("train.logits_chunk_size", LT_MEMBER(train.logits_chunk_size),
              "Tokens of a micro-batch whose logits a rank holds at once, forward and backward. auto: "
              "as many as 64 MiB of fp32 logits hold, on a GPU at least 4096.")
          .changes(Effect::speed)
          .or_word("auto", 0)
          .between(1, kMaxDim));
}

void add_job_keys(std::vector<Key>& t) {
  t.push_back(integer("checkpoint.save_interval", LT_MEMBER(checkpoint.save_interval),
                      "Steps between checkpoints; 0: none.")
                  .between(0, kMaxSteps)
                  .alias({"save_steps"}));
  t.push_back(integer("checkpoint.keep_latest", LT_MEMBER(checkpoint.keep_latest),
                      "Healthy checkpoints that rotation keeps, at least 2; 0: all.")
                  .between(0, 1e9)
                  .alias({"save_total_limit", "keep_latest_k"}));
  t.push_back(
      truth("checkpoint.keep_best", LT_MEMBER(checkpoint.keep_best),
            "Rotation also keeps the checkpoint of the lowest held-out loss (the mean over the sets of "
            "data.eval), which the link checkpoints/best points to."));
  t.push_back(truth("checkpoint.async_save", LT_MEMBER(checkpoint.async_save),
                    "Write in the background while training goes on."));
  t.push_back(text("checkpoint.resume", LT_MEMBER(checkpoint.resume),
                   "auto: the newest whole checkpoint of output_dir, or a fresh start. never. Or a path, "
                   "which must load.")
                  .alias({"resume_from_checkpoint"}));
  t.push_back(choice(
      "checkpoint.resume_data", LT_MEMBER(checkpoint.resume_data), {},
      "What a resume does when the recipe names other training data than the checkpoint was trained on "
      "(files, weights, tokenizer, seq_length, seed). same: it is refused. continue: go on at the same "
      "sample number, in the order of the new data. restart: begin with the first sample of the new data."));
  t.push_back(text("checkpoint.upcycle", LT_MEMBER(checkpoint.upcycle),
                   "A fresh start takes its weights from this checkpoint of a dense llama of the same shape: "
                   "every expert begins as a copy of the feed-forward, routers from the seed.")
                  .when("model.moe.num_experts above 0", true,
                        [](const Recipe& r) { return r.model.moe.num_experts > 0; }));
  t.push_back(text("checkpoint.load.path", LT_MEMBER(checkpoint.load_path),
                   "A fresh start takes its weights from this folder, under any layout: one of Hugging Face "
                   "(config.json and safetensors), or a checkpoint, a folder of them, or the output_dir of a "
                   "run. Steps, data and optimizer begin anew, unless parts says otherwise.")
                  .derived("the folder of model.from", nullptr));
  t.push_back(
      choice("checkpoint.load.parts", LT_MEMBER(checkpoint.load_parts), {},
             "What of a checkpoint at path a fresh start takes. weights. weights+optimizer: the "
             "states of the same kind of optimizer too; steps and data begin anew. all: the step, the "
             "place in the data and the loss scale too, as a resume does, and restarts of this run "
             "go on from its own checkpoints.")
          .when("checkpoint.load.path", true,
                [](const Recipe& r) { return r.checkpoint.load_path.has_value(); }));
  t.push_back(
      truth("checkpoint.save_at_end", LT_MEMBER(checkpoint.save_at_end), "Save after the last step."));
  t.push_back(host_list(
      "launch.hosts", [](Recipe& r) -> std::vector<std::string>& { return r.launch.hosts; },
      "Where ranks are started."));
  t.push_back(integer("launch.ranks_per_node", LT_MEMBER(launch.ranks_per_node),
                      "Processes a node; auto: one per device.")
                  .or_word("auto", 0)
                  .between(1, 4096));
  t.push_back(integer("launch.threads_per_rank", LT_MEMBER(launch.threads_per_rank),
                      "CPU threads a rank; auto: its share of the cores.")
                  .or_word("auto", 0)
                  .between(1, 4096));
  t.push_back(number("launch.distributed_timeout_minutes", LT_MEMBER(launch.distributed_timeout_minutes),
                     "A collective that takes longer is a failure.")
                  .above(0));
  t.push_back(text("launch.interface", LT_MEMBER(launch.interface),
                   "Network interface; null: the one with a route to the peers."));
  t.push_back(choice("log.format", LT_MEMBER(log.format), {}, "Lines of the log."));
  t.push_back(truth("log.tensorboard", LT_MEMBER(log.tensorboard), "Write TensorBoard events too."));
  t.push_back(truth("debug.shared_gpu", LT_MEMBER(debug.shared_gpu),
                    "Ranks of one host share its GPUs, each as if on a host of its own, over NCCL's sockets: "
                    "for tests of layouts where there are few GPUs. Timings mean nothing."));
}

std::vector<Key> make_table() {
  std::vector<Key> t;
  add_run_keys(t);
  add_graph_keys(t);
  add_model_keys(t);
  add_parallel_keys(t);
  add_fp8_keys(t);
  add_precision_keys(t);
  add_recompute_keys(t);
  add_offload_keys(t);
  add_data_keys(t);
  add_train_keys(t);
  add_moe_training_keys(t);
  add_optimizer_keys(t);
  add_sparsity_keys(t);
  add_schedule_keys(t);
  add_job_keys(t);
  add_profile_keys(t);
  set_effects(t);
  return t;
}

}  // namespace

const std::vector<Key>& schema() {
  static const std::vector<Key> table = make_table();
  return table;
}

}  // namespace ltrain::recipe
