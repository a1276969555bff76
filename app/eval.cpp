// ltrain eval: evaluates a checkpoint on held-out data and on questions.
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "app/commands.h"
#include "app/device_option.h"
#include "app/from_ignore_option.h"
#include "app/make_token_files.h"
#include "app/model_layout.h"
#include "app/precision_option.h"
#include "app/print_notes.h"
#include "app/progress_line.h"
#include "app/text_begin_option.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/check/data_sources.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/distillation/top_logits_recorder.h"
#include "runtime/eval/held_out.h"
#include "runtime/eval/multiple_choice.h"
#include "runtime/eval/routing_record.h"
#include "runtime/files/file.h"
#include "runtime/generate/session.h"
#include "runtime/program/recipe_program.h"

namespace ltrain::app {
namespace {

using nlohmann::ordered_json;

struct EvalOptions {
  std::string where, scores, precision, routing, routing_before, record_logits;
  std::vector<std::string> data, choices, from_ignore;
  int64_t samples = 0, micro_batch = 4, seq_length = 0;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  bool json = false, average = false;
  ModelLayout layout;
  TextBegin begin = TextBegin::as_trained;
  /// --record-logits: the student's recipe, with its sources.
  std::optional<Recipe> student;
  bool records_routing() const { return !routing.empty() || !routing_before.empty(); }
};

/// Splits "NAME=PATH" or "PATH". Without a name, and with several of a kind, the path is the name.
std::pair<std::string, std::string> name_and_path(const std::string& given, bool several) {
  const size_t at = given.find('=');
  if (at != std::string::npos && is_set_name(given.substr(0, at)))
    return {given.substr(0, at), given.substr(at + 1)};
  return {several ? given : "", given};
}

/// Sets from `options`, else from the recipe.
std::vector<EvalSet> sets_of(const EvalOptions& options, const Recipe& recipe) {
  std::vector<EvalSet> sets;
  for (const std::string& given : options.data) {
    auto [name, path] = name_and_path(given, options.data.size() > 1);
    for (const EvalSet& other : sets)
      if (other.name == name)
        fail(ExitCode::usage, "--data {}: {} is given twice", printable(given), printable(name));
    sets.push_back({name, {{path, 1}}});
  }
  return options.data.empty() ? eval_sets(recipe) : sets;
}

/// Questions, read before the model is loaded, which may take minutes.
struct Questions {
  std::string name, path;
  std::vector<Question> all;
};

class Evaluation {
 public:
  Evaluation(const EvalOptions& options, const std::vector<Questions>& questions, Job* job)
      : options_(options),
        questions_(questions),
        lead_(!job || job->info().rank == 0),
        session_({.where = options.where,
                  .from_ignore = options.from_ignore,
                  .micro_batch = reads_data() ? options.micro_batch : 0,
                  .texts = questions.empty() ? 0 : 1,
                  .scores = !questions.empty(),
                  .choices = options.records_routing(),
                  .seq_length = options.seq_length,
                  .data = options.student ? &options.student->data : nullptr,
                  .device = options.device,
                  .average = options.average,
                  .precision = options.precision,
                  .layout = options.layout,
                  .job = job}) {
    if (!options.scores.empty() && lead_) scores_.emplace(options.scores);
    if (options.student)
      recorder_.emplace(*options.student, session_.path(), session_.recipe().model.vocab_size,
                        session_.program().options().precision.compute == DType::f64 ? 8 : 4);
    if (options.records_routing() && lead_)
      routing_.emplace(session_.recipe().model, session_.step(), options.routing, options.routing_before);
  }

