// Text generation: forwards over the rows of a prompt, then over one row per new token, with cached keys and
// values.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/meta/placement_rules.h"
#include "runtime/program/stage_run.h"
#include "runtime/program/train_program.h"

namespace ltrain {
namespace {

/// Rows of one forward: enough to amortize reading the weights, few enough to keep activations small.
constexpr int64_t kMostRows = 512;
/// Rows with logits at once: 32 MB for a vocabulary of 128,000 tokens.
constexpr int64_t kScoredRows = 64;

template <typename T>
TokenScore score_of(const std::vector<T>& logits, int32_t target) {
  const double most = *std::max_element(logits.begin(), logits.end()),
               value = logits[static_cast<size_t>(target)];
  double sum = 0;
  for (const T l : logits) sum += std::exp(static_cast<double>(l) - most);
  return {value - most - std::log(sum), value >= most};
}

}  // namespace

KeyValueCache TrainProgram::make_cache() {
  const ModelConfig& m = options_.model;
  const Groups& g = device_.groups;
  LT_CHECK(cut_.ranks == 1 && g.one_d() && !options_.sequence_parallel && decoder_.stage_count() == 1,
           "expected generation without context and sequence parallelism, with 1D tensor parallelism and one "
           "stage per rank; got {} context ranks and {} stages",
           cut_.ranks, decoder_.stage_count());
  const auto allocate = [&](const char* name, DType t, Shape shape) {
    return device_.memory.allocate(MemoryKind::temporaries, name, t, shape);
  };
  if (!text_positions_.defined())
    text_positions_ = allocate("positions of texts", DType::i32, {std::min(kMostRows, slots_->rows())});
  const int64_t ranks = g.tensor.size();
  const int64_t heads = m.num_key_value_heads * kv_replication(m.num_key_value_heads, ranks) / ranks;
  const StageLayers& stage = decoder_.stage(0);
  KeyValueCache cache;
  cache.capacity = options_.seq_length;
  cache.layers.resize(static_cast<size_t>(m.num_hidden_layers));
  for (int64_t layer = stage.first; layer < stage.first + stage.count; ++layer)
    cache.layers[static_cast<size_t>(layer)] =
        allocate("keys and values", options_.precision.compute,
                 {cache.capacity, heads * (m.head_dim + m.value_dim())});
  return cache;
}

bool TrainProgram::must_reread(const KeyValueCache& text, int64_t length) const {
  const int64_t row = decoder_.rope_row(text.text_length);
  return text.length > 0 && decoder_.rope_row(std::max(text.text_length, length)) != row;
}

void TrainProgram::grow(KeyValueCache& text, int64_t count) const {
  const int64_t length = text.length + count;
  LT_CHECK(length <= text.capacity, "expected at most {} tokens in a text, got {} and {} more", text.capacity,
           text.length, count);
  LT_CHECK(!must_reread(text, length),
           "expected cached keys of a text of {} tokens to be recomputed before it grows to {} tokens",
           text.length, length);
  text.text_length = std::max(text.text_length, length);
}

void TrainProgram::share_logits(Tensor logits) {
  const Groups& g = device_.groups;
  Stream& s = device_.compute;
  if (g.world.size() == 1) return;
  // Ranks with the same parameters have the same logits. Ranks without a head have none.
  if (!decoder_.stage(0).heads || g.gradient.rank() != 0) fill_zero(s, logits);
  place_set(s, logits, kAllAxes, Placement::P());
  g.world.all_reduce(s, logits);
  place_require(s, "reading logits", logits, Placement::R());
  device_.groups.check();
}

void TrainProgram::extend_rows(const TextForward& forward, const int32_t* tokens) {
  Stream& s = device_.compute;
  std::vector<int32_t> positions;
  for (const TextRows& t : forward.texts) {
    const int64_t first = decoder_.rope_row(t.cache->text_length) + t.cache->length;
    for (int64_t i = 0; i < t.count; ++i) positions.push_back(static_cast<int32_t>(first + i));
  }
  MicroBatch mb = slots_->text_rows(static_cast<int64_t>(positions.size()));
  mb.positions = text_positions_.flat(0, {mb.seq});
  mb.router_bias = router_bias_;
  mb.by_token = {.table = token_experts_};
  Step step = make_step(false);
  step.generation = &forward;
  if (s.meta()) {
    // Layers expect rows that differ between data ranks.
    for (const Tensor& t : {mb.tokens, mb.targets, mb.sample_index, mb.positions})
      place_set(s, t, kAllAxes, Placement::R());
    for (const Tensor& t : {mb.tokens, mb.targets}) place_set(s, t, kGradientAxes, Placement::V());
  } else {
    staging_.open();
    staging_.put(mb.tokens, tokens);
    staging_.put(mb.positions, positions.data());
    staging_.close();
  }
  const pipeline::Schedule once = forward_only(options_.schedule, 1);
  StageRun(decoder_, step, once).run(pipeline::lower(once, pipeline_rank()), [&](int) { return mb; });
  share_logits(forward.logits);
  for (const TextRows& t : forward.texts) t.cache->length += t.count;
}

std::vector<std::vector<float>> TrainProgram::extend(const std::vector<TextTokens>& texts) {
  const bool meta = device_.compute.meta() != nullptr;
  const int64_t vocab = options_.model.vocab_size, most = text_positions_.elements();
  const int64_t count = static_cast<int64_t>(texts.size());
  const DType type = options_.precision.compute == DType::f64 ? DType::f64 : DType::f32;
  Tensor logits =
      device_.memory.allocate(MemoryKind::temporaries, "logits", type, {std::min(count, most), vocab});
  std::vector<std::vector<float>> out;
  const auto read = [&](int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<float> values(static_cast<size_t>(vocab));
      if (type == DType::f64) {
        std::vector<double> wide(values.size());
        staging_.get(wide.data(), logits.flat(i * vocab, {1, vocab}));
        std::copy(wide.begin(), wide.end(), values.begin());
      } else {
        staging_.get(values.data(), logits.flat(i * vocab, {1, vocab}));
      }
      out.push_back(std::move(values));
    }
  };
  if (meta) {
    KeyValueCache& cache = *texts.at(0).cache;
    extend_rows({{{&cache, std::min(most, cache.capacity)}}, logits.flat(0, {1, vocab}), 0}, nullptr);
    read(0);
  }
  for (size_t i = 0; i < texts.size() && !meta;) {
    LT_CHECK(!texts[i].tokens.empty(), "expected at least one token for text {}, got 0", i);
    grow(*texts[i].cache, static_cast<int64_t>(texts[i].tokens.size()));
    // A longer prompt runs alone, in chunks; only the logits of its last row are read.
    if (texts[i].tokens.size() > 1) {
      const int64_t all = static_cast<int64_t>(texts[i].tokens.size());
      for (int64_t done = 0; done < all;) {
        const int64_t rows = std::min(most, all - done);
        extend_rows({{{texts[i].cache, rows}}, logits.flat(0, {1, vocab}), rows - 1},
                    texts[i].tokens.data() + done);
        done += rows;
      }
      read(1);
      ++i;
      continue;
    }
    std::vector<TextRows> rows;  // texts with one new token share a forward
    std::vector<int32_t> tokens;
    for (; i < texts.size() && texts[i].tokens.size() == 1 && static_cast<int64_t>(rows.size()) < most; ++i) {
      if (!rows.empty()) grow(*texts[i].cache, 1);
      rows.push_back({texts[i].cache, 1});
      tokens.push_back(texts[i].tokens[0]);
    }
    const int64_t n = static_cast<int64_t>(rows.size());
    extend_rows({rows, logits.flat(0, {n, vocab}), 0}, tokens.data());
    read(n);
  }
  device_.memory.release(logits);
  return out;
}

