#include "runtime/weights/prune.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "base/printable.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/write_weights.h"

namespace ltrain {
namespace {

constexpr int64_t kBlockElements = 1 << 20;

/// Reads a matrix, or a vector as one column, by blocks of rows, as `dtype`. Calls f(first row, rows).
template <class F>
void each_block(PieceReader& reader, const std::string& name, DType dtype, std::vector<char>& block, F f) {
  const Shape& shape = reader.tensors().at(name).shape;
  const int64_t columns = shape.rank == 2 ? shape[1] : 1,
                most = std::max<int64_t>(1, kBlockElements / columns);
  for (int64_t first = 0; first < shape[0]; first += most) {
    const int64_t rows = std::min(most, shape[0] - first);
    block.resize(static_cast<size_t>(rows * columns * dtype_size(dtype)));
    reader.read(name, dtype, Slice::whole(shape).range(first * columns, (first + rows) * columns),
                block.data());
    f(first, rows);
  }
}

/// Selects neurons of the feed-forwards of one checkpoint.
class FeedForwardPruning {
 public:
  /// `after`: neurons of each that stay.
  FeedForwardPruning(PieceReader& reader, const ModelConfig& model, int64_t after,
                     const std::optional<Importance>& measured)
      : reader_(reader),
        names_(model.names()),
        measured_(measured),
        hidden_(model.hidden_size),
        before_(model.intermediate_size),
        after_(after) {}

  /// Adds the tensors of the feed-forward of layer `from`, as those of layer `to`. Returns whether `name`, a
  /// tensor of layer `from`, is one of them; false for one that stays as it is.
  bool add(const std::string& name, int64_t from, int64_t to, std::vector<WrittenTensor>& out) {
    const std::string prefix = names_.layer(from) + "." + names_.feed_forward + ".";
    if (!name.starts_with(prefix)) return false;
    const std::string part = name.substr(prefix.size());
    const bool down = part == names_.down + ".weight";
    const int64_t stacked = is_of(part, names_.fused_gate_up) ? 2 : 1;
    if (!down && stacked == 1 && !is_of(part, names_.gate) && !is_of(part, names_.up)) return false;
    if (layer_ != from) choose(prefix, from);
    const TensorParts& t = reader_.tensors().at(name);
    WrittenTensor w{.name = names_.layer(to) + "." + names_.feed_forward + "." + part,
                    .dtype = t.dtype,
                    .shape = t.shape,
                    .elements = {}};
    if (down) {
      w.shape.dims[1] = after_;
      w.elements = [this, name, kept = kept_](const WriteBytes& write) { write_columns(name, kept, write); };
    } else {
      w.shape.dims[0] = stacked * after_;
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < stacked; ++i)
        for (const int64_t n : kept_) rows.push_back(i * before_ + n);
      w.elements = [this, name, rows](const WriteBytes& write) { write_rows(name, rows, write); };
    }
    out.push_back(std::move(w));
    return true;
  }

  /// Neurons that stay, by layer that add() was called for.
  const std::map<int64_t, std::vector<int64_t>>& kept() const { return all_kept_; }

 private:
  static bool is_of(const std::string& part, const std::string& layer) {
    return !layer.empty() && (part == layer + ".weight" || part == layer + ".bias");
  }

  /// Sums of squares of the rows of a layer's weight and bias. Returns norms of `rows` rows.
  std::vector<double> row_norms(const std::string& layer, int64_t rows) {
    std::vector<double> sums(static_cast<size_t>(rows));
    std::vector<char> block;
    for (const std::string& name : {layer + ".weight", layer + ".bias"}) {
      if (name.ends_with(".bias") && !reader_.has(name)) continue;
      const Shape shape = name.ends_with(".bias") ? Shape{rows} : Shape{rows, hidden_};
      require(name, shape);
      const int64_t columns = shape.rank == 2 ? shape[1] : 1;
      each_block(reader_, name, DType::f64, block, [&](int64_t first, int64_t n) {
        const auto* x = reinterpret_cast<const double*>(block.data());
        for (int64_t i = 0; i < n * columns; ++i)
          sums[static_cast<size_t>(first + i / columns)] += x[i] * x[i];
      });
    }
    for (double& s : sums) s = std::sqrt(s);
    return sums;
  }

