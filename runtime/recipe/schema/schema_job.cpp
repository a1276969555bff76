// Schema rows around the training: checkpoints, launch, logs.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

/// Adds saves, resume, and what is loaded.
void add_checkpoint_keys(std::vector<Key>& t) {
  t.push_back(integer("checkpoint.save_interval", LT_MEMBER(checkpoint.save_interval),
                      "Steps between checkpoints; 0: never.")
                  .between(0, kMaxSteps)
                  .alias({"save_steps"}));
  t.push_back(integer("checkpoint.keep_latest", LT_MEMBER(checkpoint.keep_latest),
                      "Number of healthy checkpoints to keep, at least 2; 0: all.")
                  .between(0, 1e9)
                  .alias({"save_total_limit", "keep_latest_k"}));
  t.push_back(integer("checkpoint.keep_every", LT_MEMBER(checkpoint.keep_every),
                      "Steps between checkpoints that are never removed, beyond keep_latest; 0: none.")
                  .between(0, kMaxSteps)
                  .when("checkpoint.keep_latest above 0", true,
                        [](const Recipe& r) { return r.checkpoint.keep_latest > 0; }));
  t.push_back(
      truth("checkpoint.keep_best", LT_MEMBER(checkpoint.keep_best),
            "Rotation also keeps the checkpoint of the lowest held-out loss (the mean over the sets of "
            "data.eval), which the link checkpoints/best points to."));
  t.push_back(truth("checkpoint.async_save", LT_MEMBER(checkpoint.async_save),
                    "Writes checkpoints in the background while training continues."));
  t.push_back(text("checkpoint.remote", LT_MEMBER(checkpoint.remote),
                   "s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, where each checkpoint is uploaded, too, while "
                   "training continues. resume: auto takes the newest checkpoint of both places, and the "
                   "rules of rotation are the same."));
  t.push_back(text("checkpoint.resume", LT_MEMBER(checkpoint.resume),
                   "auto: the newest complete checkpoint of output_dir, or a fresh start. never: always a "
                   "fresh start. A path: this checkpoint, which must load.")
                  .alias({"resume_from_checkpoint"}));
  t.push_back(
      choice("checkpoint.resume_data", LT_MEMBER(checkpoint.resume_data), {},
             "Behaviour of a resume if the training data of the recipe differ from the checkpoint's (files, "
             "weights, tokenizer, seq_length, seed). same: an error. continue: continues at the same sample "
             "number, in the order of the new data. restart: starts with the first sample of the new data."));
  t.push_back(
      text("checkpoint.upcycle", LT_MEMBER(checkpoint.upcycle),
           "A fresh start takes its weights from this checkpoint of a dense model of the same shape. Every "
           "expert starts as a copy of the feed-forward or of a part of it, and routers are initialized from "
           "the seed.")
          .when("model.moe.num_experts above 0", true,
                [](const Recipe& r) { return r.model.moe.num_experts > 0; }));
  t.push_back(text("checkpoint.load.path", LT_MEMBER(checkpoint.load_path),
                   "Initial weights of a fresh start, for any layout: a Hugging Face folder (config.json and "
                   "safetensors), a checkpoint, a folder of checkpoints, or the output_dir of a run. Steps, "
                   "data and optimizer start anew, unless parts says otherwise.")
                  .derived("the folder of model.from", nullptr));
  t.push_back(
      choice(
          "checkpoint.load.parts", LT_MEMBER(checkpoint.load_parts), {},
          "Parts of the checkpoint at path for a fresh start. weights. weights+optimizer: also the state of "
          "the same kind of optimizer; steps and data start anew. all: also the step, the data position and "
          "the loss scale, like a resume; restarts of this run resume from its own checkpoints.")
          .when("checkpoint.load.path", true,
                [](const Recipe& r) { return r.checkpoint.load_path.has_value(); }));
  t.push_back(
      truth("checkpoint.save_at_end", LT_MEMBER(checkpoint.save_at_end), "Saves after the last step."));
}

