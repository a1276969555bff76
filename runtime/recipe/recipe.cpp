#include "runtime/recipe/recipe.h"

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "kernels/tensor/device.h"
#include "parallel/nccl/library.h"
#include "runtime/recipe/raw_values.h"
#include "runtime/recipe/read_file.h"
#include "runtime/recipe/rules/dispatch_rules.h"
#include "runtime/recipe/rules/rules.h"
#include "runtime/recipe/schema/schema.h"
#include "runtime/recipe/suggestions.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain {

using namespace recipe;

namespace {

constexpr size_t kLongestNote = 4000;  // bytes

const RecipeOrigins& origins_of(const Recipe& r) {
  static const RecipeOrigins none{"recipe", {}, {}};
  return r.origins ? *r.origins : none;
}

/// Returns whether `problem` of `before` is fixed in `left`, and `left` has no new problems.
bool is_better(const Diagnostics& before, const Diagnostic& problem, const Diagnostics& left) {
  std::multiset<std::string> known;
  for (const Diagnostic& p : before.list()) known.insert(p.path);
  for (const Diagnostic& p : left.list()) {
    if (p.path == problem.path) return false;
    // Rules over several keys were not checked before, so their errors are not caused by the change.
    if (problem.of_value && before.list().size() > 1) continue;
    const auto it = known.find(p.path);
    if (it == known.end()) return false;
    known.erase(it);
  }
  return true;
}

/// Number of ranks; 0: unknown.
struct World {
  int64_t ranks = 0, per_node = 0;
};

/// Builds a recipe from raw values. Checks single values, then rules over several keys, then rules that need
/// the number of ranks. Each check runs only if the previous one found no error.
Recipe make(const std::shared_ptr<const RawValues>& given, const std::string& name, World world,
            Diagnostics& diagnostics) {
  Recipe r;
  auto origins = std::make_shared<RecipeOrigins>();
  origins->source = name;
  origins->values = given;
  for (const Key& key : schema()) {
    auto it = given->values.find(key.path);
    if (it == given->values.end()) continue;
    const RawValue& v = it->second;
    origins->given[key.path] = v.place;
    const ValueError wrong = key.set(key, r, v.value);
    if (!wrong.empty())
      diagnostics.add({wrong.place.source.empty() ? v.place : wrong.place,
                       fmt::format("{} = {}: ", v.written_as, show(v.value)), wrong.text, key.path, true});
  }
  r.origins = origins;
  if (!diagnostics.empty()) return r;
  for (const Key& key : schema())
    if (key.imply && !origins->has(key.path)) key.imply(r);
  r.model.scores_texts = r.task == Task::reward;
  r.notes = given->notes;
  check_rules(r, *origins, diagnostics, r.notes);
  for (std::string& note : r.notes) note = printable(note, kLongestNote);
  if (diagnostics.empty() && world.ranks > 0)
    check_layout(r, *origins, world.ranks, world.per_node, diagnostics);
  return r;
}

/// Throws if there are errors. Keeps only the suggestions that the whole recipe accepts.
void raise(Diagnostics& diagnostics, const Recipe& r, World world) {
  if (diagnostics.empty()) return;
  const RecipeOrigins& origins = origins_of(r);
  if (origins.values)
    keep_accepted(diagnostics, r, [&](const Diagnostic& problem, const Suggestion& suggestion) {
      auto changed = std::make_shared<RawValues>(*origins.values);
      Diagnostics left;
      for (const auto& [path, value] : suggestion.changes) add_override(path + "=" + value, *changed, left);
      if (left.empty()) make(changed, origins.source, world, left);
      return is_better(diagnostics, problem, left);
    });
  diagnostics.raise_if_any(origins.source);
}

}  // namespace