  std::vector<double> column_norms(const std::string& name) {
    require(name, {hidden_, before_});
    std::vector<double> sums(static_cast<size_t>(before_));
    std::vector<char> block;
    each_block(reader_, name, DType::f64, block, [&](int64_t, int64_t n) {
      const auto* x = reinterpret_cast<const double*>(block.data());
      for (int64_t i = 0; i < n * before_; ++i) sums[static_cast<size_t>(i % before_)] += x[i] * x[i];
    });
    for (double& s : sums) s = std::sqrt(s);
    return sums;
  }

  void require(const std::string& name, const Shape& shape) const {
    const auto at = reader_.tensors().find(name);
    if (at == reader_.tensors().end())
      fail(ExitCode::storage, "{}: expected a tensor {}, got none", reader_.path(), name);
    if (at->second.shape != shape)
      fail(ExitCode::storage, "{}: {}: expected shape {}, got {}", reader_.path(), name, to_string(shape),
           to_string(at->second.shape));
  }

  /// Importance of the neurons of a layer by their weights.
  std::vector<double> by_weights(const std::string& prefix) {
    std::vector<double> importance = column_norms(prefix + names_.down + ".weight");
    const bool fused = !names_.fused_gate_up.empty();
    for (const std::string& name :
         fused ? std::vector{names_.fused_gate_up} : std::vector{names_.gate, names_.up}) {
      if (name.empty()) continue;
      const std::vector<double> norms = row_norms(prefix + name, fused ? 2 * before_ : before_);
      for (size_t i = 0; i < norms.size(); ++i) importance[i % importance.size()] *= norms[i];
    }
    return importance;
  }

  /// Fills kept_ for a layer.
  void choose(const std::string& prefix, int64_t layer) {
    const std::vector<double> importance =
        measured_ ? measured_->neurons.at(static_cast<size_t>(layer)) : by_weights(prefix);
    for (size_t i = 0; i < importance.size(); ++i)
      if (!std::isfinite(importance[i]))
        fail(ExitCode::data,
             "{}: neuron {} of {} has {} that are not finite, and cannot be compared with others",
             reader_.path(), i, prefix.substr(0, prefix.size() - 1), measured_ ? "activations" : "weights");
    kept_.resize(static_cast<size_t>(before_));
    std::iota(kept_.begin(), kept_.end(), 0);
    std::stable_sort(kept_.begin(), kept_.end(), [&](int64_t a, int64_t b) {
      return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
    });
    kept_.resize(static_cast<size_t>(after_));
    std::sort(kept_.begin(), kept_.end());
    all_kept_[layer] = kept_;
    layer_ = layer;
  }

  /// Rows in ascending order, by runs of neighbours.
  void write_rows(const std::string& name, const std::vector<int64_t>& rows, const WriteBytes& write) {
    const TensorParts& t = reader_.tensors().at(name);
    const int64_t columns = t.shape.rank == 2 ? t.shape[1] : 1;
    for (size_t i = 0, end; i < rows.size(); i = end) {
      for (end = i + 1; end < rows.size() && rows[end] == rows[end - 1] + 1;) ++end;
      const Slice run = Slice::whole(t.shape).range(rows[i] * columns, (rows[end - 1] + 1) * columns);
      stream_tensor(reads_of(reader_), name, t.dtype, run, false, write);
    }
  }

  void write_columns(const std::string& name, const std::vector<int64_t>& columns, const WriteBytes& write) {
    const DType dtype = reader_.tensors().at(name).dtype;
    const auto width = static_cast<size_t>(dtype_size(dtype));
    std::vector<char> block, kept;
    each_block(reader_, name, dtype, block, [&](int64_t, int64_t rows) {
      kept.resize(static_cast<size_t>(rows * after_) * width);
      char* to = kept.data();
      for (int64_t r = 0; r < rows; ++r)
        for (const int64_t c : columns) {
          std::memcpy(to, block.data() + static_cast<size_t>(r * before_ + c) * width, width);
          to += width;
        }
      write(kept.data(), static_cast<int64_t>(kept.size()));
    });
  }

