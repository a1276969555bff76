#include "runtime/generate/session.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "kernels/meta/meta_memory.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/rng.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/program/recipe_program.h"
#include "runtime/program/take_device.h"
#include "runtime/tokenizer/tokenizer_kinds.h"
#include "runtime/weights/hf_folder.h"

namespace ltrain {

namespace {

/// The recipe changed to the layout of the options, checked by the rules of runs.
Recipe laid_out(Recipe r, const SessionOptions& options, int ranks_per_node) {
  const ModelLayout& l = options.layout;
  if (options.seq_length > 0) r.data.seq_length = options.seq_length;
  if (const Data* data = options.data) {
    r.data.seq_length = data->seq_length;
    r.data.packing = data->packing;
    r.data.reset_attention_mask = data->reset_attention_mask;
    r.data.reset_position_ids = data->reset_position_ids;
    r.data.eod_mask_loss = data->eod_mask_loss;
  }
  r.parallel = {};
  r.parallel.data = l.ranks() > 1 ? -1 : 1;
  r.device = options.device;
  r.cuda_graphs = OverlapChoice::off;  // applies to training only, like the next ones
  r.offload = {};
  r.distillation = {};
  r.diloco = {};
  r.preference.reference = PreferenceReference::precomputed;  // none stays in memory
  r.optimizer = {};
  r.recompute = {};
  // cuDNN would need a plan for each length, which takes seconds.
  r.attention_backend = AttentionBackend::own;
  if (l.ranks() > 1) {
    r.train.micro_batch_size = 1;
    r.train.global_batch_size = l.data;
    r.train.batch_ramp = {};
    r.launch = {};
    if (r.precision == Precision::fp8) r.precision = Precision::bf16;
    std::vector<std::string> layout{
        fmt::format("parallel.data={}", l.data), fmt::format("parallel.tensor={}", l.tensor),
        fmt::format("parallel.pipeline={}", l.pipeline), fmt::format("parallel.expert={}", l.expert)};
    if (l.pipeline > 1) layout.push_back("parallel.schedule=gpipe");
    r = parse_recipe(dump_yaml(r), "the model's recipe", layout);
    for (int64_t stage = 0; stage < l.pipeline && l.pipeline > 1; ++stage)
      r.parallel.pipeline_layers.push_back(r.model.num_hidden_layers / l.pipeline +
                                           (stage < r.model.num_hidden_layers % l.pipeline));
  }
  return resolve(r, static_cast<int>(l.ranks()), ranks_per_node);
}

}  // namespace

void check_layout(const SessionOptions& options) {
  Recipe recipe;
  if (is_hf_folder(options.where)) {
    recipe = hf_recipe(options.where, 0, options.from_ignore);
  } else {
    const GroupSet alone;
    const auto host_stream = make_inline_stream("checkpoint");
    std::vector<std::string> notes;  // dropped; the session has its own
    const auto reader = CheckpointReader::open_at(options.where, "the checkpoint", false,
                                                  alone.groups().world.communicator(), *host_stream, notes);
    recipe = parse_recipe(reader->info().recipe, reader->path() + " (recipe)");
    recipe.model.num_nextn_predict_layers = 0;
  }
  laid_out(std::move(recipe), options, static_cast<int>(options.layout.ranks()));
}

/// Opens the weights and reads their recipe.
std::unique_ptr<PieceReader> Session::open(const SessionOptions& options) {
  const std::string& where = options.where;
  if (is_hf_folder(where)) {
    if (options.average) fail(ExitCode::usage, "{}: has no average of weights beside them", where);
    path_ = where;
    recipe_ = hf_recipe(where, 0, options.from_ignore);
    notes_ = recipe_.notes;
    return hf_weights(open_hf_folder(where, "the model"), recipe_.model, notes_);
  }
  if (!path_exists(where)) fail(ExitCode::storage, "{}: there is no such checkpoint or run folder", where);
  if (!options.from_ignore.empty())
    fail(ExitCode::usage, "--from-ignore {}: {} is no Hugging Face folder, and has no config.json",
         options.from_ignore[0], where);
  const auto host_stream = make_inline_stream("checkpoint");
  if (job_) {
    std::vector<int> all(static_cast<size_t>(job_->info().world_size));
    std::iota(all.begin(), all.end(), 0);
    control_ = job_->new_control_group("checkpoint", kAllAxes, all);
  }
  Communicator& control = job_ ? *control_ : alone_.groups().world.communicator();
  auto reader = CheckpointReader::open_at(where, "the checkpoint", true, control, *host_stream, notes_);
  path_ = reader->path();
  step_ = reader->info().step;
  if (reader->info().data) {
    trained_tokenizer_ = reader->info().data->tokenizer;
    trained_on_data_ = true;
  }
  recipe_ = parse_recipe(reader->info().recipe, path_ + " (recipe)");
  if (recipe_.model.scores_texts)
    fail(ExitCode::usage,
         "{}: is a reward model, which has a score instead of logits; ltrain export makes a folder that "
         "transformers' AutoModelForSequenceClassification reads",
         path_);
  recipe_.model.num_nextn_predict_layers = 0;  // not used for generation
  return reader;
}

ProgramOptions Session::inference_options(const SessionOptions& options) const {
  PipelineLayout stages;
  if (recipe_.parallel.pipeline > 1) {
    const int ranks = static_cast<int>(recipe_.parallel.pipeline);
    stages.schedule = pipeline::make_schedule("gpipe", ranks, 1, 1);
    for (const int64_t layers : recipe_.parallel.pipeline_layers)
      stages.stage_layers.push_back(static_cast<int>(layers));
  }
  ProgramOptions p = program_options(recipe_, stages);
  p.for_training = false;
  p.preference.reset();  // evaluation of a model is of its tokens
  p.ema_decay = 0;
  p.sharding = {};
  p.micro_batch = std::max<int64_t>(1, options.micro_batch);
  p.accumulation = 1;
  p.choices = options.choices ? ProgramOptions::Choices::record : ProgramOptions::Choices::none;
  p.probe_samples = 0;
  p.fp8.reset();
  if (p.products == MatmulPrecision::fp8) p.products = MatmulPrecision::plain;
  if (recipe_.quantization.on() && !options.precision.empty() && options.precision != "fp32")
    fail(ExitCode::usage,
         "--precision {}: weights of {} are {}, and are made from those of fp32; leave --precision out",
         options.precision, path_, recipe_.quantization.weights);
  p.optimizer.quantization.type = p.precision.compute;
  if (!options.precision.empty()) {
    p.precision = precision_policy(options.precision);
    p.precision.master = p.precision.compute;
    p.products = MatmulPrecision::plain;
  }
  // Checkpoints hold the fp32 weights.
  if (p.precision.has_master()) p.precision = precision_policy("fp32");
  return p;
}

void Session::make_groups(DeviceKind device, const ProgramOptions& options) {
  if (!job_) {
    groups_ = std::make_unique<GroupSet>();
    return;
  }
  GroupSet::Options g = group_options(options);
  g.together = device != DeviceKind::cpu;
  const MakeGroup make = [&](const GroupRequest& r) {
    return g.together ? job_->new_gpu_group(r.name, r.axes, r.ranks, r.messages)
                      : job_->new_group(r.name, r.axes, r.ranks);
  };
  groups_ = std::make_unique<GroupSet>(
      mesh_of(recipe_, job_->info().rank), make,
      [&](const std::string& name) { return make_side_stream(device, name); }, g);
}

Session::Session(const SessionOptions& options) : job_(options.job) {
  LT_CHECK((job_ != nullptr) == (options.layout.ranks() > 1),
           "expected a job exactly for several ranks, got {} ranks {} a job", options.layout.ranks(),
           job_ ? "with" : "without");
  if (job_) job_->section("opening the model");
  const auto reader = open(options);
  if (!options.tokenizer.empty()) {
    if (const data::TokenizerKind& kind = *recipe_.data.tokenizer.kind; !kind.takes_file())
      fail(ExitCode::usage, "--tokenizer {}: the tokenizer of {} is {}, which takes no file",
           options.tokenizer, path_, kind.name);
    recipe_.data.tokenizer.path = options.tokenizer;
  }
  reader->take_any_float();
  recipe_ = laid_out(std::move(recipe_), options, job_ ? job_->info().local_size : 0);
  check_device(recipe_, job_ ? job_->info().local_size : 1);
  const DeviceKind device = device_of(recipe_);
  take_device(device, job_ ? job_->info().local_rank : 0);
  compute_ = make_compute_stream(device, "compute");
  if (const MoeConfig& moe = recipe_.model.moe;
      options.choices && (moe.num_experts == 0 || moe.selection == Selection::expert_choice))
    fail(ExitCode::usage, "{}: expected a model whose tokens choose experts, to record their choices, got {}",
         path_, moe.num_experts == 0 ? "a model without experts" : "one whose experts choose tokens");
  ProgramOptions p = inference_options(options);
  if (options.text_length) p.seq_length = options.text_length(*this);
  make_groups(device, p);

  int64_t bytes = 0, host_bytes = 0;
  {
    MetaTrace trace;
    auto compute = make_meta_stream("compute", trace);
    const GroupSet groups = make_meta_groups(groups_->groups().mesh, trace, group_options(p));
    MetaMemory memory(trace), host(trace);
    TrainProgram program(p, {*compute, memory, groups.groups(), device == DeviceKind::cpu ? nullptr : &host});
    std::vector<KeyValueCache> caches;
    for (int64_t i = 0; i < options.texts; ++i) caches.push_back(program.make_cache());
    std::vector<TextTokens> texts;  // all texts at once, because each has logits
    for (KeyValueCache& cache : caches) texts.push_back({&cache, {}});
    if (!texts.empty()) program.extend(texts);
    if (options.scores) {
      caches.at(0).length = 0;
      program.score(caches[0], {}, {});
    }
    if (options.micro_batch > 0) program.evaluate(nullptr);
    bytes = memory.peak().arena_bytes;
    host_bytes = host.peak().arena_bytes;
  }
  arena_ = std::make_unique<Arena>(device, bytes);
  if (device != DeviceKind::cpu) host_ = Arena::staging(device, host_bytes);
  program_ = std::make_unique<TrainProgram>(
      p, Device{.compute = *compute_, .memory = *arena_, .groups = groups_->groups(), .host = host_.get()});
  for (int64_t i = 0; i < options.texts; ++i) caches_.push_back(program_->make_cache());
  program_->parameters().clear();
  load_parameters(*reader, program_->parameters(), options.average);
  if (job_) job_->section("texts");
}

Session::~Session() = default;

data::Tokenizer& Session::tokenizer() {
  if (!tokenizer_) {
    auto tokenizer = load_tokenizer(recipe_);
    if (const auto& t = trained_tokenizer_;
        t && !t->hash.empty() && (t->kind != tokenizer->name() || t->hash != tokenizer->hash()))
      fail(ExitCode::usage,
           "{}: is a {} tokenizer of hash {}, and {} was trained on tokens of {} (hash {}). Give that "
           "tokenizer's file or folder with --tokenizer",
           recipe_.data.tokenizer.path.value_or(tokenizer->name()), tokenizer->name(), tokenizer->hash(),
           path_, t->kind, t->hash);
    tokenizer_ = std::move(tokenizer);
  }
  return *tokenizer_;
}

std::optional<data::TokenizerIdentity> Session::trained_tokenizer() {
  if (trained_tokenizer_ || !is_hf_folder(path_) || !recipe_.data.tokenizer.kind->takes_file())
    return trained_tokenizer_;
  const data::Tokenizer& t = tokenizer();
  return data::TokenizerIdentity{
      .kind = t.name(), .hash = t.hash(), .vocab_size = t.vocab_size(), .eod = t.eot(), .bos = -1};
}

int64_t Session::end_of_document() {
  if (trained_tokenizer_ && trained_tokenizer_->eod >= 0) return trained_tokenizer_->eod;
  return recipe_.data.tokenizer.eod ? *recipe_.data.tokenizer.eod : tokenizer().eot();
}

std::vector<EndToken> Session::end_tokens() {
  std::vector<EndToken> all;
  if (const int64_t end = end_of_document(); end >= 0)
    all.push_back({static_cast<int32_t>(end), "the end of a document"});
  std::set<std::string> folders;
  if (is_hf_folder(path_)) folders.insert(path_);
  if (const auto& begun = recipe_.checkpoint.load_path; begun && is_hf_folder(*begun)) folders.insert(*begun);
  if (recipe_.data.tokenizer.kind->folder && recipe_.data.tokenizer.path) {
    const std::filesystem::path file(*recipe_.data.tokenizer.path), parent = file.parent_path();
    folders.insert(std::filesystem::is_directory(file) ? file.string()
                   : parent.empty()                    ? "."
                                                       : parent.string());
  }
  for (const std::string& folder : folders)
    for (EndToken& t : end_tokens_of_folder(folder, tokenizer()))
      if (std::none_of(all.begin(), all.end(), [&](const EndToken& a) { return a.id == t.id; }))
        all.push_back(std::move(t));
  return all;
}

std::vector<int32_t> Session::text_begin(TextBegin how) {
  if (how == TextBegin::none) return {};
  if (how == TextBegin::as_trained) {
    if (!trained_on_data_) return tokenizer().before_text();
    const int64_t bos = trained_tokenizer_->bos;
    return bos < 0 ? std::vector<int32_t>{} : std::vector<int32_t>{static_cast<int32_t>(bos)};
  }
  const int32_t token = tokenizer().bos();
  if (token < 0)
    fail(ExitCode::usage, "--bos yes: {} names no token that begins a text (bos_token)",
         recipe_.data.tokenizer.path ? "the tokenizer_config.json beside " + *recipe_.data.tokenizer.path
                                     : "tokenizer " + tokenizer().name());
  return {token};
}

int32_t sample_token(std::vector<float> logits, const SamplingOptions& o, uint64_t index) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isnan(logits[i]))
      fail(ExitCode::data,
           "the logit of token {} is not a number: the model's weights are not finite, or too large", i);
  const auto most = std::max_element(logits.begin(), logits.end());  // the first of equals
  if (o.temperature <= 0) return static_cast<int32_t>(most - logits.begin());
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - *most) / o.temperature); };
  // Most likely first, and the lower id first among equals. Sorted only as far as needed, which is rarely
  // far.
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  size_t sorted = 0;
  const auto ranked = [&](size_t i) {
    if (i >= sorted) {
      const size_t end = std::min(order.size(), std::max(i + 1, std::max<size_t>(32, 4 * sorted)));
      std::partial_sort(order.begin() + static_cast<int64_t>(sorted),
                        order.begin() + static_cast<int64_t>(end), order.end(), [&](int32_t a, int32_t b) {
                          return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                        });
      sorted = end;
    }
    return order[i];
  };
  const bool cut = o.top_k > 0 && o.top_k < static_cast<int64_t>(order.size());
  size_t kept = cut ? static_cast<size_t>(o.top_k) : order.size();
  if (cut) ranked(kept - 1);
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) sum += weight(order[i]);
  if (o.top_p < 1) {
    double reached = 0;
    for (size_t i = 0; i < kept; ++i) {
      reached += weight(ranked(i));
      if (reached >= o.top_p * sum) kept = i + 1;
    }
    sum = reached;
  }
  double u = to_uniform(philox(o.seed, hash_name("sample"), index).v[0]) * sum;
  for (size_t i = 0; i < kept; ++i) {
    u -= weight(ranked(i));
    if (u < 0) return ranked(i);
  }
  return ranked(kept - 1);
}

