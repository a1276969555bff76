#include "runtime/recipe/schema/schema.h"

#include <algorithm>
#include <unordered_map>

#include "parallel/pipeline/schedule.h"
#include "runtime/data/ngrams.h"
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/moe_keys.h"
#include "runtime/recipe/schema/schema_parts.h"
#include "runtime/recipe/schema/schema_sections.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

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
  t.push_back(integer("seed", LT_MEMBER(seed), "Seed of initial values, dropout and the order of the data.")
                  .changes(Effect::data)
                  .at_least(0));
  t.push_back(
      choice("task", LT_MEMBER(task), {},
             "pretrain: every token of the data counts in the loss. sft: supervised fine-tuning. "
             "Sources are conversations, whole ones are packed into a sequence, and the tokens that "
             "data.train_on names count. dpo: preference training on pairs of a chosen and a rejected text. "
             "kto: preference training on single texts with a label. reward: a reward model, trained on the "
             "pairs of dpo (docs/fine-tuning.md).")
          .changes(Effect::data));
  t.push_back(choice("device", LT_MEMBER(device), {},
                     "Device of the run. auto: cuda if this build supports it and this machine has a GPU for "
                     "each rank, else cpu.")
                  .changes(Effect::speed)
                  .say({{"gpu", "cuda"}, {"gpus", "cuda"}, {"nvidia", "cuda"}}));
  t.push_back(text("cluster", LT_MEMBER(cluster),
                   "Cluster file with nodes, cards and networks, for plan and slurm; null: none.")
                  .changes(Effect::nothing));
  t.push_back(with_precision_schedule(
      choice("precision", LT_MEMBER(precision), {},
             "Precision of the step. bf16, fp8 and fp16 keep fp32 master weights and moments. tf32 and fp8 "
             "apply to matmuls only; all other ops use fp32 (tf32) or bf16 (fp8). fp16 uses loss scaling. "
             "fp64 is for parity tests. A list sets the precision by step.")
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
             "GPU only: captures forward and backward of a micro-batch as CUDA graphs in the second step and "
             "replays them from then on. With parallel.pipeline, one graph covers all micro-batches of a "
             "step, and the driver must support CUDA 12.9 or newer. The results are bit-identical. auto: on "
             "for one rank if its steps can be captured, off for several ranks.")
          .changes(Effect::speed));
  t.push_back(choice<AttentionBackend>(
                  "attention_backend", LT_MEMBER(attention_backend),
                  {{"auto", AttentionBackend::automatic},
                   {"own", AttentionBackend::own},
                   {"cudnn", AttentionBackend::cudnn}},
                  {},
                  "Attention kernels on a GPU. auto: cuDNN if it is installed, agrees with ltrain's kernels "
                  "at startup, and supports the recipe's attention, else ltrain's kernels; the log gives the "
                  "choice and the reason. cudnn: fails if auto would not use cuDNN. The backward uses cuDNN "
                  "with deterministic: false, or, in slices of heads, with cudnn.")
                  .changes(Effect::speed));
  t.push_back(truth("deterministic", LT_MEMBER(deterministic),
                    "true: two runs of a recipe on the same machines give the same bits. On a GPU, the "
                    "backward of attention then uses ltrain's kernels, or with attention_backend: cudnn "
                    "cuDNN's deterministic kernel. false: it may use cuDNN's kernel, which adds in any "
                    "order. The workspace of cuDNN counts as temporaries in the plan.")
                  .changes(Effect::speed));
}

