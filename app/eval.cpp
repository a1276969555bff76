// ltrain eval: loss of a checkpoint on token files.
#include <omp.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/device_option.h"
#include "app/print_notes.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/generate/session.h"
#include "runtime/launch/cgroup.h"
#include "runtime/plan/plan.h"

namespace ltrain::app {
namespace {

void check_trained_on(Session& session, const data::SourceInfo& data) {
  const auto t = session.trained_tokenizer();
  if (t && !t->hash.empty() && data.tokenizer_hash != t->hash)
    fail(ExitCode::usage,
         "{} is of tokenizer {} (hash {}), and {} was trained on tokens of {} (hash {}): its loss there "
         "would mean nothing. Build the data with that tokenizer",
         data.prefix, data.tokenizer, data.tokenizer_hash, session.path(), t->kind, t->hash);
}

}  // namespace

void add_eval(CLI::App& app) {
  struct Options {
    std::string where, data;
    int64_t samples = 0, micro_batch = 4, seq_length = 0;
    int threads = 0;
    DeviceChoice device = DeviceChoice::automatic;
    bool json = false, average = false;
  };
  auto* command = app.add_subcommand("eval", "Loss of a checkpoint on held-out data");
  auto o = std::make_shared<Options>();
  command
      ->add_option("checkpoint", o->where,
                   "A checkpoint, a folder of them, a run's output_dir, or a Hugging Face folder")
      ->required();
  command->add_option("--data", o->data,
                      "PREFIX of PREFIX.bin and PREFIX.idx; default: data.eval of the recipe");
  command->add_option("--samples", o->samples, "Sequences, at most; 0: all")->check(CLI::NonNegativeNumber);
  command->add_option("--seq-length", o->seq_length, "Tokens of a sequence; default: the recipe's")
      ->check(CLI::PositiveNumber);
  command->add_option("--micro-batch", o->micro_batch, "Sequences at once")->check(CLI::Range(1, 4096));
  command->add_option("--threads", o->threads, "CPU threads; default: all")->check(CLI::Range(1, 4096));
  add_device(*command, o->device);
  command->add_flag("--ema", o->average, "The average of weights that train.ema_decay keeps");
  command->add_flag("--json", o->json, "For programs");
  command->footer("Example: ltrain eval runs/quickstart --samples 64");
  command->callback([o] {
    omp_set_num_threads(o->threads > 0 ? o->threads : usable_cores());
    Session session({o->where, "", o->micro_batch, 0, o->seq_length, o->device, o->average});
    print_notes(session.notes());
    const Recipe& recipe = session.recipe();
    data::LoaderOptions l;
    if (!o->data.empty()) l.sources.push_back({o->data, 1});
    if (o->data.empty())
      for (const DataSource& s : recipe.data.eval) l.sources.push_back({s.path, s.weight});
    if (l.sources.empty())
      fail(ExitCode::usage, "the recipe of {} names no data.eval; give --data PREFIX", session.path());
    for (const data::SourceSpec& s : l.sources) {
      const data::SourceInfo info = data::inspect_source(s.path);
      if (info.has_sidecar) check_trained_on(session, info);
      data::check_source(info, recipe.model.vocab_size, recipe.data.seq_length);
    }
    l.seq_length = recipe.data.seq_length;
    l.micro_batch = l.global_batch = o->micro_batch;
    l.vocab_size = recipe.model.vocab_size;
    l.packing = packing(recipe);
    if (l.packing.on()) l.packing.eod = session.end_of_document();
    l.eval = true;
    l.eval_samples = o->samples;
    data::BatchLoader loader(l, 0);
    const int64_t batches = (loader.eval_samples() + o->micro_batch - 1) / o->micro_batch;
    int64_t left = batches;
    HostBatch batch;
    const double loss = session.program().evaluate([&]() -> const HostBatch* {
      if (left-- <= 0) return nullptr;
      loader.next(batch);
      return &batch;
    });
    if (o->json) {
      std::printf("%s\n", nlohmann::ordered_json{{"schema", "ltrain.eval.v1"},
                                                 {"checkpoint", session.path()},
                                                 {"step", session.step()},
                                                 {"samples", loader.eval_samples()},
                                                 {"loss", loss},
                                                 {"perplexity", std::exp(loss)}}
                              .dump()
                              .c_str());
    } else {
      std::printf("%s, step %lld: loss %.4f, perplexity %.2f over %lld sequences of %lld tokens\n",
                  session.path().c_str(), static_cast<long long>(session.step()), loss, std::exp(loss),
                  static_cast<long long>(loader.eval_samples()),
                  static_cast<long long>(recipe.data.seq_length));
    }
  });
}

}  // namespace ltrain::app