namespace {

/// Sets data.tokenizer from the model folder if the recipe has no tokenizer.
void add_tokenizer_of_folder(const std::string& folder, const RawValue& from, RawValues& given) {
  std::error_code error;
  if (given.values.count("data.tokenizer.kind") || given.values.count("data.tokenizer.path") ||
      (!std::filesystem::exists(folder + "/tokenizer.json", error) &&
       !std::filesystem::exists(folder + "/tokenizer.model", error) &&
       !std::filesystem::exists(folder + "/tekken.json", error)))
    return;
  RawValue value = from;
  value.written_as = "data.tokenizer.kind (of model.from)";
  value.value.text = data::file_tokenizer_kind().name;
  given.values.emplace("data.tokenizer.kind", value);
  value.written_as = "data.tokenizer.path (of model.from)";
  value.value.text = folder;
  given.values.emplace("data.tokenizer.path", value);
}

/// Reads model.from: a config.json, or a folder with a config.json, weights, and optionally a tokenizer.
void add_model_from(RawValues& given, Diagnostics& diagnostics) {
  const auto it = given.values.find("model.from");
  if (it == given.values.end() || it->second.value.kind != Node::scalar) return;
  const RawValue from = it->second;
  std::string path = from.value.text;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    if (!std::filesystem::exists(path + "/config.json", error))
      return diagnostics.add(
          from.place, fmt::format("model.from = {}: is a folder without a config.json", printable(path)));
    RawValue weights = from;
    weights.value.text = path;
    weights.written_as = "model.from";
    given.values.emplace("checkpoint.load.path", weights);
    add_tokenizer_of_folder(path, from, given);
    path += "/config.json";
  }
  add_hf_config(path, from.place, given, diagnostics);
}

}  // namespace

Recipe parse_recipe(std::string_view text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  RawValues given;
  Diagnostics diagnostics;
  add_document(parse_yaml(text, name), given, diagnostics);
  for (const std::string& argument : overrides) add_override(argument, given, diagnostics);
  interpolate(given, diagnostics);
  add_model_from(given, diagnostics);
  const auto values = std::make_shared<const RawValues>(std::move(given));
  Recipe r = make(values, name, {}, diagnostics);
  raise(diagnostics, r, {});
  return r;
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_recipe(read_recipe(path), path, overrides);
}

bool is_set_name(std::string_view name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !name.empty() && name.size() <= 64 && name.find_first_not_of(kLetters) == name.npos;
}

std::string read_recipe(const std::string& path) {
  std::string text;
  if (const std::string wrong = read_small_file(path, text); !wrong.empty())
    fail(ExitCode::usage, "{}: {}", printable(path), wrong);
  return text;
}

void validate(const Recipe& r, int world_size, int ranks_per_node) {
  Diagnostics diagnostics;
  check_layout(r, origins_of(r), world_size, ranks_per_node, diagnostics);
  raise(diagnostics, r, {world_size, ranks_per_node});
}

namespace {

/// Returns why `local_ranks` of `world` ranks cannot run on the GPUs of this machine; empty: they can.
std::string no_cuda_for(const Recipe& r, int world, int local_ranks) {
  if (const std::string missing = missing_for(DeviceKind::cuda); !missing.empty()) return missing;
  if (world > 1)
    if (const std::string missing = nccl::missing_library(); !missing.empty())
      return fmt::format("{} ranks on GPUs: {}", world, missing);
  if (r.debug.shared_gpu) return "";
  if (const int gpus = device_count(DeviceKind::cuda); gpus < local_ranks)
    return fmt::format(
        "{} ranks on this host and {} GPU{}: each rank has one of its own (or debug.shared_gpu: true, for "
        "tests)",
        local_ranks, gpus, gpus == 1 ? "" : "s");
  return "";
}

/// Checks the driver for captured steps with a pipeline. Newer drivers start captured kernels of several
/// communicators in call order. With an older driver NCCL serializes them, and two stages may wait for each
/// other.
void check_graph_driver(const Recipe& r) {
  constexpr int kFirstThatOrders = 12090;
  if (r.cuda_graphs != OverlapChoice::on || r.parallel.pipeline == 1 ||
      !missing_for(DeviceKind::cuda).empty())
    return;
  if (const int driver = driver_version(DeviceKind::cuda); driver < kFirstThatOrders)
    fail(ExitCode::usage,
         "{}: cuda_graphs = on: captured transfers of parallel.pipeline = {} need a driver for CUDA {}.{} or "
         "newer, and this one is for {}.{}; nearest valid value: off",
         origins_of(r).place("cuda_graphs").text(), r.parallel.pipeline, kFirstThatOrders / 1000,
         kFirstThatOrders % 1000 / 10, driver / 1000, driver % 1000 / 10);
}

}  // namespace