/// Adds the data-parallel and the tensor-parallel axis.
void add_tensor_axis_keys(std::vector<Key>& t) {
  t.push_back(integer("parallel.data", LT_MEMBER(parallel.data),
                      "Data-parallel ranks; -1: all ranks that the other axes leave.")
                  .between(-1, kMaxRanks)
                  .alias({"dp", "data_parallel_size"}));
  t.push_back(integer("parallel.tensor", LT_MEMBER(parallel.tensor), "Ranks that shard each matmul.")
                  .between(1, kMaxRanks)
                  .alias({"tp", "tensor_model_parallel_size"}));
  t.push_back(truth("parallel.sequence_parallel", LT_MEMBER(parallel.sequence_parallel),
                    "Shards activations between the tensor-parallel matmuls by rows (tokens)."));
  t.push_back(choice("parallel.tensor_mode", LT_MEMBER(parallel.tensor_mode), {},
                     "Sharding of a tensor-parallel matmul. 1d: weights. 2d: weights and activations, in q x "
                     "q blocks on tensor = q^2 ranks. 2.5d: tensor_depth such grids. 3d: over the axes of a "
                     "cube of tensor = l^3 ranks."));
  t.push_back(integer("parallel.tensor_depth", LT_MEMBER(parallel.tensor_depth),
                      "2.5d: number of grids of ranks. Each grid has a copy of the weights and its own "
                      "sequences: tensor = tensor_depth * q^2.")
                  .between(1, kMaxRanks)
                  .when("parallel.tensor_mode: 2.5d", true, [](const Recipe& r) {
                    return r.parallel.tensor_mode == TensorModeChoice::two_and_half_d;
                  }));
}

/// Adds the pipeline axis and its schedule.
void add_pipeline_keys(std::vector<Key>& t) {
  t.push_back(integer("parallel.pipeline", LT_MEMBER(parallel.pipeline), "Pipeline stages.")
                  .between(1, kMaxRanks)
                  .alias({"pp", "pipeline_model_parallel_size"}));
  t.push_back(name_choice("parallel.schedule", LT_MEMBER(parallel.schedule), schedule_names(), {},
                          "Pipeline schedule: order of forward and backward on the stages. `ltrain plan "
                          "--schedule` draws it. auto: the fastest that fits.")
                  .alias({"pipeline_parallel_schedule"})
                  .when("parallel.pipeline above 1", false, has_pipeline));
  t.push_back(text("parallel.schedule_file", LT_MEMBER(parallel.schedule_file),
                   "Replaces schedule by a CSV file of torch.distributed.pipelining with one line per rank: "
                   "0F0,0F1,0B0. Its transfer and sharding actions are ignored with a note.")
                  .when("parallel.pipeline above 1", false, has_pipeline));
  t.push_back(
      integer("parallel.virtual_pipeline", LT_MEMBER(parallel.virtual_pipeline),
              "Model chunks (stages) per pipeline rank.")
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
      "Layers of each stage, in the order of the stages; empty: the split whose most expensive stage costs "
      "least."));
}

/// Adds the axis over which sequences are sharded.
void add_context_keys(std::vector<Key>& t) {
  t.push_back(integer("parallel.context", LT_MEMBER(parallel.context), "Ranks that shard each sequence.")
                  .between(1, kMaxRanks)
                  .alias({"cp", "context_parallel_size"}));
  t.push_back(
      choice("parallel.context_comm", LT_MEMBER(parallel.context_comm), {},
             "Communication of attention between context ranks. p2p: keys and values travel around a ring. "
             "all_gather: they are gathered. a2a: the ranks exchange sequence for heads. a2a+p2p: both, on "
             "two levels.")
          .alias({"cp_comm_type"})
          .when("parallel.context above 1", false, [](const Recipe& r) { return r.parallel.context > 1; }));
  t.push_back(
      integer(
          "parallel.context_inner", LT_MEMBER(parallel.context_inner),
          "a2a+p2p: neighbouring context ranks that exchange sequence for heads. Rings connect these groups.")
          .between(2, kMaxRanks)
          .when("parallel.context_comm: a2a+p2p", false, [](const Recipe& r) {
            return r.parallel.context > 1 && r.parallel.context_comm == ContextComm::a2a_p2p;
          }));
}

