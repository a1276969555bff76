#include "runtime/generate/session.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/meta/meta_memory.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/rng.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/plan/plan.h"
#include "runtime/weights/hf_folder.h"

namespace ltrain {

/// The weights, and the recipe that they are of.
std::unique_ptr<PieceReader> Session::open(const SessionOptions& options) {
  const std::string& where = options.where;
  if (is_hf_folder(where)) {
    if (options.average) fail(ExitCode::usage, "{}: has no average of weights beside them", where);
    path_ = where;
    recipe_ = hf_recipe(where);
    std::vector<std::string> notes;
    return hf_weights(open_hf_folder(where, "the model"), recipe_.model, notes);
  }
  if (!path_exists(where)) fail(ExitCode::storage, "{}: there is no such checkpoint or run folder", where);
  const auto host_stream = make_inline_stream("checkpoint");
  ResumeOptions o;
  o.folder = o.resume = path_exists(where + "/checkpoints") ? where + "/checkpoints" : where;
  std::vector<std::string> notes;
  auto reader = CheckpointReader::open(o, groups_.groups().world.communicator(), *host_stream, notes);
  if (!reader) fail(ExitCode::storage, "{}: holds no checkpoint", where);
  path_ = reader->path();
  step_ = reader->info().step;
  if (reader->info().data) trained_tokenizer_ = reader->info().data->tokenizer;
  recipe_ = parse_recipe(reader->info().recipe, path_ + " (recipe)");
  return reader;
}

Session::Session(const SessionOptions& options) {
  const auto reader = open(options);
  if (!options.tokenizer.empty()) {
    if (recipe_.data.tokenizer.kind == TokenizerKind::byte)
      fail(ExitCode::usage, "--tokenizer {}: the tokenizer of {} is byte, which takes no file",
           options.tokenizer, path_);
    recipe_.data.tokenizer.path = options.tokenizer;
  }
  reader->take_any_float();
  if (options.seq_length > 0) recipe_.data.seq_length = options.seq_length;
  recipe_.parallel = Parallel{};
  recipe_.parallel.data = 1;
  recipe_.device = options.device;
  recipe_.cuda_graphs = false;  // of training, as are the next two
  recipe_.offload = {};
  recipe_.optimizer = {};
  recipe_.attention_backend = AttentionBackend::own;  // each length would be a plan of seconds
  recipe_ = resolve(recipe_, 1);
  check_device(recipe_, 1);
  const DeviceKind device = device_of(recipe_);
  if (device != DeviceKind::cpu) use_device(device, 0);
  compute_ = make_compute_stream(device, "compute");
  ProgramOptions p = program_options(recipe_);
  p.for_training = false;
  p.ema_decay = 0;
  p.sharding = {};
  p.micro_batch = options.micro_batch;
  p.accumulation = 1;
  p.fp8.reset();
  if (p.products == MatmulPrecision::fp8) p.products = MatmulPrecision::plain;
  if (p.precision.has_master()) p.precision = precision_policy("fp32");  // checkpoints hold the fp32 weights

  int64_t bytes = 0, host_bytes = 0;
  {
    MetaTrace trace;
    auto compute = make_meta_stream("compute", trace);
    const GroupSet groups = make_meta_groups(Mesh{}, trace);
    MetaMemory memory(trace), host(trace);
    TrainProgram program(p, {*compute, memory, groups.groups(), device == DeviceKind::cpu ? nullptr : &host});
    if (p.micro_batch == 1) program.predict({});
    program.evaluate(nullptr);
    bytes = memory.peak().arena_bytes;
    host_bytes = host.peak().arena_bytes;
  }
  arena_ = std::make_unique<Arena>(device, bytes);
  if (device != DeviceKind::cpu) host_ = Arena::staging(device, host_bytes);
  program_ = std::make_unique<TrainProgram>(p, Device{*compute_, *arena_, groups_.groups(), host_.get()});
  program_->parameters().clear();
  load_parameters(*reader, program_->parameters(), options.average);
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
  if (trained_tokenizer_ || !is_hf_folder(path_) || recipe_.data.tokenizer.kind == TokenizerKind::byte)
    return trained_tokenizer_;
  const data::Tokenizer& t = tokenizer();
  return data::TokenizerIdentity{t.name(), t.hash(), t.vocab_size(), t.eot()};
}

int64_t Session::end_of_document() {
  if (trained_tokenizer_ && trained_tokenizer_->eod >= 0) return trained_tokenizer_->eod;
  return recipe_.data.tokenizer.eod ? *recipe_.data.tokenizer.eod : tokenizer().eot();
}

int32_t sample_token(std::vector<float> logits, const SamplingOptions& o, uint64_t index) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  // Likeliest first, the lower id first among equals.
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (o.temperature <= 0) return order[0];
  if (o.top_k > 0 && static_cast<int64_t>(order.size()) > o.top_k) order.resize(o.top_k);
  std::vector<double> p(order.size());
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i)
    sum += p[i] = std::exp((logits[order[i]] - logits[order[0]]) / o.temperature);
  size_t kept = order.size();
  if (o.top_p < 1) {
    double reached = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      reached += p[i] / sum;
      if (reached >= o.top_p) {
        kept = i + 1;
        break;
      }
    }
    sum = 0;
    for (size_t i = 0; i < kept; ++i) sum += p[i];
  }
  double u = to_uniform(philox(o.seed, hash_name("sample"), index).v[0]) * sum;
  for (size_t i = 0; i < kept; ++i) {
    u -= p[i];
    if (u < 0) return order[i];
  }
  return order[kept - 1];
}

void Session::generate(const std::vector<int32_t>& prompt, const SamplingOptions& o,
                       const std::function<bool(int32_t)>& emit) {
  const int64_t context = program_->options().seq_length;
  const int64_t vocab = recipe_.model.vocab_size;
  std::vector<int32_t> tokens = prompt;
  const int64_t end = o.stop_at_end || tokens.empty() ? end_of_document() : -1;
  if (tokens.empty()) {
    if (end < 0)
      fail(ExitCode::usage,
           "prompt: is empty, and neither data nor tokenizer of {} name a token that ends documents, after "
           "which one could begin; give --prompt",
           path_);
    tokens.push_back(static_cast<int32_t>(end));
  }
  for (int32_t t : tokens)
    if (t < 0 || t >= vocab)
      fail(ExitCode::usage, "prompt: token {} is outside the model's vocabulary of {}", t, vocab);
  for (int64_t i = 0; i < o.tokens; ++i) {
    // A full context drops its older half, so that the recomputation is shared by many tokens.
    if (static_cast<int64_t>(tokens.size()) > context)
      tokens.erase(tokens.begin(), tokens.end() - context / 2);
    std::vector<float> logits = program_->predict(tokens);
    // Rows of the embedding that stand for no token are not drawn.
    if (const int64_t ids = tokenizer().vocab_size(); ids < vocab) logits.resize(static_cast<size_t>(ids));
    const int32_t next = sample_token(std::move(logits), o, static_cast<uint64_t>(i));
    if (o.stop_at_end && next == end) return;
    if (!emit(next)) return;
    tokens.push_back(next);
  }
}

}  // namespace ltrain