/// Adds ranks and restarts.
void add_launch_keys(std::vector<Key>& t) {
  t.push_back(integer("launch.ranks_per_node", LT_MEMBER(launch.ranks_per_node),
                      "Ranks per node; auto: one per device.")
                  .or_word("auto", 0)
                  .between(1, 4096));
  t.push_back(integer("launch.threads_per_rank", LT_MEMBER(launch.threads_per_rank),
                      "CPU threads per rank; auto: its share of the cores.")
                  .or_word("auto", 0)
                  .between(1, 4096));
  t.push_back(number("launch.distributed_timeout_minutes", LT_MEMBER(launch.distributed_timeout_minutes),
                     "Minutes after which a collective counts as a failure.")
                  .above(0));
  const auto restarts = [](const Recipe& r) { return r.launch.max_restarts > 0; };
  t.push_back(
      integer("launch.max_restarts", LT_MEMBER(launch.max_restarts),
              "Times that `ltrain run` starts all ranks again after one died or hung, from the newest "
              "checkpoint. With an `ltrain run` on each of several machines, all of them together.")
          .changes(Effect::nothing)
          .between(0, 1e6));
  t.push_back(number("launch.restart_wait_seconds", LT_MEMBER(launch.restart_wait_seconds),
                     "Wait before the first restart. It doubles with each restart in a row that saved no "
                     "checkpoint.")
                  .changes(Effect::nothing)
                  .when("launch.max_restarts above 0", true, restarts)
                  .between(0, 1e6));
  t.push_back(number("launch.restart_wait_cap_seconds", LT_MEMBER(launch.restart_wait_cap_seconds),
                     "Longest wait before a restart.")
                  .changes(Effect::nothing)
                  .when("launch.max_restarts above 0", true, restarts)
                  .between(0, 1e6));
  t.push_back(
      integer(
          "launch.min_nodes", LT_MEMBER(launch.min_nodes),
          "Nodes with which a restart goes on if the launchers of the others do not come back: "
          "parallel.data and diloco.sites fall in proportion, train.global_batch_size stays. 0: all nodes.")
          .changes(Effect::nothing)
          .when("launch.max_restarts above 0", true, restarts)
          .between(0, 1e6));
  t.push_back(text("launch.interface", LT_MEMBER(launch.interface),
                   "Network interface of the data connections; null: the one with a route to the peers."));
  t.push_back(
      choice("launch.rank_order", LT_MEMBER(launch.rank_order), {},
             "topology: ranks of another launcher are numbered anew, so that those of one host, and then "
             "of one switch, follow each other. launcher: its numbers stay."));
}

/// Adds logs and settings for tests.
void add_log_keys(std::vector<Key>& t) {
  t.push_back(
      choice("log.format", LT_MEMBER(log.format), {},
             "Lines of the log. json: objects with time, level, rank, step and message, on stderr and in "
             "output_dir/logs."));
  t.push_back(
      number("log.rank_file_mib", LT_MEMBER(log.rank_file_mib),
             "MiB of a rank's log in output_dir/logs; the file then becomes rank-00000.log.1, in the place "
             "of an older one. 0: unbounded.")
          .between(0, 1e6));
  t.push_back(truth("log.tensorboard", LT_MEMBER(log.tensorboard), "Writes TensorBoard events too."));
  t.push_back(truth("debug.shared_gpu", LT_MEMBER(debug.shared_gpu),
                    "The ranks of a host share its GPUs, as if each were on its own host, over NCCL's "
                    "sockets. For tests of layouts with few GPUs. Timings are meaningless."));
}

}  // namespace

void add_job_keys(std::vector<Key>& t) {
  add_checkpoint_keys(t);
  add_launch_keys(t);
  add_log_keys(t);
}

}  // namespace ltrain::recipe