  PieceReader& reader_;
  const ParameterNames& names_;
  const std::optional<Importance>& measured_;
  int64_t hidden_, before_, after_;
  int64_t layer_ = -1;         // layer of kept_
  std::vector<int64_t> kept_;  // neurons that stay, ascending
  std::map<int64_t, std::vector<int64_t>> all_kept_;
};

void check_options(const PruneOptions& o, const std::string& path, const ModelConfig& m) {
  const auto refuse = [&](const std::string& why) { fail(ExitCode::usage, "{}: {}", path, why); };
  if (m.moe.num_experts > 0)
    refuse(fmt::format("has {} experts in a layer, and pruning is built for dense models alone",
                       m.moe.num_experts));
  if (m.lora.on())
    refuse(
        "has adapters beside its weights; merge them with ltrain export --merge, and give the checkpoint "
        "that ltrain import makes of that folder");
  if (m.num_nextn_predict_layers > 0)
    refuse("has modules of multi-token prediction behind its layers, and pruning is not built for them");
  if (o.layers.empty() && o.layers_keep == 0 && o.intermediate_size == 0)
    refuse("nothing to prune: give --layers or --layers-keep, --intermediate-size or both");
  if (o.layers_keep > m.num_hidden_layers)
    refuse(fmt::format("--layers-keep {}: the model has {} layers; nearest valid value: {}", o.layers_keep,
                       m.num_hidden_layers, m.num_hidden_layers));
  if (!o.layers.empty() && o.layers.back() >= m.num_hidden_layers)
    refuse(fmt::format("--layers: there is no layer {}: the model has layers 0 to {}", o.layers.back(),
                       m.num_hidden_layers - 1));
  if (o.intermediate_size > m.intermediate_size)
    refuse(fmt::format(
        "--intermediate-size {}: the model has {}, and pruning makes it smaller; nearest valid value: {}",
        o.intermediate_size, m.intermediate_size, m.intermediate_size));
}

/// Layers that stay, ascending: those given, those of largest importance, or all. Of equals the first stay.
std::vector<int64_t> layers_that_stay(const PruneOptions& o, const std::optional<Importance>& importance,
                                      const ModelConfig& model) {
  if (!o.layers.empty()) return o.layers;
  std::vector<int64_t> layers(static_cast<size_t>(model.num_hidden_layers));
  std::iota(layers.begin(), layers.end(), 0);
  if (o.layers_keep == 0) return layers;
  LT_CHECK(importance, "expected importance of layers, got none");
  for (size_t i = 0; i < importance->layers.size(); ++i)
    if (!std::isfinite(importance->layers[i]))
      fail(ExitCode::data, "layer {} has activations that are not finite, and cannot be compared with others",
           i);
  std::ranges::stable_sort(layers, std::greater<>(),
                           [&](int64_t i) { return importance->layers.at(static_cast<size_t>(i)); });
  layers.resize(static_cast<size_t>(o.layers_keep));
  std::ranges::sort(layers);
  return layers;
}

template <class T>
void keep_layers(std::vector<T>& of_layers, const std::vector<int64_t>& layers) {
  if (of_layers.empty()) return;
  std::vector<T> kept;
  for (const int64_t i : layers) kept.push_back(of_layers.at(static_cast<size_t>(i)));
  of_layers = std::move(kept);
}

/// Changes the recipe's model. Stages of the run's pipeline are left out, as there may be fewer layers than
/// stages.
void shrink_model(Recipe& recipe, const std::vector<int64_t>& layers, int64_t intermediate_size) {
  ModelConfig& m = recipe.model;
  const bool dropped = static_cast<int64_t>(layers.size()) < m.num_hidden_layers;
  m.intermediate_size = intermediate_size;
  if (!dropped) return;
  m.num_hidden_layers = static_cast<int64_t>(layers.size());
  keep_layers(m.no_rope_layers, layers);
  keep_layers(m.layer_types, layers);
  auto& types = m.layer_types;
  if (std::find(types.begin(), types.end(), LayerType::sliding_attention) == types.end() && !types.empty()) {
    m.sliding_window.reset();
    types.clear();
  }
  const Parallel none;
  Parallel& p = recipe.parallel;
  p.pipeline = none.pipeline;
  p.schedule = none.schedule;
  p.virtual_pipeline = none.virtual_pipeline;
  p.schedule_file = none.schedule_file;
  p.pipeline_layers = none.pipeline_layers;
}

}  // namespace

