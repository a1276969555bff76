// ltrain checkpoint: lists checkpoints, verifies them, shows their contents.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/device_option.h"
#include "app/print_notes.h"
#include "app/progress_line.h"
#include "base/bytes_text.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/store.h"
#include "runtime/eval/activation_importance.h"
#include "runtime/eval/routing_record.h"
#include "runtime/generate/session.h"
#include "runtime/plan/sparse_plan.h"
#include "runtime/program/recipe_program.h"
#include "runtime/weights/edit_experts.h"
#include "runtime/weights/prune.h"
#include "runtime/weights/resize_vocab.h"

namespace ltrain::app {

namespace {

using nlohmann::ordered_json;

struct CheckpointQuery {
  std::string folder;
  bool json = false;
  bool tensors = false;
};

struct Found {
  std::vector<Candidate> checkpoints, aside;
};

/// Finds a checkpoint, the checkpoints of a folder, or those of a run's output_dir.
Found find(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!path_exists(path)) fail(ExitCode::storage, "{}: there is no such folder", path);
  if (is_checkpoint(path)) return {{read_checkpoint(path)}, {}};
  for (const std::string& folder : {path, path + "/checkpoints"}) {
    Found found{list_checkpoints(folder), list_set_aside(folder)};
    if (!found.checkpoints.empty() || !found.aside.empty()) return found;
  }
  fail(ExitCode::storage, "{}: no checkpoints, here or in checkpoints/", path);
}

/// `best`: it has the lowest held-out loss of its folder.
ordered_json summary(const Candidate& c, bool best = false) {
  ordered_json aside = c.aside == Aside::none ? ordered_json(nullptr) : ordered_json(to_string(c.aside));
  if (!c.error.empty())
    return {{"name", c.name}, {"path", c.path}, {"valid", false}, {"error", c.error}, {"set_aside", aside}};
  const CheckpointInfo& i = c.manifest.info;
  const auto number = [](double v) { return std::isfinite(v) ? ordered_json(v) : ordered_json(nullptr); };
  return {{"name", c.name},
          {"path", c.path},
          {"valid", true},
          {"step", i.step},
          {"healthy", i.healthy},
          {"loss", number(i.loss)},
          {"grad_norm", number(i.grad_norm)},
          {"eval_loss", i.eval_loss ? number(*i.eval_loss) : ordered_json(nullptr)},
          {"best", best},
          {"consumed_samples", i.consumed_samples},
          {"consumed_tokens", i.consumed_tokens},
          {"data_cursor", i.data_cursor},
          {"written_by", i.written_by},
          {"bytes", c.manifest.bytes()},
          {"files", c.manifest.files.size()},
          {"tensors", c.manifest.tensors.size()},
          {"pinned", c.pinned},
          {"set_aside", aside}};
}

void print_json(ordered_json checkpoints, ordered_json aside) {
  const ordered_json all{
      {"schema", 1}, {"checkpoints", std::move(checkpoints)}, {"set_aside", std::move(aside)}};
  std::printf("%s\n", all.dump(1, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

/// Text of the last column of the list.
std::string state_of(const Candidate& c, bool best) {
  std::string state = !c.error.empty()          ? "not usable: " + c.error
                      : c.manifest.info.healthy ? std::string("committed")
                                                : std::string("committed, not healthy");
  if (c.aside != Aside::none) state = "set aside; " + state;
  if (c.pinned) state += ", kept";
  if (best) state += fmt::format(", best: held-out loss {:.4f}", *c.manifest.info.eval_loss);
  if (!c.note.empty()) state += "; " + c.note;
  return state;
}

void list(const CheckpointQuery& o) {
  const Found found = find(o.folder);
  const Candidate* best = best_checkpoint(found.checkpoints);
  if (o.json) {
    ordered_json all = ordered_json::array(), aside = ordered_json::array();
    for (const Candidate& c : found.checkpoints) all.push_back(summary(c, &c == best));
    for (const Candidate& c : found.aside) aside.push_back(summary(c));
    return print_json(all, aside);
  }
  size_t width = 14;
  for (const auto* group : {&found.checkpoints, &found.aside})
    for (const Candidate& c : *group) width = std::max(width, c.name.size());
  const int w = static_cast<int>(width);
  std::printf("%-*s %10s %6s %10s %10s %10s  %s\n", w, "name", "step", "files", "size", "loss", "grad norm",
              "state");
  for (const auto* group : {&found.checkpoints, &found.aside})
    for (const Candidate& c : *group) {
      const std::string state = state_of(c, &c == best);
      if (!c.error.empty()) {
        std::printf("%-*s %10s %6s %10s %10s %10s  %s\n", w, c.name.c_str(), "-", "-", "-", "-", "-",
                    state.c_str());
        continue;
      }
      const CheckpointInfo& i = c.manifest.info;
      std::printf("%-*s %10lld %6zu %10s %10.4f %10.4f  %s\n", w, c.name.c_str(),
                  static_cast<long long>(i.step), c.manifest.files.size(),
                  bytes_text(c.manifest.bytes()).c_str(), i.loss, i.grad_norm, state.c_str());
    }
}

/// Verifies every byte of one checkpoint, and that its sparse weights are sparse. Prints a line and
/// returns the JSON.
ordered_json verify_one(Candidate& c, bool json) {
  for (int i = 0; c.error.empty() && i < static_cast<int>(c.manifest.files.size()); ++i) try {
      verify_file(c.path, c.manifest, i);
    } catch (const Error& e) {
      c.error = e.what();
    }
  SparseCheck sparse;
  if (c.error.empty()) try {
      sparse = check_sparse(c.path);
    } catch (const Error& e) {
      c.error = e.what();
    }
  ordered_json line = summary(c);
  if (sparse.matrices > 0) line["sparse_matrices"] = sparse.matrices;
  if (!json)
    std::printf("%s: %s%s\n", c.path.c_str(), c.aside == Aside::none ? "" : "set aside; ",
                c.error.empty()
                    ? fmt::format("whole: {} files, {}, every hash agrees{}", c.manifest.files.size(),
                                  bytes_text(c.manifest.bytes()),
                                  sparse.matrices > 0 ? fmt::format(", {} matrices are {} sparse",
                                                                    sparse.matrices, sparse.pattern)
                                                      : "")
                          .c_str()
                    : c.error.c_str());
  return line;
}

void verify(const CheckpointQuery& o) {
  ordered_json all = ordered_json::array(), aside = ordered_json::array();
  int bad = 0;
  Found found = find(o.folder);
  for (Candidate& c : found.checkpoints) {
    all.push_back(verify_one(c, o.json));
    bad += !c.error.empty();
  }
  for (Candidate& c : found.aside) {
    aside.push_back(verify_one(c, o.json));
    // A checkpoint set aside as damaged is already known.
    bad += !c.error.empty() && c.aside != Aside::damaged && c.aside != Aside::uncommitted;
  }
  if (o.json) print_json(all, aside);
  if (bad > 0)
    fail(ExitCode::storage, "{}: {} of {} checkpoints are not whole", o.folder, bad,
         all.size() + aside.size());
}

void show(const CheckpointQuery& o) {
  const Found found = find(o.folder);
  if (found.checkpoints.empty())
    fail(ExitCode::storage, "{}: all checkpoints are set aside, such as {}: name one of them", o.folder,
         found.aside.front().path);
  const Candidate& c = found.checkpoints.front();
  if (!c.error.empty()) throw Error(ExitCode::storage, c.error);
  const CheckpointInfo& i = c.manifest.info;
  if (o.json) {
    ordered_json out = summary(c);
    out["seed"] = i.seed;
    if (i.data) out["data"] = ordered_json::parse(data_identity_to_json(*i.data));
    for (const auto& [key, value] : i.model) out["model"][key] = value;
    out["recipe"] = i.recipe;
    for (const auto& [name, t] : c.manifest.tensors) {
      ordered_json shape = ordered_json::array();
      for (int d = 0; d < t.shape.rank; ++d) shape.push_back(t.shape[d]);
      out["tensor_list"].push_back(
          {{"name", name}, {"dtype", dtype_name(t.dtype)}, {"shape", shape}, {"pieces", t.pieces.size()}});
    }
    std::printf("%s\n", out.dump(1).c_str());
    return;
  }
  std::printf("%s\nstep %lld, next sample %lld, %lld tokens, seed %lld, loss %.6f, grad norm %.6f%s\n",
              c.path.c_str(), static_cast<long long>(i.step), static_cast<long long>(i.data_cursor),
              static_cast<long long>(i.consumed_tokens), static_cast<long long>(i.seed), i.loss, i.grad_norm,
              i.healthy ? "" : ", NOT HEALTHY");
  if (i.eval_loss) std::printf("held-out loss %.6f\n", *i.eval_loss);
  std::printf("%zu files, %s, %zu tensors\n\ndata\n", c.manifest.files.size(),
              bytes_text(c.manifest.bytes()).c_str(), c.manifest.tensors.size());
  if (!i.data) std::printf("  not recorded: the checkpoint is of format version 1\n");
  if (i.data) {
    for (const data::SourceIdentity& s : i.data->sources)
      std::printf("  %s: %lld tokens, %lld documents, weight %g, content %s\n", printable(s.path).c_str(),
                  static_cast<long long>(s.tokens), static_cast<long long>(s.documents), s.weight,
                  s.content.c_str());
    const data::TokenizerIdentity& t = i.data->tokenizer;
    std::printf("  tokenizer %s%s, sequences of %lld tokens\n", printable(t.kind).c_str(),
                t.hash.empty() ? "" : fmt::format(" (hash {})", printable(t.hash)).c_str(),
                static_cast<long long>(i.data->seq_length));
  }
  std::printf("\nmodel\n");
  for (const auto& [key, value] : i.model) std::printf("  %-28s %s\n", key.c_str(), value.c_str());
  if (!o.tensors) return;
  std::printf("\ntensors\n");
  for (const auto& [name, t] : c.manifest.tensors)
    std::printf("  %-64s %-5s %-18s %zu pieces\n", name.c_str(), std::string(dtype_name(t.dtype)).c_str(),
                to_string(t.shape).c_str(), t.pieces.size());
}

/// A command that writes one checkpoint from another. Rewrite: its options in runtime/weights.
template <class Rewrite>
struct RewriteCommand {
  static constexpr const char* kWeightsAlone = "; weights alone, without the optimizer's states";
  Rewrite o;
  bool json = false, quiet = false;

  void add_paths(CLI::App& command) {
    command
        .add_option("checkpoint", o.checkpoint, "A checkpoint, a folder of them, or the output_dir of a run")
        ->required();
    command.add_option("made", o.made, "The checkpoint to make")->required();
  }
  void add_output_flags(CLI::App& command) {
    command.add_flag("--json", json, "For programs");
    command.add_flag("-q,--quiet", quiet, "No progress");
  }
  /// Calls `rewrite` with these options, and shows its progress.
  auto with_progress(auto rewrite) {
    ProgressLine line(quiet);
    o.progress = [&](int64_t done, int64_t all) { line.update(done, all); };
    return rewrite(o);
  }
};

struct ResizeCommand : RewriteCommand<ResizeVocabOptions> {
  std::string rows = "mean";

  void run() {
    o.rows = enum_value<NewRows>(rows).value();
    const ResizeVocabReport r = with_progress(resize_vocab);
    if (json) {
      std::printf("%s\n", ordered_json{{"schema", "ltrain.resize-vocab.v1"},
                                       {"checkpoint", r.checkpoint},
                                       {"step", r.step},
                                       {"vocab_size_before", r.before},
                                       {"vocab_size", r.after},
                                       {"tensors", r.tensors},
                                       {"states_left_out", r.states_left_out},
                                       {"notes", r.notes}}
                              .dump()
                              .c_str());
      return;
    }
    print_notes(r.notes);
    std::printf("%s: %lld rows for tokens where %s, step %lld, has %lld, in %s%s\n", r.checkpoint.c_str(),
                static_cast<long long>(r.after), o.checkpoint.c_str(), static_cast<long long>(r.step),
                static_cast<long long>(r.before), fmt::format("{}", fmt::join(r.tensors, " and ")).c_str(),
                r.states_left_out > 0 ? kWeightsAlone : "");
  }
};

void add_resize_vocab(CLI::App& checkpoint) {
  auto c = std::make_shared<ResizeCommand>();
  CLI::App* s = checkpoint.add_subcommand(
      "resize-vocab", "Write the weights of a checkpoint with rows for more or fewer tokens");
  c->add_paths(*s);
  s->add_option("--vocab-size", c->o.vocab_size, "Rows that the result has, one for each token")
      ->required()
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  s->add_option(
       "--rows", c->rows,
       "What new rows begin with. mean: the mean of the old ones. normal: what a new model of the same "
       "seed has there. zero")
      ->check(CLI::IsMember({"mean", "normal", "zero"}))
      ->capture_default_str();
  s->add_flag("--force", c->o.force, "Lose rows that tokens of the run's data may have");
  c->add_output_flags(*s);
  s->footer(
      "Example: ltrain checkpoint resize-vocab runs/quickstart larger --vocab-size 320\n"
      "A run begins with the result by checkpoint.load.path: larger and model.vocab_size: 320.");
  s->callback([c] { c->run(); });
}

/// CheckpointQuery of a command that runs a model on sequences of training data.
struct Measurement {
  std::string precision = "fp32";
  std::vector<std::string> data;
  int64_t samples = 0;
  DeviceChoice device = DeviceChoice::automatic;
  std::vector<CLI::Option*> options;  ///< options that need --samples

  void add_options(CLI::App& command, const std::string& help) {
    command.add_option("--samples", samples, help)->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
    CLI::Option* of_data = command.add_option(
        "--data", data, "PREFIX of PREFIX.bin and PREFIX.idx for --samples; default: the run's data.train");
    CLI::Option* of_precision = command.add_option("--precision", precision, "Type of the activations")
                                    ->check(CLI::IsMember({"fp32", "fp64"}))
                                    ->capture_default_str();
    add_device(command, device);
    options = {of_data, of_precision, command.get_option("--device")};
  }

  /// Refuses options that nothing would read without --samples.
  void check() const {
    for (const CLI::Option* option : options)
      if (samples == 0 && option->count() > 0)
        fail(ExitCode::usage,
             "{}: is for measurements by --samples; leave it out, or measure with --samples 128",
             option->get_name());
  }

  /// Runs the model of a checkpoint on sequences of --data, or of the run's training data.
  template <class Result>
  Result run(const std::string& checkpoint,
             Result (*measure)(TrainProgram&, const data::LoaderOptions&)) const {
    constexpr int64_t kAtOnce = 4;
    Session session({.where = checkpoint, .micro_batch = kAtOnce, .device = device, .precision = precision});
    print_notes(session.notes());
    const Recipe& recipe = session.recipe();
    data::LoaderOptions l;
    for (const std::string& path : data) l.sources.push_back({path});
    if (data.empty())
      for (const DataSource& s : recipe.data.train) l.sources.push_back({s.path, s.weight, s.files});
    l.seq_length = recipe.data.seq_length;
    l.micro_batch = l.global_batch = kAtOnce;
    l.vocab_size = recipe.model.vocab_size;
    l.packing = packing(recipe);
    if (l.packing.on()) l.packing.eod = session.end_of_document();
    l.eval = true;
    l.eval_samples = samples;
    return measure(session.program(), l);
  }
};

struct PruneCommand : RewriteCommand<PruneOptions> {
  std::string layers;
  Measurement by;

  void check_options() const {
    const auto refuse = [](const char* why) { fail(ExitCode::usage, "{}", why); };
    if (!layers.empty() && o.layers_keep > 0) refuse("set only one of --layers and --layers-keep");
    if (by.samples > 0 && o.layers_keep == 0 && o.intermediate_size == 0)
      refuse("--samples: is for --layers-keep and --intermediate-size; add one of them");
    if (by.samples == 0 && o.layers_keep > 0)
      refuse("--layers-keep: chooses by activations; add --samples 128");
    by.check();
  }

  void run() {
    check_options();
    if (!layers.empty()) o.layers = parse_layers(layers, "--layers");
    if (by.samples > 0)
      o.measure = [this](const std::string& checkpoint) { return by.run(checkpoint, activation_importance); };
    const PruneReport r = with_progress(prune_checkpoint);
    if (json) {
      std::printf("%s\n", ordered_json{{"schema", "ltrain.prune.v1"},
                                       {"checkpoint", r.checkpoint},
                                       {"step", r.step},
                                       {"parameters_before", r.parameters_before},
                                       {"parameters", r.parameters},
                                       {"dropped_layers", r.dropped_layers},
                                       {"kept_neurons", r.kept_neurons},
                                       {"importance", importance_json(r)},
                                       {"settings", r.settings},
                                       {"states_left_out", r.states_left_out},
                                       {"notes", r.notes}}
                              .dump()
                              .c_str());
      return;
    }
    print_notes(r.notes);
    if (o.layers_keep > 0)
      std::printf("dropped layers: %s\n", fmt::format("{}", fmt::join(r.dropped_layers, ", ")).c_str());
    std::printf("%s: %lld parameters where %s, step %lld, has %lld%s\n", r.checkpoint.c_str(),
                static_cast<long long>(r.parameters), o.checkpoint.c_str(), static_cast<long long>(r.step),
                static_cast<long long>(r.parameters_before), r.states_left_out > 0 ? kWeightsAlone : "");
    std::printf("a run begins with it by: checkpoint.load.path=%s %s\n", r.checkpoint.c_str(),
                fmt::format("{}", fmt::join(r.settings, " ")).c_str());
  }

  static ordered_json importance_json(const PruneReport& r) {
    if (!r.importance) return nullptr;
    return {{"layers", r.importance->layers}, {"neurons", r.importance->neurons}};
  }
};

void add_prune(CLI::App& checkpoint) {
  auto c = std::make_shared<PruneCommand>();
  CLI::App* s = checkpoint.add_subcommand(
      "prune", "Write the weights of a dense model with fewer layers, or narrower feed-forwards");
  c->add_paths(*s);
  s->add_option("--layers", c->layers, "Layers that stay, from 0, ascending: 0-3,6; default: all");
  s->add_option("--layers-keep", c->o.layers_keep,
                "Number of layers that stay, those that change their input most; needs --samples")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  c->by.add_options(
      *s,
      "Sequences of training data by whose activations neurons and layers are chosen; default: none, "
      "neurons are chosen by their weights");
  s->add_option(
       "--intermediate-size", c->o.intermediate_size,
       "Neurons of each feed-forward that stay, those with the largest weights or activations; default: "
       "all")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  c->add_output_flags(*s);
  s->footer(
      "Example: ltrain checkpoint prune runs/quickstart smaller --layers-keep 3 --intermediate-size 256 "
      "--samples 128\n"
      "A run begins with the result by checkpoint.load.path: smaller and the settings that this prints.");
  s->callback([c] { c->run(); });
}

constexpr int32_t kMostExperts = 65536;

/// Choices of each expert in a record of `ltrain eval --routing`, by layer.
ExpertUse expert_use(const std::string& path) {
  ExpertUse use;
  for (const auto& [place, sample] : read_routing(path)) {
    std::vector<double>& of_layer = use[std::get<2>(place)];
    for (const int32_t e : sample.experts) {
      if (e < 0) continue;  // top_p: the token has fewer
      if (e >= kMostExperts)
        fail(ExitCode::data, "{}: expert {}: expected numbers below {}", path, e, kMostExperts);
      if (static_cast<size_t>(e) >= of_layer.size()) of_layer.resize(static_cast<size_t>(e) + 1);
      ++of_layer[static_cast<size_t>(e)];
    }
  }
  return use;
}

struct ExpertsCommand : RewriteCommand<EditExpertsOptions> {
  std::string routing;
  Measurement by;  ///< prune

  void run() {
    if (o.edit == ExpertEdit::prune && routing.empty() == (by.samples == 0))
      fail(ExitCode::usage, "experts prune: expected one of --routing and --samples, got {}",
           routing.empty() ? "neither" : "both");
    by.check();
    if (!routing.empty()) o.use = expert_use(routing);
    if (by.samples > 0)
      o.measure = [this](const std::string& checkpoint) { return by.run(checkpoint, expert_saliency); };
    const EditExpertsReport r = with_progress(edit_experts);
    if (json) {
      ordered_json origins = ordered_json::object();
      for (const auto& [layer, experts] : r.origins) origins[std::to_string(layer)] = experts;
      std::printf("%s\n", ordered_json{{"schema", "ltrain.experts.v1"},
                                       {"checkpoint", r.checkpoint},
                                       {"step", r.step},
                                       {"parameters_before", r.parameters_before},
                                       {"parameters", r.parameters},
                                       {"origins", origins},
                                       {by.samples > 0 ? "kept_saliency" : "kept_choices", r.kept_use},
                                       {"settings", r.settings},
                                       {"states_left_out", r.states_left_out},
                                       {"notes", r.notes}}
                              .dump()
                              .c_str());
      return;
    }
    print_notes(r.notes);
    std::printf("%s: %lld parameters where %s, step %lld, has %lld%s\n", r.checkpoint.c_str(),
                static_cast<long long>(r.parameters), o.checkpoint.c_str(), static_cast<long long>(r.step),
                static_cast<long long>(r.parameters_before), r.states_left_out > 0 ? kWeightsAlone : "");
    if (o.edit != ExpertEdit::add)
      std::printf(
          "experts that stay had %.1f %% of the %s\n", 100 * r.kept_use,
          (by.samples > 0 ? fmt::format("saliency on {} sequences", by.samples) : "choices in " + routing)
              .c_str());
    std::printf("a run begins with it by: checkpoint.load.path=%s %s\n", r.checkpoint.c_str(),
                fmt::format("{}", fmt::join(r.settings, " ")).c_str());
  }
};

void add_experts(CLI::App& checkpoint) {
  CLI::App* experts = checkpoint.add_subcommand(
      "experts", "Write the weights of a model with fewer experts, or with copies of them");
  experts->require_subcommand(1);
  const auto add = [&](ExpertEdit edit, const char* help, const char* example) {
    auto c = std::make_shared<ExpertsCommand>();
    c->o.edit = edit;
    CLI::App* s = experts->add_subcommand(std::string(to_string(edit)), help);
    c->add_paths(*s);
    if (edit == ExpertEdit::add) {
      s->add_option("--copies", c->o.copies, "Copies of each expert, itself included")
          ->check(CLI::Range(int64_t{2}, int64_t{64}))
          ->capture_default_str();
      s->add_option(
           "--reinit", c->o.reinit,
           "Share of the neurons of each copy but the first that are drawn anew, so that copies differ")
          ->check(CLI::Range(0.0, 1.0))
          ->capture_default_str();
      s->add_option("--seed", c->o.seed, "Seed of what is drawn")->capture_default_str();
    } else {
      s->add_option("--keep", c->o.experts, "Experts of each layer that stay, those of most use")
          ->required()
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
      CLI::Option* record =
          s->add_option("--routing", c->routing,
                        "Choices on held-out data, a file of `ltrain eval --routing`: use is their number");
      if (edit == ExpertEdit::merge)
        record->required();
      else
        c->by.add_options(
            *s,
            "Sequences of training data: use is the mean of an expert's weight times the norm of its "
            "output over the tokens that chose it (REAP)");
    }
    c->add_output_flags(*s);
    s->footer(example);
    s->callback([c] { c->run(); });
  };
  add(ExpertEdit::prune, "Leave out the experts of least use",
      "Example: ltrain checkpoint experts prune runs/moe fewer --keep 4 --samples 64");
  add(ExpertEdit::merge, "Merge experts into the most similar one of those that tokens choose most",
      "Example: ltrain checkpoint experts merge runs/moe merged --keep 4 --routing routing.jsonl");
  add(ExpertEdit::add, "Copy every expert, and choose as many copies: the same function, to train on",
      "Example: ltrain checkpoint experts add runs/moe copied --copies 2");
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint",
      "List checkpoints, check them, look into one, resize a vocabulary, prune, change experts");
  checkpoint->require_subcommand(1);
  static CheckpointQuery options;
  const auto add = [&](const char* name, const char* help, void (*run)(const CheckpointQuery&)) {
    CLI::App* command = checkpoint->add_subcommand(name, help);
    command
        ->add_option("folder", options.folder, "A checkpoint, a folder of them, or the output_dir of a run")
        ->required();
    command->add_flag("--json", options.json, "As JSON");
    command->footer(fmt::format("Example: ltrain checkpoint {} runs/quickstart", name));
    command->callback([run] { run(options); });
    return command;
  };
  add("list", "Newest first; what cannot be used and why", list);
  add("verify",
      "Read every byte, compare the hashes, look at what is to be sparse; exit code 73 when one differs",
      verify);
  add("show", "State, model and tensors of one (of a folder: the newest)", show)
      ->add_flag("--tensors", options.tensors, "List the tensors too");
  add_resize_vocab(*checkpoint);
  add_prune(*checkpoint);
  add_experts(*checkpoint);
}

}  // namespace ltrain::app