bool Session::generate(const std::vector<std::vector<int32_t>>& prompts, const SamplingOptions& o,
                       const std::function<bool(size_t, int32_t)>& emit) {
  const size_t context = static_cast<size_t>(program_->options().seq_length);
  struct Text {
    size_t prompt = 0;            // index of the prompt
    std::vector<int32_t> tokens;  // tokens that the model sees
    std::vector<int32_t> next;    // tokens that are not in the cache yet
    int64_t made = 0;
    KeyValueCache* cache = nullptr;
  };
  std::vector<Text> texts;
  std::vector<KeyValueCache*> unused;
  for (KeyValueCache& cache : caches_) unused.push_back(&cache);
  LT_CHECK(!unused.empty(), "expected SessionOptions::texts above 0 for generation, got 0");
  const bool begins = std::any_of(prompts.begin(), prompts.end(), [](const auto& p) { return p.empty(); });
  const int64_t end = begins ? end_of_document() : -1;
  std::set<int32_t> ends;
  if (o.stop_at_end)
    for (const EndToken& t : end_tokens()) ends.insert(t.id);
  // Do not sample rows of the embedding without a token.
  const size_t ids = static_cast<size_t>(std::min(tokenizer().vocab_size(), recipe_.model.vocab_size));
  for (size_t begun = 0; begun < prompts.size() || !texts.empty();) {
    if (job_ && program_->any_rank(static_cast<bool>(job_->stop_requested()))) return false;
    for (; begun < prompts.size() && !unused.empty(); ++begun) {
      Text t{.prompt = begun, .tokens = prompts[begun], .next = {}, .made = 0, .cache = unused.back()};
      unused.pop_back();
      if (t.tokens.empty()) {
        if (end < 0)
          fail(ExitCode::usage,
               "prompt: is empty, and neither data nor tokenizer of {} name a token that ends documents, "
               "after which one could begin; give --prompt",
               path_);
        t.tokens.push_back(static_cast<int32_t>(end));
      }
      for (const int32_t token : t.tokens)
        if (token < 0 || token >= recipe_.model.vocab_size)
          fail(ExitCode::usage, "prompt: token {} is outside the model's vocabulary of {}", token,
               recipe_.model.vocab_size);
      t.next = t.tokens;
      t.cache->clear();
      texts.push_back(std::move(t));
    }
    std::vector<TextTokens> rows;
    for (Text& t : texts) {
      const int64_t length = static_cast<int64_t>(t.tokens.size());
      const bool shifts = t.tokens.size() > context;
      if (shifts) {  // drop half of it, so that many tokens share the cost
        LT_CHECK(o.context_shift, "expected texts of at most {} tokens, got one of {}", context, length);
        t.tokens.erase(t.tokens.begin(), t.tokens.end() - static_cast<int64_t>(context / 2));
      }
      if (shifts || program_->must_reread(*t.cache, length)) {
        t.next = t.tokens;
        t.cache->clear();
      }
      rows.push_back({t.cache, t.next});
    }
    std::vector<std::vector<float>> logits = program_->extend(rows);
    for (size_t i = texts.size(); i-- > 0;) {
      Text& t = texts[i];
      const uint64_t index = static_cast<uint64_t>(t.prompt) << 32 | static_cast<uint64_t>(t.made);
      logits[i].resize(ids);
      const int32_t next = sample_token(std::move(logits[i]), o, index);
      if (ends.count(next) || !emit(t.prompt, next) || ++t.made == o.tokens) {
        unused.push_back(t.cache);
        texts.erase(texts.begin() + static_cast<int64_t>(i));
        continue;
      }
      t.tokens.push_back(next);
      t.next = {next};
    }
  }
  return true;
}

}  // namespace ltrain