PruneReport prune_checkpoint(const PruneOptions& o) {
  PruneReport report;
  OldCheckpoint old(o.checkpoint, report.notes);
  CheckpointReader* const reader = &old.reader();
  Recipe recipe = old.recipe();
  const ModelConfig model = recipe.model;
  check_options(o, reader->path(), model);
  if (o.measure) report.importance = o.measure(reader->path());
  const std::vector<int64_t> layers = layers_that_stay(o, report.importance, model);
  const bool narrower = o.intermediate_size > 0 && o.intermediate_size < model.intermediate_size;
  shrink_model(recipe, layers, narrower ? o.intermediate_size : model.intermediate_size);
  report.step = reader->info().step;
  report.settings = changed_settings(model, recipe.model);
  if (report.settings.empty()) fail(ExitCode::usage, "{}: has this shape already", reader->path());
  CheckpointInfo info = info_of_weights(recipe, reader->info().seed, o.made);  // before a byte is written

  // Number of each layer in the result; -1: dropped.
  std::vector<int64_t> numbers(static_cast<size_t>(model.num_hidden_layers), -1);
  for (size_t i = 0; i < layers.size(); ++i)
    numbers[static_cast<size_t>(layers[i])] = static_cast<int64_t>(i);
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] < 0) report.dropped_layers.push_back(static_cast<int64_t>(i));
  FeedForwardPruning feed_forwards(*reader, model, o.intermediate_size, report.importance);
  std::vector<WrittenTensor> tensors;
  for (const auto& [name, t] : reader->tensors()) {
    if (name.starts_with("optimizer/")) {
      ++report.states_left_out;
      continue;
    }
    report.parameters_before += t.shape.elements();
    const int64_t layer = layer_of(model, name);
    if (layer >= model.num_hidden_layers)
      fail(ExitCode::storage, "{}: expected layers 0 to {}, got {}", reader->path(),
           model.num_hidden_layers - 1, printable(name));
    const int64_t number = layer < 0 ? -1 : numbers[static_cast<size_t>(layer)];
    if (layer >= 0 && number < 0) continue;
    if (narrower && layer >= 0 && feed_forwards.add(name, layer, number, tensors)) continue;
    const std::string& old = layer < 0 ? "" : model.names().layer(layer);
    tensors.push_back(copied_tensor(
        *reader, name, layer < 0 ? name : model.names().layer(number) + name.substr(old.size())));
  }
  for (const auto& [layer, kept] : feed_forwards.kept()) report.kept_neurons.push_back(kept);
  for (const WrittenTensor& t : tensors) report.parameters += t.shape.elements();
  write_weights(o.made, tensors, std::move(info), o.progress);
  report.checkpoint = o.made;
  return report;
}

std::vector<int64_t> parse_layers(const std::string& text, const std::string& what) {
  std::vector<int64_t> layers;
  const char *at = text.data(), *end = at + text.size();
  const auto refuse = [&] {
    fail(ExitCode::usage, "{} {}: expected ascending numbers of layers, from 0, such as 0-3,6", what,
         printable(text));
  };
  const auto number = [&] {
    int64_t n = -1;
    const auto read = std::from_chars(at, end, n);
    if (read.ec != std::errc() || n < 0 || n > 1'000'000) refuse();
    at = read.ptr;
    return n;
  };
  for (bool more = true; more;) {
    const int64_t first = number();
    int64_t last = first;
    if (at != end && *at == '-') ++at, last = number();
    if (last < first || (!layers.empty() && first <= layers.back())) refuse();
    for (int64_t i = first; i <= last; ++i) layers.push_back(i);
    more = at != end;
    if (more && *at++ != ',') refuse();
  }
  return layers;
}

}  // namespace ltrain