/// Adds the axis of experts, and the dispatch of tokens to it.
void add_expert_axis_keys(std::vector<Key>& t) {
  t.push_back(integer("parallel.expert", LT_MEMBER(parallel.expert),
                      "Ranks over which the experts of a layer are sharded. For all other tensors they are "
                      "data-parallel ranks, or also context and tensor ranks, so the number of ranks stays "
                      "the product of the other axes.")
                  .between(1, kMaxRanks)
                  .alias({"ep", "expert_model_parallel_size"}));
  t.push_back(integer("parallel.expert_tensor", LT_MEMBER(parallel.expert_tensor),
                      "Ranks that shard each expert's matmuls: parallel.tensor, or 1 if tensor ranks have "
                      "their own experts.")
                  .between(1, kMaxRanks)
                  .derived("parallel.tensor", [](Recipe& r) { r.parallel.expert_tensor = r.parallel.tensor; })
                  .alias({"expert_tensor_parallel_size"}));
  const auto experts_cut = [](const Recipe& r) { return r.parallel.expert > 1; };
  t.push_back(
      choice("parallel.expert_dispatch", LT_MEMBER(parallel.expert_dispatch), {},
             "Dispatch of tokens to experts on other ranks. all_to_all: to the ranks of the chosen experts. "
             "all_gather: to all ranks, for small groups whose tokens choose experts on most of them.")
          .alias({"moe_token_dispatcher_type"})
          .when("parallel.expert above 1", false, experts_cut));
  t.push_back(integer("parallel.expert_chunks", LT_MEMBER(parallel.expert_chunks),
                      "Chunks in which the tokens of a micro-batch are dispatched. Dispatch of one chunk "
                      "overlaps the experts' work on another.")
                  .between(1, 64)
                  .when("parallel.expert above 1", false, experts_cut));
  t.push_back(integer("parallel.shadow_experts", LT_MEMBER(parallel.replicated_experts),
                      "Maximum of replicated experts per layer. An expert is replicated on all ranks if a "
                      "micro-batch has more bytes of tokens for it than its weights have; its tokens are "
                      "then not dispatched (FasterMoE).")
                  .between(0, 8)
                  .when("parallel.expert above 1", false, experts_cut));
  t.push_back(level_ranks("parallel.hierarchical_all_to_all", LT_MEMBER(parallel.hierarchical_all_to_all),
                          "none",
                          "Two-level dispatch of tokens: first to a rank of the node (or of a group of that "
                          "many neighbours), then in one message to its peer on the other node.")
                  .when("parallel.expert above 1", false, experts_cut));
}

/// Adds ZeRO and the reduction of gradients.
void add_sharding_keys(std::vector<Key>& t) {
  t.push_back(integer("parallel.zero_stage", LT_MEMBER(parallel.zero_stage),
                      "Tensors sharded over data-parallel ranks. 0: none. 1: optimizer state. 2: also "
                      "gradients. 3: also weights.")
                  .between(0, 3));
  t.push_back(
      truth(
          "parallel.reshard_after_forward", LT_MEMBER(parallel.reshard_after_forward),
          "ZeRO-3. true: gathers a layer's weights before its forward and again before its backward. false: "
          "gathers all weights once per step and releases them after their last backward; this sends as much "
          "as zero_stage: 2, and a rank has only its shard between steps. The results are bit-identical.")
          .changes(Effect::speed)
          .when("parallel.zero_stage: 3", false,
                [](const Recipe& r) { return r.parallel.sharding().shards_weights(); }));
  t.push_back(integer("parallel.zero_layers", LT_MEMBER(parallel.zero_layers),
                      "ZeRO-3: first layers of each pipeline stage whose weights are not sharded, as with "
                      "zero_stage: 2. They are gathered once per step. The results are bit-identical.")
                  .between(0, 10000)
                  .changes(Effect::speed));
  t.push_back(level_ranks(
      "parallel.shard_group", LT_MEMBER(parallel.shard_group), "all",
      "Ranks over which zero_stage shards. all: all data-parallel ranks. node: the ranks of a node, with "
      "copies on other nodes (hybrid sharding). A number: groups of that many neighbours."));
  t.push_back(
      level_ranks("parallel.hierarchical_reduction", LT_MEMBER(parallel.hierarchical_reduction), "none",
                  "Without zero_stage: sums gradients on two levels. The ranks of a node (or of a group of "
                  "that many neighbours) sum first. Then each sums its part with its peers on other nodes."));
  t.push_back(choice("parallel.grad_reduce_dtype", LT_MEMBER(parallel.grad_reduce_dtype), {},
                     "Type to which gradients are rounded before they are sent and summed over data and "
                     "context ranks. Sums are in fp32, and so are sums over micro-batches. int8: blocks of "
                     "256 with one scale. sign: one bit, and a scale for 2048. The rounding error of both is "
                     "added to the next gradient.")
                  .changes(Effect::function));
}