  void run() {
    if (lead_) print_notes(session_.notes());
    std::vector<EvalSet> sets;
    if (reads_data()) {
      sets = recorder_ ? recorded_sets() : sets_of(options_, session_.recipe());
      if (sets.empty())
        fail(ExitCode::usage, "the recipe of {} names no data.eval; give --data PREFIX", session_.path());
    }
    for (const EvalSet& set : sets) check(set);  // check all before the first is read
    single_ = sets.size() + questions_.size() == 1;
    if (!options_.json && !single_)
      std::printf("%s, step %lld\n", session_.path().c_str(), static_cast<long long>(session_.step()));
    ordered_json all_sets = ordered_json::array(), all_questions = ordered_json::array();
    for (const EvalSet& set : sets) all_sets.push_back(evaluate(set));
    for (const Questions& q : questions_) all_questions.push_back(answer(q));
    if (scores_) scores_->commit();
    if (routing_) routing_->commit();
    if (!options_.json) return say_routing();
    ordered_json j{{"schema", "ltrain.eval.v2"}, {"checkpoint", session_.path()}, {"step", session_.step()}};
    if (!sets.empty()) j["sets"] = std::move(all_sets);
    if (!questions_.empty()) j["questions"] = std::move(all_questions);
    if (routing_ && !routing_->changes().empty()) j["routing_changes"] = routing_json();
    std::printf("%s\n", j.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
  }

 private:
  bool reads_data() const { return !options_.data.empty() || questions_.empty(); }

  /// A set for each source of the student's data.train.
  std::vector<EvalSet> recorded_sets() const {
    std::vector<EvalSet> sets;
    const std::vector<std::string>& sources = recorder_->sources();
    for (const std::string& path : sources) sets.push_back({sources.size() > 1 ? path : "", {{path}}});
    return sets;
  }

  void check(const EvalSet& set) {
    for (const data::SourceSpec& s : set.sources) {
      const data::SourceInfo info = data::inspect_source(s.path);
      if (info.preference || info.unpaired)
        fail(ExitCode::usage,
             "{} has {}, whose loss a run with that task logs as eval_loss; name conversations or texts with "
             "--data PREFIX",
             info.prefix, info.preference ? "preference pairs" : "labelled examples");
      if (const auto t = session_.trained_tokenizer();
          info.has_sidecar && t && !t->hash.empty() && info.tokenizer_hash != t->hash)
        fail(ExitCode::usage,
             "{} is of tokenizer {} (hash {}), and {} was trained on tokens of {} (hash {}): its loss there "
             "would mean nothing. Build the data with that tokenizer",
             info.prefix, info.tokenizer, info.tokenizer_hash, session_.path(), t->kind, t->hash);
      const Data& data = session_.recipe().data;
      data::check_source(info, session_.recipe().model.vocab_size, data.seq_length, data.packing);
    }
  }

  /// Bytes of text of each id; empty if the tokenizer of the set is unknown.
  std::vector<int32_t> bytes_of(const EvalSet& set) {
    if (!has_sidecars(set)) {
      print_notes({"no bits per byte of " + printable(set.sources[0].path) +
                   ": no sidecar says which tokenizer made it"});
      return {};
    }
    try {
      if (is_of_tokenizer(set, session_.tokenizer())) return text_bytes(session_.tokenizer());
    } catch (const Error& e) {
      print_notes({std::string("no bits per byte: ") + e.what()});
      return {};
    }
    print_notes({"no bits per byte of " + printable(set.sources[0].path) +
                 ": it was made by another tokenizer than " +
                 printable(session_.recipe().data.tokenizer.path.value_or(session_.tokenizer().name()))});
    return {};
  }

  void begin_record(int64_t samples) {
    recorder_->begin(recorded_++, samples, lead_);
    session_.program().take_logits(
        [&](const HostBatch& of, int64_t first_row, const std::vector<double>& logits) {
          recorder_->add(of, first_row, logits);
        });
  }

  void end_record(ordered_json& j) {
    const std::string line = recorder_->end();
    if (line.empty()) return;
    j["logits"] = line;
    if (!options_.json) std::printf("%s\n", line.c_str());
  }

  ordered_json evaluate(const EvalSet& set) {
    const Recipe& recipe = session_.recipe();
    data::LoaderOptions l;
    l.sources = set.sources;
    l.seq_length = recipe.data.seq_length;
    l.micro_batch = l.global_batch = options_.micro_batch;
    l.vocab_size = recipe.model.vocab_size;
    l.packing = packing(recipe);
    if (l.packing.on()) l.packing.eod = session_.end_of_document();
    l.eval = true;
    l.eval_samples = options_.samples;
    if (recorder_) l = recorder_->loader(recorded_, options_.micro_batch);
    data::BatchLoader loader(l, 0);
    if (const std::string note =
            cut_note(set, recipe.data, options_.samples > 0 ? options_.samples : INT64_MAX);
        lead_ && !note.empty())
      print_notes({note});
    const int64_t samples = loader.eval_samples();
    const int64_t batches = (samples + options_.micro_batch - 1) / options_.micro_batch;
    int64_t done = 0;
    HostBatch batch;
    ProgressLine progress(options_.json || !lead_, "sequences", 1);
    const auto next = [&]() -> const HostBatch* {
      progress.update(std::min(done * options_.micro_batch, samples), samples);
      if (done == batches) return nullptr;
      ++done;
      loader.next(batch);
      return &batch;
    };
    if (routing_)
      session_.program().take_choices([&](const HostBatch& of, const std::vector<int32_t>& choices) {
        routing_->add(set.name, of, choices);
      });
    if (recorder_) begin_record(samples);
    EvalResult r = *session_.program().evaluate(next, {}, bytes_of(set));
    r.tokens /= options_.layout.data;  // these ranks have read the same data
    r.bytes /= options_.layout.data;
    ordered_json j;
    if (!set.name.empty()) j["name"] = set.name;
    j["samples"] = samples;
    j["tokens"] = r.tokens;
    j["loss"] = r.loss;
    j["perplexity"] = std::exp(r.loss);
    if (r.bytes > 0) {
      j["bytes"] = r.bytes;
      j["bits_per_byte"] = r.bits_per_byte();
    }
    progress.clear();
    if (recorder_) end_record(j);
    say(set.name, fmt::format("loss {:.4f}, perplexity {:.2f}{} over {} sequences of {} tokens", r.loss,
                              std::exp(r.loss),
                              r.bytes > 0 ? fmt::format(", {:.4f} bits per byte", r.bits_per_byte()) : "",
                              samples, recipe.data.seq_length));
    return j;
  }

  ordered_json answer(const Questions& questions) {
    ProgressLine progress(options_.json || !lead_, "questions", 1);
    int64_t done = 0;
    const auto each = [&](const AnsweredQuestion& a) {
      progress.update(++done, static_cast<int64_t>(questions.all.size()));
      if (!scores_) return;
      ordered_json j;
      if (!questions.name.empty()) j["name"] = questions.name;
      j["line"] = a.question.line;
      j["log_likelihoods"] = a.log_likelihoods;
      j["answer"] = a.question.answer;
      j["chosen"] = a.chosen;
      j["chosen_by_length"] = a.chosen_by_length;
      const std::string line = j.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
      scores_->write(line.data(), static_cast<int64_t>(line.size()));
    };
    const MultipleChoiceResult r =
        answer_questions(questions.all, questions.path, session_.program(), session_.cache(0),
                         session_.tokenizer(), session_.text_begin(options_.begin), each);
    const double plain = r.accuracy(), by_length = r.accuracy_by_length();
    ordered_json j;
    if (!questions.name.empty()) j["name"] = questions.name;
    j["questions"] = r.questions;
    j["accuracy"] = plain;
    j["accuracy_stderr"] = r.standard_error(plain);
    j["accuracy_by_length"] = by_length;
    j["accuracy_by_length_stderr"] = r.standard_error(by_length);
    j["shortened"] = r.shortened;
    progress.clear();
    say(questions.name,
        fmt::format("accuracy {:.4f} ± {:.4f}, by length {:.4f} ± {:.4f} over {} questions{}", plain,
                    r.standard_error(plain), by_length, r.standard_error(by_length), r.questions,
                    r.shortened > 0 ? fmt::format(", of which {} had to be shortened", r.shortened) : ""));
    return j;
  }

  ordered_json routing_json() const {
    ordered_json all = ordered_json::array();
    for (const auto& [layer, change] : routing_->changes())
      all.push_back({{"layer", layer},
                     {"tokens", change.tokens},
                     {"first", change.first_share()},
                     {"choices", change.choice_share()}});
    return all;
  }

  /// Shares of choices that differ from --routing-before, by layer.
  void say_routing() const {
    if (!routing_ || routing_->changes().empty()) return;
    std::printf("since %s, by layer: tokens whose first expert changed, choices that changed\n",
                printable(options_.routing_before).c_str());
    for (const auto& [layer, change] : routing_->changes())
      std::printf("  layer %-4lld %6.2f%% %6.2f%%\n", static_cast<long long>(layer),
                  100 * change.first_share(), 100 * change.choice_share());
  }

  void say(const std::string& name, const std::string& text) const {
    if (options_.json) return;
    const std::string begin = single_ ? fmt::format("{}, step {}", session_.path(), session_.step()) : "";
    std::printf("%s\n", fmt::format("{}{}: {}", begin,
                                    name.empty() ? "" : (single_ ? ", " : "  ") + printable(name), text)
                            .c_str());
    std::fflush(stdout);
  }

  const EvalOptions& options_;
  const std::vector<Questions>& questions_;
  const bool lead_;  // the rank whose output is shown
  Session session_;
  std::optional<data::OutputFile> scores_;     // --scores
  std::optional<RoutingRecord> routing_;       // --routing, --routing-before
  std::optional<TopLogitsRecorder> recorder_;  // --record-logits
  size_t recorded_ = 0;                        // its sources so far
  bool single_ = false;                        // print a single line
};

/// The student's recipe, whose token files exist. Logits are those of the first rank, which has all columns.
Recipe student_recipe(const EvalOptions& o) {
  if (!o.data.empty() || !o.choices.empty() || o.samples > 0 || o.seq_length > 0)
    fail(ExitCode::usage,
         "--record-logits {}: reads all of data.train of the recipe as its data.seq_length says; leave out "
         "--data, --choices, --samples and --seq-length",
         printable(o.record_logits));
  if (o.layout.tensor > 1 || o.layout.pipeline > 1)
    fail(ExitCode::usage, "--record-logits: expected one rank of tensor and pipeline, got {} and {}",
         o.layout.tensor, o.layout.pipeline);
  Recipe recipe = load_recipe(o.record_logits, {});
  resolve_sources(recipe, true);
  if (!has_pending_sources(recipe)) return recipe;
  make_token_files(recipe, MadeFiles::all, o.json);
  recipe = load_recipe(o.record_logits, {});
  resolve_sources(recipe, true);
  return recipe;
}

/// Choices are those of the first rank, which has all tokens and all layers.
void check_routing(const EvalOptions& o) {
  const char* option = o.routing.empty() ? "--routing-before" : "--routing";
  if (o.data.empty() && !o.choices.empty())
    fail(ExitCode::usage, "{}: is of held-out data; give --data PREFIX beside --choices", option);
  if (o.layout.tensor > 1 || o.layout.pipeline > 1)
    fail(ExitCode::usage,
         "{}: expected one rank of tensor and pipeline, got {} and {}; experts may be on several (--parallel "
         "data=2,expert=2)",
         option, o.layout.tensor, o.layout.pipeline);
}

/// Adds the options of files that an evaluation writes beside its results.
void add_records(CLI::App& command, EvalOptions& o) {
  command.add_option(
      "--routing", o.routing,
      "A file to write: the choices of each router with experts, a line for each sample and layer");
  command.add_option("--routing-before", o.routing_before,
                     "Such a file of another checkpoint: how many choices have changed since");
  command.add_option(
      "--record-logits", o.record_logits,
      "A student's recipe: writes the model's distillation.top_k largest logits for each token of its "
      "data.train to its distillation.logits");
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* command =
      app.add_subcommand("eval", "Loss of a checkpoint on held-out data, and its answers to questions");
  auto o = std::make_shared<EvalOptions>();
  const auto list = [&](const char* name, std::vector<std::string>& to, const char* help) {
    command->add_option(name, to, help)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  command
      ->add_option("checkpoint", o->where,
                   "A checkpoint, a folder of them, a run's output_dir, or a Hugging Face folder")
      ->required();
  list("--data", o->data,
       "[NAME=]PREFIX of PREFIX.bin and PREFIX.idx, again for each set; default: data.eval of the recipe");
  list("--choices", o->choices,
       "[NAME=]FILE of questions, a JSON object a line: question, choices, answer (index); may be given "
       "again");
  command->add_option("--scores", o->scores,
                      "A file to write: an object a question with each choice's log-likelihood");
  add_records(*command, *o);
  command->add_option("--samples", o->samples, "Sequences of each set, at most; 0: all")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--seq-length", o->seq_length, "Tokens of a sequence; default: the recipe's")
      ->check(CLI::PositiveNumber);
  command->add_option("--micro-batch", o->micro_batch, "Sequences at once")->check(CLI::Range(1, 4096));
  command->add_option("--threads", o->threads, "CPU threads; default: all")->check(CLI::Range(1, 4096));
  add_device(*command, o->device);
  add_precision(*command, o->precision);
  add_layout(*command, o->layout);
  command->add_flag("--ema", o->average, "The average of weights that train.ema_decay keeps");
  add_from_ignore(*command, o->from_ignore);
  add_text_begin(*command, o->begin);
  command->add_flag("--json", o->json, "For programs");
  command->footer("Example: ltrain eval runs/quickstart --samples 64");
  command->callback([o] {
    std::vector<Questions> questions;
    if (!o->scores.empty() && o->choices.empty())
      fail(ExitCode::usage, "--scores {}: is of questions; give --choices FILE", printable(o->scores));
    if (o->records_routing()) check_routing(*o);
    if (!o->record_logits.empty()) o->student = student_recipe(*o);
    for (const std::string& given : o->choices) {
      const auto [name, path] = name_and_path(given, o->choices.size() > 1);
      questions.push_back({name, path, read_questions(path)});
    }
    on_ranks({.where = o->where,
              .from_ignore = o->from_ignore,
              .seq_length = o->seq_length,
              .device = o->device,
              .layout = o->layout},
             o->threads, [&](Job* job) {
               Evaluation(*o, questions, job).run();
               return ExitCode::done;
             });
  });
}

}  // namespace ltrain::app
