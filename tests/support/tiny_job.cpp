#include "tests/support/tiny_job.h"

#include <omp.h>

#include <thread>

#include "kernels/core/rng.h"

namespace ltrain::test {

ModelConfig tiny_model(const TinyOptions& o) {
  ModelConfig c;
  c.architecture = o.architecture;
  c.vocab_size = o.vocab;
  c.hidden_size = 32;
  c.intermediate_size = o.architecture == "gpt2" ? 128 : 40;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = o.architecture == "gpt2" ? 4 : 2;
  c.head_dim = 8;
  c.max_position_embeddings = 128;
  c.tie_word_embeddings = o.tied || o.architecture == "gpt2";
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = o.dropout;
  c.initializer_range = 0.1;  // larger than usual, so that every path matters at once
  return c;
}

std::vector<int32_t> tiny_sample(const TinyOptions& o, int64_t sample) {
  std::vector<int32_t> tokens(o.seq + 1);
  for (int64_t i = 0; i <= o.seq; ++i)
    tokens[i] = static_cast<int32_t>(philox(7, static_cast<uint64_t>(sample), static_cast<uint64_t>(i)).v[0] %
                                     o.vocab);
  return tokens;
}

std::vector<HostBatch> tiny_batches(const TinyOptions& o, int64_t step, int rank) {
  const int64_t accumulation = o.global_batch / (o.micro_batch * o.ranks);
  std::vector<HostBatch> batches(accumulation);
  for (int64_t k = 0; k < accumulation; ++k)
    for (int64_t b = 0; b < o.micro_batch; ++b) {
      const int64_t sample = step * o.global_batch + (k * o.ranks + rank) * o.micro_batch + b;
      const std::vector<int32_t> row = tiny_sample(o, sample);
      batches[k].tokens.insert(batches[k].tokens.end(), row.begin(), row.end() - 1);
      batches[k].targets.insert(batches[k].targets.end(), row.begin() + 1, row.end());
      if (o.padded_targets)  // rows count unequally many tokens
        for (int64_t i = 0; i < sample % 5; ++i) batches[k].targets[(b + 1) * o.seq - 1 - i] = -1;
      batches[k].sample_index.push_back(sample);
    }
  return batches;
}

ProgramOptions tiny_program(const TinyOptions& o) {
  ProgramOptions p;
  p.model = tiny_model(o);
  p.precision = precision_policy(o.precision);
  p.zero_stage = o.zero_stage;
  p.bucket_elements = o.bucket_elements;
  p.micro_batch = o.micro_batch;
  p.seq_length = o.seq;
  p.accumulation = o.global_batch / (o.micro_batch * o.ranks);
  p.clip_grad = o.clip;
  return p;
}

AdamwArgs tiny_adamw(int64_t step) {
  AdamwArgs a;
  a.lr = 1e-2;
  a.weight_decay = 0.1;
  a.step = step;
  return a;
}

namespace {

double element(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::f64:
      return t.ptr<double>()[i];
    case DType::f32:
      return t.ptr<float>()[i];
    default:
      return static_cast<float>(t.ptr<bf16>()[i]);
  }
}

void train_rank(const TinyOptions& o, Communicator& data, TinyResult* result) {
  omp_set_num_threads(1);
  // Plan on meta, then run in an arena of exactly that size.
  int64_t planned = 0, planned_wire = 0;
  {
    MetaTrace trace;
    trace.set_axis_size(Axis::data, o.ranks);
    auto compute = make_meta_stream("compute", trace), comm = make_meta_stream("comm", trace);
    MetaMemory memory(trace);
    auto group = make_recording_group(data.rank(), o.ranks, "data", Axis::data);
    TrainProgram program(tiny_program(o), {*compute, *comm, memory, *group});
    program.train_step({}, tiny_adamw(1), false);
    planned_wire = group->wire_bytes() * o.steps;
    const int64_t before = group->wire_bytes();
    program.evaluate(nullptr);
    planned_wire += group->wire_bytes() - before;
    planned = memory.peak().arena_bytes;
  }
  auto compute = make_inline_stream("compute"), comm = make_worker_stream("comm");
  CpuArena arena(planned);
  TrainProgram program(tiny_program(o), {*compute, *comm, arena, data});
  program.initialize();
  const int64_t wire_before = data.wire_bytes();
  for (int64_t step = 0; step < o.steps; ++step) {
    const StepResult r = program.train_step(tiny_batches(o, step, data.rank()), tiny_adamw(step + 1), false);
    if (!result) continue;
    result->losses.push_back(r.loss);
    result->norms.push_back(r.grad_norm);
    if (step == 0)
      for (int id = 0; id < program.parameters().count(); ++id) {
        const Tensor g = program.parameters().grad(id);
        for (int64_t i = 0; i < g.elements(); ++i) result->gradients.push_back(element(g, i));
      }
  }
  const auto held_out = tiny_batches(o, 1000, data.rank());
  size_t at = 0;
  const double eval = program.evaluate([&] { return at < held_out.size() ? &held_out[at++] : nullptr; });
  comm->synchronize();
  if (!result) return;
  result->eval_loss = eval;
  for (int id = 0; id < program.parameters().count(); ++id) {
    const Tensor v = program.parameters().value(id);
    for (int64_t i = 0; i < v.elements(); ++i) result->parameters.push_back(element(v, i));
  }
  result->plan_bytes = planned;
  result->used_bytes = arena.peak().arena_bytes;
  result->plan_wire = planned_wire;
  result->used_wire = data.wire_bytes() - wire_before;
}

}  // namespace

TinyResult train_tiny(const TinyOptions& o, const GroupWrapper& wrap) {
  TinyResult result;
  auto groups = o.ranks == 1 ? std::vector<std::unique_ptr<Communicator>>()
                             : make_in_process_group(o.ranks, "data", Axis::data);
  if (o.ranks == 1) groups.push_back(make_single_group("data", Axis::data));
  if (wrap)
    for (auto& group : groups) group = wrap(std::move(group));
  std::vector<std::exception_ptr> errors(o.ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < o.ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        train_rank(o, *groups[r], r == 0 ? &result : nullptr);
      } catch (...) {
        errors[r] = std::current_exception();
        groups[r].reset();  // the others must not wait
      }
    });
  for (auto& t : threads) t.join();
  for (auto& e : errors)
    if (e) std::rethrow_exception(e);
  return result;
}

}  // namespace ltrain::test