/// Adds what overlaps collectives with computation, and the order of the axes.
void add_overlap_keys(std::vector<Key>& t) {
  t.push_back(
      choice("parallel.overlap_micro_batches", LT_MEMBER(parallel.overlap_micro_batches), {},
             "Overlaps the backward of a micro-batch with the forward of the next one: while one waits for a "
             "collective, the other computes. In a pipeline, the schedule's own pairs overlap: those of "
             "dualpipev, of interleaved, and OVERLAP_F_B of a schedule_file. The results are bit-identical, "
             "and memory rises a little. auto: on with tensor or expert above 1, or context above 1 without "
             "p2p; off with interleaved and with any setting that `on` does not allow.")
          .changes(Effect::speed));
  t.push_back(
      choice("parallel.async_tensor_parallel", LT_MEMBER(parallel.async_tensor_parallel), {},
             "Runs tensor-parallel matmuls in chunks that overlap their collectives. With sequence_parallel, "
             "a rank multiplies its own rows while others arrive over a ring, and multiplies the next chunk "
             "while the previous one is summed over ranks. auto: on on a GPU with sequence_parallel and "
             "without overlapped micro-batches; off with any setting that `on` does not allow.")
          .changes(Effect::speed));
  t.push_back(axis_order("parallel.order", LT_MEMBER(parallel.order),
                         "Order of the axes over the ranks, innermost (neighbours) first: tensor, context, "
                         "data, pipeline. `ltrain plan` prints the rank map."));
}

void add_parallel_keys(std::vector<Key>& t) {
  add_tensor_axis_keys(t);
  add_pipeline_keys(t);
  add_context_keys(t);
  add_expert_axis_keys(t);
  add_sharding_keys(t);
  add_overlap_keys(t);
}

/// Adds token files and mixes.
void add_source_keys(std::vector<Key>& t) {
  t.push_back(sources(
      "data.train", [](Recipe& r) -> std::vector<DataSource>& { return r.data.train; }, false,
      "Training data, mixed by weight: token files (`ltrain data build`), or text and records (Parquet, "
      "Arrow, "
      "JSONL, CSV, tar and others; docs/data.md), which the run tokenises first. A path may be a pattern, "
      "shard-*: matching token files share its weight in proportion to their samples. text: the field of the "
      "text. split, config: part of a dataset folder. where: records to keep, by their fields. fields: names "
      "in the file of a conversation's fields, {messages: dialog}. max_epochs: refuses a run that would read "
      "the source more often."));
  t.push_back(
      data_stages(
          "data.stages",
          "Mixes that replace data.train from a step on, or after so many tokens, such as another one for "
          "the last tenth of a run. A source keeps its place and its epochs when the mix changes.")
          .when("task: pretrain or sft", false, [](const Recipe& r) { return !trains_preferences(r.task); }));
  t.push_back(sources(
                  "data.eval", [](Recipe& r) -> std::vector<DataSource>& { return r.data.eval; }, true,
                  "Held-out data, given like data.train. Files with the same name form a set with its own "
                  "loss. Without "
                  "names all files form one set.")
                  .changes(Effect::nothing));
}

/// Adds the weights of a mix, and the documents that are left out of it.
void add_choice_keys(std::vector<Key>& t) {
  const auto pretrains = [](const Recipe& r) { return r.task == Task::pretrain; };
  t.push_back(
      number("data.temperature", LT_MEMBER(data.temperature),
             "Weights of the sources of data.train and of each mix of data.stages: tokens^(1/T), for "
             "sources without weights of their own. 1: in proportion to the tokens; a large T: equal. "
             "null: the weights of the sources.")
          .at_least(1));
  t.push_back(
      choice("data.deduplicate", LT_MEMBER(data.deduplicate), {},
             "Documents that are left out of a training source when it is tokenised. exact: those with "
             "the text of an earlier one of the source.")
          .when("task: pretrain", true, pretrains));
  t.push_back(
      texts("data.decontaminate.against", LT_MEMBER(data.decontaminate.against), "path", "[\"eval/*.jsonl\"]",
            "Evaluation data, as files or folders of text and records. Documents of training sources that "
            "share an n-gram of words with any of their texts are left out when they are tokenised.")
          .when("task: pretrain", true, pretrains));
  t.push_back(integer("data.decontaminate.ngram", LT_MEMBER(data.decontaminate.ngram), "Words of an n-gram.")
                  .between(1, data::kMostNgramWords)
                  .when("data.decontaminate.against", true,
                        [](const Recipe& r) { return !r.data.decontaminate.against.empty(); }));
}