std::vector<TokenScore> TrainProgram::score(KeyValueCache& text, const std::vector<int32_t>& tokens,
                                            const std::vector<int32_t>& targets) {
  const bool meta = device_.compute.meta() != nullptr;
  const int64_t vocab = options_.model.vocab_size, count = static_cast<int64_t>(tokens.size());
  const int64_t most = std::min(kScoredRows, text_positions_.elements());
  LT_CHECK(count == static_cast<int64_t>(targets.size()), "expected a target for each of {} tokens, got {}",
           count, targets.size());
  grow(text, count);
  const DType type = options_.precision.compute == DType::f64 ? DType::f64 : DType::f32;
  Tensor logits = device_.memory.allocate(MemoryKind::temporaries, "logits", type, {most, vocab});
  std::vector<float> narrow(static_cast<size_t>(meta ? 0 : vocab));
  std::vector<double> wide(narrow.size());
  std::vector<TokenScore> out;
  for (int64_t done = 0; done < (meta ? most : count);) {
    const int64_t rows = meta ? most : std::min(most, count - done);
    extend_rows({{{&text, rows}}, logits.flat(0, {rows, vocab}), 0}, meta ? nullptr : tokens.data() + done);
    for (int64_t i = 0; i < rows && !meta; ++i) {  // the staging memory has room for one row
      const Tensor row = logits.flat(i * vocab, {1, vocab});
      const int32_t target = targets[static_cast<size_t>(done + i)];
      if (type == DType::f64) {
        staging_.get(wide.data(), row);
        out.push_back(score_of(wide, target));
      } else {
        staging_.get(narrow.data(), row);
        out.push_back(score_of(narrow, target));
      }
    }
    done += rows;
  }
  device_.memory.release(logits);
  for (const TokenScore& s : out)
    if (std::isnan(s.log_probability))
      fail(ExitCode::data,
           "the logits of a token are not numbers: the model's weights are not finite, or too large");
  return out;
}

}  // namespace ltrain