DeviceKind device_of(const Recipe& r) {
  LT_CHECK(r.device != DeviceChoice::automatic, "expected a resolved device, got auto");
  return r.device == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu;
}

void check_device(const Recipe& r, int local_ranks) {
  if (device_of(r) == DeviceKind::cpu) {
    if (r.cuda_graphs == OverlapChoice::on)
      fail(ExitCode::usage,
           "{}: cuda_graphs = on: device: auto takes the CPU here, which has no graphs: {}; nearest valid "
           "value: off",
           origins_of(r).place("cuda_graphs").text(), missing_for(DeviceKind::cuda));
    if (r.attention_backend == AttentionBackend::cudnn)
      fail(ExitCode::usage,
           "{}: attention_backend = cudnn: device: auto takes the CPU here, which has no cuDNN: {}; nearest "
           "valid value: auto",
           origins_of(r).place("attention_backend").text(), missing_for(DeviceKind::cuda));
    return;
  }
  check_graph_driver(r);
  const std::string why = no_cuda_for(r, static_cast<int>(ranks(r)), local_ranks);
  if (!why.empty())
    fail(ExitCode::usage, "{}: device = cuda: {}; nearest valid value: cpu",
         origins_of(r).place("device").text(), why);
  constexpr int kFirstWithFp8 = 89;
  const DeviceInfo card = computes_in(r, Precision::fp8) ? device_info(DeviceKind::cuda) : DeviceInfo();
  if (computes_in(r, Precision::fp8) && card.capability < kFirstWithFp8)
    fail(ExitCode::usage,
         "{}: precision = fp8: {} is of sm_{}, and eight bits begin with sm_{}; nearest valid value: bf16",
         origins_of(r).place("precision").text(), card.name, card.capability, kFirstWithFp8);
}

Recipe resolve(const Recipe& r, int world_size, int ranks_per_node) {
  validate(r, world_size, ranks_per_node);
  Recipe resolved = r;
  const Parallel& p = r.parallel;
  resolved.parallel.data = world_size / (p.tensor * p.pipeline * p.context);
  resolved.parallel.shard_ranks = shard_ranks(r, world_size, ranks_per_node);
  resolved.launch.ranks_on_host = ranks_on_host(r, world_size, ranks_per_node);
  resolved.parallel.intra_node_experts = intra_node_experts(
      r, resolved.parallel.data, resolved.parallel.shard_ranks, resolved.launch.ranks_on_host);
  if (r.device == DeviceChoice::automatic)
    resolved.device = no_cuda_for(r, world_size, static_cast<int>(resolved.launch.ranks_on_host)).empty()
                          ? DeviceChoice::cuda
                          : DeviceChoice::cpu;
  Diagnostics diagnostics;
  check_device_rules(resolved, origins_of(r), diagnostics);
  diagnostics.raise_if_any(origins_of(r).source);
  return resolved;
}

void check_vocabulary(const Recipe& r, const std::string& what, int64_t needed) {
  if (needed <= r.model.vocab_size) return;
  const RecipeOrigins& o = origins_of(r);
  fail(ExitCode::usage, "{}: model.vocab_size = {}: {} has token ids up to {}; nearest valid value: {}",
       o.place("model.vocab_size").text(), r.model.vocab_size, what, needed - 1, needed);
}

void check_data_given(const Recipe& r) {
  if (!r.data.train.empty()) return;
  const RecipeOrigins& o = origins_of(r);
  Diagnostics diagnostics;
  diagnostics.add(o.place("data.train"),
                  fmt::format("data.train = []{}: a run needs token files; give data.train: [{{path: "
                              "PREFIX}}], made by `ltrain data build`",
                              o.has("data.train") ? "" : " (default)"));
  diagnostics.raise_if_any(o.source);
}