/// Adds the tokenizer, and the reading of text and conversations.
void add_text_keys(std::vector<Key>& t) {
  std::vector<std::pair<std::string, const data::TokenizerKind*>> kinds;
  std::string help, files;
  std::vector<std::string> with_file;
  for (const data::TokenizerKind& k : data::tokenizer_kinds()) {
    kinds.emplace_back(k.name, &k);
    help += (help.empty() ? "" : " ") + k.name + ": " + k.help;
    if (!k.takes_file()) continue;
    with_file.push_back(k.name);
    files += (files.empty() ? "" : " ") + k.name + ": a " + k.file + ".";
  }
  t.push_back(choice<const data::TokenizerKind*>("data.tokenizer.kind", LT_MEMBER(data.tokenizer.kind), kinds,
                                                 {"tiktoken"}, help)
                  .say({{"sentencepiece", "huggingface"}, {"spm", "huggingface"}}));
  t.push_back(text("data.tokenizer.path", LT_MEMBER(data.tokenizer.path), files)
                  .alias({"tokenizer_model"})
                  .when("data.tokenizer.kind: " + either(with_file), false,
                        [](const Recipe& r) { return r.data.tokenizer.kind->takes_file(); }));
  t.push_back(integer("data.tokenizer.eod", LT_MEMBER(data.tokenizer.eod),
                      "End-of-document token of token files without a sidecar; null: the tokenizer's, which "
                      "must then be given by kind. none: documents end only where the index says.")
                  .or_word("none", -1)
                  .between(0, kMaxIds - 1)
                  .alias({"eod_id", "eos_token_id"}));
  t.push_back(
      text("data.cache", LT_MEMBER(data.cache),
           "Folder for the token files that runs make of text and records. A later run with the same "
           "data and tokenizer finds them. Nodes must see the same folder, or each makes its own. null: "
           "`data` in the cache folder ($LTRAIN_CACHE_DIR).")
          .changes(Effect::nothing));
  t.push_back(number("data.object_cache_gb", LT_MEMBER(data.object_cache_gb),
                     "Most GB of local copies of objects (sources that are URLs) at once, in `objects` of "
                     "data.cache. Copies are deleted when others need the space. null: half of what is free.")
                  .above(0)
                  .changes(Effect::nothing));
  t.push_back(choice("data.on_bad_record", LT_MEMBER(data.on_bad_record), {},
                     "Records that cannot be read. stop: the first one ends the run before it trains. skip: "
                     "they are left out, counted and named. replace: invalid characters become U+FFFD, and "
                     "other bad records are left out."));
  t.push_back(integer("data.workers", LT_MEMBER(data.workers), "Threads that tokenise. 0: one per core.")
                  .between(0, 256)
                  .changes(Effect::speed));
  t.push_back(number("data.shard_mib", LT_MEMBER(data.shard_mib),
                     "MiB of files from which one set of token files (.bin, .idx) is made. A file is not "
                     "divided, and a source has at most 512 sets.")
                  .between(1e-3, 1 << 20));
  t.push_back(
      text("data.chat_template", LT_MEMBER(data.chat_template),
           "Chat template: a file, or the name of a built-in one: chatml, llama3, gemma, mistral, phi. null: "
           "that of the tokenizer's folder.")
          .when("task: sft, dpo, kto or reward", false,
                [](const Recipe& r) { return r.task != Task::pretrain; }));
  t.push_back(
      choice("data.train_on", LT_MEMBER(data.train_on), {},
             "Messages that count in the loss. assistant: all of the assistant's. last_turn: its last one. "
             "all: every message.")
          .when("task: sft, dpo, kto or reward", false,
                [](const Recipe& r) { return r.task != Task::pretrain; }));
}

/// Adds the length of sequences, and their masks.
void add_sequence_keys(std::vector<Key>& t) {
  t.push_back(integer("data.seq_length", LT_MEMBER(data.seq_length), "Sequence length in tokens.")
                  .between(1, kMaxIds)
                  .alias({"sequence_length", "max_seq_length"}));
  t.push_back(integer("data.train_seq_length", LT_MEMBER(data.train_seq_length),
                      "Tokens of a sequence of data.train, until a stage of data.stages with a seq_length of "
                      "its own; null: data.seq_length. Shorter sequences share samples of data.seq_length: "
                      "tokens attend within their sequence, and its positions begin at 0.")
                  .between(1, kMaxIds));
  t.push_back(
      choice(
          "data.packing", LT_MEMBER(data.packing), {},
          "How documents become samples. concatenate: they are one stream, which is cut every seq_length "
          "tokens. best_fit: whole documents share samples, and only those longer than seq_length are cut. "
          "document: one document a sample. The rest of a sample is padding, which does not count.")
          .when("task: pretrain", true, [](const Recipe& r) { return r.task == Task::pretrain; }));
  t.push_back(
      integer("data.shuffle_window", LT_MEMBER(data.shuffle_window),
              "Token files of a training source that are shuffled together, one window after the other, so "
              "that `ltrain run` trains while later windows are tokenised. 0: all files are tokenised first, "
              "and shuffled together.")
          .between(0, 1 << 20)
          .when("task: pretrain or sft", true, [](const Recipe& r) { return !trains_preferences(r.task); }));
  t.push_back(truth("data.ledger", LT_MEMBER(data.ledger),
                    "Each data-parallel rank writes which samples its steps were trained on, to ledger/ of "
                    "output_dir. `ltrain data ledger` compares them with the order of the recipe.")
                  .changes(Effect::nothing));
  t.push_back(truth("data.reset_attention_mask", LT_MEMBER(data.reset_attention_mask),
                    "Tokens attend only within their document. A document ends after an end-of-document "
                    "token and where the token file's index says.")
                  .derived("true for task: sft, dpo, kto and reward, else false",
                           [](Recipe& r) { r.data.reset_attention_mask = r.task != Task::pretrain; }));
  t.push_back(truth("data.reset_position_ids", LT_MEMBER(data.reset_position_ids),
                    "Positions restart at 0 in each document.")
                  .derived("true for task: sft, dpo, kto and reward, else false",
                           [](Recipe& r) { r.data.reset_position_ids = r.task != Task::pretrain; }));
  t.push_back(truth("data.eod_mask_loss", LT_MEMBER(data.eod_mask_loss),
                    "Excludes from the loss the prediction of a document's first token from the end of the "
                    "previous document."));
}

void add_data_keys(std::vector<Key>& t) {
  add_source_keys(t);
  add_choice_keys(t);
  add_text_keys(t);
  add_sequence_keys(t);
}

/// Adds batch sizes and the number of steps.
void add_length_keys(std::vector<Key>& t) {
  t.push_back(integer("train.micro_batch_size", LT_MEMBER(train.micro_batch_size),
                      "Sequences of a rank's micro-batch.")
                  .changes(Effect::speed)
                  .between(1, kMaxDim)
                  .alias({"per_device_train_batch_size"}));
  t.push_back(integer("train.global_batch_size", LT_MEMBER(train.global_batch_size),
                      "Sequences per optimizer step, over all ranks and micro-batches.")
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
                      "The run ends after this step with an evaluation and a save, as after its last step. "
                      "The schedule does not change; null: train_steps.")
                  .between(1, kMaxSteps));
  t.push_back(integer("train.train_tokens", LT_MEMBER(train.train_tokens),
                      "Tokens to train on; replaces train_steps.")
                  .changes(Effect::schedule)
                  .between(1, 9e15));
}