int64_t ranks(const Recipe& r) {
  const Parallel& p = r.parallel;
  LT_CHECK(p.data > 0, "expected a resolved parallel.data, got {}", p.data);
  return p.data * p.tensor * p.pipeline * p.context;
}

static int64_t micro_batches_of_share(const Recipe& r, int64_t count) {
  LT_CHECK(r.parallel.data > 0, "expected a resolved parallel.data, got {}", r.parallel.data);
  return r.train.global_batch_size / recipe::batch_unit(r, r.parallel.data) * count;
}

int64_t micro_batches_per_step(const Recipe& r) {
  return micro_batches_of_share(r, r.diloco.largest_share());
}

int64_t micro_batches_of_site(const Recipe& r, int64_t site) {
  return micro_batches_of_share(r, r.diloco.share(site).count);
}

int64_t micro_batches_per_evaluation(const Recipe& r) {
  const int64_t at_once = r.train.micro_batch_size * r.parallel.data;
  return (r.train.eval_steps * r.train.global_batch_size + at_once - 1) / at_once;
}

int64_t global_batch_after(const Recipe& r, int64_t samples) {
  const BatchRamp& ramp = r.train.batch_ramp;
  const int64_t whole = r.train.global_batch_size;
  if (ramp.start == 0 || samples >= ramp.samples) return whole;
  const double levels = static_cast<double>((whole - ramp.start) / ramp.increment);
  const double level = levels * static_cast<double>(samples) / static_cast<double>(ramp.samples);
  return ramp.start + static_cast<int64_t>(level) * ramp.increment;
}

int64_t samples_before_step(const Recipe& r, int64_t step) {
  int64_t samples = 0, before = 0;
  for (; before + 1 < step && samples < r.train.batch_ramp.samples && r.train.batch_ramp.start > 0; ++before)
    samples += global_batch_after(r, samples);
  return samples + (step - 1 - before) * r.train.global_batch_size;
}

int64_t end_step(const Recipe& r) { return r.train.stop_step.value_or(r.train.train_steps); }

int64_t first_step(const Recipe& r, const DataStage& stage) {
  return stage.from_tokens > 0 ? steps_for_tokens(r, stage.from_tokens) + 1 : stage.from_step;
}

int64_t steps_for_tokens(const Recipe& r, int64_t tokens) {
  const BatchRamp& ramp = r.train.batch_ramp;
  const int64_t whole = r.train.global_batch_size;
  const auto parts = [](int64_t n, int64_t of) { return n / of + (n % of != 0); };
  const int64_t wanted = parts(tokens, r.data.seq_length);  // sequences
  int64_t steps = 0, samples = 0;
  // otherwise a rule reports an error
  const bool grows = ramp.start > 0 && ramp.start < whole && ramp.increment > 0;
  while (grows && samples < ramp.samples && samples < wanted) {
    const int64_t batch = global_batch_after(r, samples);
    int64_t next = samples + 1;  // sample at which the batch grows
    for (int64_t larger = ramp.samples; next < larger;) {
      const int64_t middle = next + (larger - next) / 2;
      (global_batch_after(r, middle) > batch ? larger : next) =
          global_batch_after(r, middle) > batch ? middle : middle + 1;
    }
    const int64_t here = parts(std::min(next, wanted) - samples, batch);
    steps += here;
    samples += here * batch;
  }
  return steps + (wanted > samples ? parts(wanted - samples, whole) : 0);
}

int64_t tokens_per_step(const Recipe& r) { return r.train.global_batch_size * r.data.seq_length; }

bool OptimizerKeys::uses(UpdateRule rule) const {
  if (kind == rule) return true;
  for (const ParameterGroup& g : groups)
    if (g.kind && *g.kind == rule) return true;
  return false;
}

}  // namespace ltrain