/// Adds limits on gradients and loss, the ramp of the batch, and averaged weights.
void add_update_keys(std::vector<Key>& t) {
  t.push_back(number("train.clip_grad", LT_MEMBER(train.clip_grad),
                     "Gradient norm to which gradients are clipped; 0: no clipping.")
                  .changes(Effect::function)
                  .at_least(0)
                  .alias({"max_grad_norm"}));
  t.push_back(
      number("train.skip_grad_norm", LT_MEMBER(train.skip_grad_norm),
             "Skips the update of a step whose gradient norm before clipping is above this; 0: never.")
          .changes(Effect::function)
          .at_least(0));
  Key most = integer("train.max_skipped_steps", LT_MEMBER(train.max_skipped_steps),
                     "Consecutive skipped steps after which the run ends with exit code 76.")
                 .between(1, kMaxSteps);
  most.when("train.skip_grad_norm", true, [](const Recipe& r) { return r.train.skip_grad_norm > 0; });
  t.push_back(std::move(most));
  t.push_back(
      integer(
          "train.batch_ramp.start", LT_MEMBER(train.batch_ramp.start),
          "Global batch of the first steps in sequences, which grows to train.global_batch_size; 0: no ramp.")
          .between(0, kMaxDim));
  const auto ramp = [](Key key) {
    key.when("train.batch_ramp.start", true, [](const Recipe& r) { return r.train.batch_ramp.start > 0; });
    return key;
  };
  t.push_back(ramp(integer("train.batch_ramp.increment", LT_MEMBER(train.batch_ramp.increment),
                           "Sequences by which the batch grows at a time.")
                       .between(1, kMaxDim)));
  t.push_back(
      ramp(integer("train.batch_ramp.samples", LT_MEMBER(train.batch_ramp.samples),
                   "Number of sequences until the batch reaches its full size. It grows at equal intervals.")
               .between(1, kMaxSteps)));
  t.push_back(number("train.ema_decay", LT_MEMBER(train.ema_decay),
                     "Decay of an EMA of the weights, which evaluations use. Each update moves it by 1 - "
                     "min(this, (1 + step) / (10 + step)) of the difference; 0: no EMA.")
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
                     "Ends the run with exit code 76 if the loss is above this, before the update; 0: never.")
                  .at_least(0));
}

/// Adds intervals of evaluation and logs, and the chunks of logits.
void add_interval_keys(std::vector<Key>& t) {
  t.push_back(
      integer("train.eval_interval", LT_MEMBER(train.eval_interval), "Steps between evaluations; 0: never.")
          .between(0, kMaxSteps)
          .derived("500 when data.eval is given, else 0",
                   [](Recipe& r) { r.train.eval_interval = r.data.eval.empty() ? 0 : 500; }));
  t.push_back(integer("train.eval_steps", LT_MEMBER(train.eval_steps), "Global batches per evaluation.")
                  .between(1, kMaxSteps)
                  .alias({"eval_iters"}));
  t.push_back(integer("train.log_interval", LT_MEMBER(train.log_interval), "Steps between log lines.")
                  .between(1, kMaxSteps)
                  .alias({"logging_steps"}));
  t.push_back(number("train.exit_duration_in_mins", LT_MEMBER(train.exit_duration_in_mins),
                     "Saves and stops after this many minutes; null: no limit.")
                  .above(0));
  t.push_back(integer("train.logits_chunk_size", LT_MEMBER(train.logits_chunk_size),
                      "Tokens of a micro-batch whose logits are in memory at once on a rank, in forward and "
                      "backward. auto: as many as 64 MiB of fp32 logits hold, on a GPU at least 4096.")
                  .changes(Effect::speed)
                  .or_word("auto", 0)
                  .between(1, kMaxDim));
}

void add_train_keys(std::vector<Key>& t) {
  add_length_keys(t);
  add_update_keys(t);
  add_interval_keys(t);
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
  add_diloco_keys(t);
  add_quantization_keys(t);
  add_lora_keys(t);
  add_preference_keys(t);
  add_distillation_keys(t);
  add_schedule_keys(t);
  add_job_keys(t);
  add_replica_keys(t);
  add_telemetry_keys(t);
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
