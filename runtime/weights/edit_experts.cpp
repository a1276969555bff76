#include "runtime/weights/edit_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "kernels/tensor/rng.h"
#include "runtime/checkpoint/convert_elements.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/align_neurons.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/write_weights.h"

namespace ltrain {
namespace {

using Origins = std::vector<std::vector<int64_t>>;

constexpr int64_t kExpertElements = 1 << 20;  // elements of an expert in memory

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail(ExitCode::usage, "{}: {}", path, why);
}

/// Rows of the router's weight, as doubles.
std::vector<std::vector<double>> router_rows(PieceReader& reader, const std::string& name, int64_t experts) {
  const auto at = reader.tensors().find(name);
  if (at == reader.tensors().end() || at->second.shape.rank != 2 || at->second.shape[0] != experts)
    fail(ExitCode::storage, "{}: expected a tensor {} of {} rows, got {}", reader.path(), name, experts,
         at == reader.tensors().end() ? "none" : to_string(at->second.shape));
  const Shape& shape = at->second.shape;
  std::vector<double> all(static_cast<size_t>(shape.elements()));
  reader.read(name, DType::f64, Slice::whole(shape), all.data());
  std::vector<std::vector<double>> rows;
  for (int64_t e = 0; e < experts; ++e)
    rows.emplace_back(all.begin() + e * shape[1], all.begin() + (e + 1) * shape[1]);
  return rows;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const double norms = std::sqrt(dot(a, a) * dot(b, b));
  return norms > 0 ? dot(a, b) / norms : 0;
}

/// Experts of the most use, ascending by number.
std::vector<int64_t> most_used(const std::vector<double>& use, int64_t count) {
  std::vector<int64_t> order(use.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return use[static_cast<size_t>(a)] > use[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

/// Adds each expert that does not stay to the one that stays with the most similar router row.
void merge_others(const std::vector<std::vector<double>>& rows, Origins& origins) {
  std::vector<char> stays(rows.size());
  for (const auto& o : origins) stays[static_cast<size_t>(o.front())] = 1;
  for (size_t e = 0; e < rows.size(); ++e) {
    if (stays[e]) continue;
    auto best = origins.begin();
    const auto similarity = [&](const std::vector<int64_t>& o) {
      return cosine(rows[e], rows[static_cast<size_t>(o.front())]);
    };
    for (auto o = origins.begin(); o != origins.end(); ++o)
      if (similarity(*o) > similarity(*best)) best = o;
    best->push_back(static_cast<int64_t>(e));
  }
}

/// Shares of an expert's origins in it.
std::vector<double> shares(const std::vector<int64_t>& origins, const std::vector<double>& use) {
  std::vector<double> out;
  for (const int64_t e : origins) out.push_back(use[static_cast<size_t>(e)]);
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& s : out) s = sum > 0 ? s / sum : 1.0 / static_cast<double>(out.size());
  return out;
}

class ExpertEditing {
 public:
  ExpertEditing(PieceReader& reader, const ModelConfig& model, const EditExpertsOptions& o)
      : reader_(reader), model_(model), o_(o), experts_(model.moe.num_experts) {
    const ExpertUse measured = o.measure ? o.measure(reader.path()) : o.use;
    for (int64_t layer = 0; o.edit != ExpertEdit::add && layer < model.num_hidden_layers; ++layer)
      if (model.moe.in_layer(layer)) use_[layer] = use_of(layer, measured);
  }

  /// Chooses the experts of all layers.
  void choose(EditExpertsReport& report) {
    double kept = 0, all = 0;
    for (int64_t layer = 0; layer < model_.num_hidden_layers; ++layer) {
      if (!model_.moe.in_layer(layer)) continue;
      Origins& origins = report.origins[layer];
      if (o_.edit == ExpertEdit::add) {
        for (int64_t e = 0; e < experts_ * o_.copies; ++e) origins.push_back({e / o_.copies});
        continue;
      }
      const std::vector<double>& use = use_.at(layer);
      for (const int64_t e : most_used(use, o_.experts)) {
        origins.push_back({e});
        kept += use[static_cast<size_t>(e)];
      }
      all += std::accumulate(use.begin(), use.end(), 0.0);
      if (o_.edit == ExpertEdit::merge)
        merge_others(router_rows(reader_, prefix(layer) + model_.names().router + ".weight", experts_),
                     origins);
    }
    if (all > 0) report.kept_use = kept / all;
    origins_ = &report.origins;
  }

  /// Adds a tensor that has a row for each expert; false for any other.
  bool add(const std::string& name, int64_t layer, std::vector<WrittenTensor>& out) {
    const auto at = origins_->find(layer);
    if (at == origins_->end()) return false;
    const std::string router = prefix(layer) + model_.names().router + ".";
    const bool of_router = name.starts_with(router) ||
                           name == model_.names().layer(layer) + "." + model_.names().correction_bias();
    if (!of_router && !name.starts_with(prefix(layer) + "experts.")) return false;
    const TensorParts& t = reader_.tensors().at(name);
    if (t.shape.rank == 0 || t.shape[0] != experts_)
      fail(ExitCode::storage, "{}: {}: expected a first dim of {} experts, got shape {}", reader_.path(),
           name, experts_, to_string(t.shape));
    WrittenTensor w{.name = name, .dtype = t.dtype, .shape = t.shape, .elements = {}};
    w.shape.dims[0] = static_cast<int64_t>(at->second.size());
    w.elements = [this, name, layer, of_router, &origins = at->second](const WriteBytes& write) {
      for (size_t e = 0; e < origins.size(); ++e)
        if (const std::vector<int64_t>& o = origins[e]; redrawn(name, of_router, static_cast<int64_t>(e)))
          write_redrawn(name, layer, static_cast<int64_t>(e), o.front(), write);
        else if (of_router || o.size() == 1)
          stream_tensor(reads_of(reader_), name, reader_.tensors().at(name).dtype, rows_of(name, o.front()),
                        false, write);
        else
          write_mean(name, layer, o, shares(o, use_.at(layer)), write);
    };
    out.push_back(std::move(w));
    return true;
  }

 private:
  std::string prefix(int64_t layer) const {
    return model_.names().layer(layer) + "." + model_.names().moe + ".";
  }

  std::vector<double> use_of(int64_t layer, const ExpertUse& measured) const {
    const auto at = measured.find(layer);
    if (at == measured.end())
      fail(ExitCode::data, "{}: layer {} has experts, and no use of them was recorded or measured",
           reader_.path(), layer);
    if (static_cast<int64_t>(at->second.size()) > experts_)
      fail(ExitCode::data, "{}: layer {} has {} experts, and the record of routing names expert {}",
           reader_.path(), layer, experts_, at->second.size() - 1);
    std::vector<double> use = at->second;
    use.resize(static_cast<size_t>(experts_));
    return use;
  }

  /// The elements of one expert.
  Slice rows_of(const std::string& name, int64_t expert) const {
    const Shape& shape = reader_.tensors().at(name).shape;
    const int64_t of_one = shape.elements() / shape[0];
    return Slice::whole(shape).range(expert * of_one, (expert + 1) * of_one);
  }

  /// Returns whether neurons of this copy are drawn anew. Biases stay.
  bool redrawn(const std::string& name, bool of_router, int64_t copy) const {
    return o_.edit == ExpertEdit::add && o_.reinit > 0 && copy % o_.copies != 0 && !of_router &&
           !name.ends_with("bias");
  }

  /// Neurons of a copy that are drawn anew, the same for gate, up and down.
  std::vector<char> redrawn_neurons(int64_t layer, int64_t copy, int64_t neurons) const {
    const uint64_t stream = hash_name(fmt::format("neurons of copy {} in layer {}", copy, layer));
    std::vector<int64_t> order(static_cast<size_t>(neurons));
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](int64_t n) { return normal_value(o_.seed, stream, static_cast<uint64_t>(n)); };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
    std::vector<char> out(order.size());
    const auto count = static_cast<int64_t>(o_.reinit * static_cast<double>(neurons));
    for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1;
    return out;
  }

  /// A copy of gate and up (2, F, H), or of down (H, F), each matrix with its own mean and deviation.
  void write_redrawn(const std::string& name, int64_t layer, int64_t copy, int64_t origin,
                     const WriteBytes& write) {
    const TensorParts& t = reader_.tensors().at(name);
    const bool down = t.shape.rank == 3;
    const int64_t matrices = down ? 1 : t.shape[1], neurons = t.shape[2], all = rows_of(name, 0).elements(),
                  of_matrix = all / matrices;
    const std::vector<char> chosen = redrawn_neurons(layer, copy, neurons);
    std::vector<double> x(static_cast<size_t>(all));
    reader_.read(name, DType::f64, rows_of(name, origin), x.data());
    const uint64_t stream = hash_name(fmt::format("{} of copy {}", name, copy));
    for (int64_t m = 0; m < matrices; ++m) {
      std::vector<size_t> elements;
      for (int64_t i = 0; i < of_matrix; ++i)
        if (chosen[static_cast<size_t>(down ? i % neurons : i / (of_matrix / neurons))])
          elements.push_back(static_cast<size_t>(m * of_matrix + i));
      const auto count = static_cast<double>(std::max<size_t>(1, elements.size()));
      double mean = 0, squares = 0;
      for (const size_t i : elements) mean += x[i] / count;
      for (const size_t i : elements) squares += (x[i] - mean) * (x[i] - mean) / count;
      for (const size_t i : elements) x[i] = mean + std::sqrt(squares) * normal_value(o_.seed, stream, i);
    }
    std::vector<char> bytes(static_cast<size_t>(all * dtype_size(t.dtype)));
    convert_elements(DType::f64, x.data(), t.dtype, bytes.data(), all);
    write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }

  /// Dim of a tensor's neurons, without that of experts: rows of gate and up, (M, F, H), columns of down
  /// (H, F) and of the biases of gate and up (M, F); none for the bias of down, (H).
  enum class NeuronDim : uint8_t { rows, columns, none };
  NeuronDim neuron_dim(const std::string& name) const {
    const int rank = reader_.tensors().at(name).shape.rank;
    return rank == 4 ? NeuronDim::rows : rank == 3 ? NeuronDim::columns : NeuronDim::none;
  }

  /// Neurons of `expert` in the order of those of `kept` that they resemble most.
  const std::vector<int64_t>& aligned(int64_t layer, int64_t kept, int64_t expert) {
    const auto [at, fresh] = aligned_.try_emplace({layer, kept, expert});
    if (!fresh) return at->second;
    std::optional<NeuronSimilarity> similarity;
    for (const auto& [name, t] : reader_.tensors()) {
      const NeuronDim dim = neuron_dim(name);
      if (!name.starts_with(prefix(layer) + "experts.") || dim == NeuronDim::none || name.ends_with("bias"))
        continue;
      const int64_t neurons = t.shape[2], all = rows_of(name, 0).elements(),
                    matrices = dim == NeuronDim::rows ? t.shape[1] : 1, each = all / matrices;
      if (!similarity) similarity.emplace(neurons);
      std::vector<float> first(static_cast<size_t>(each)), second(first.size());
      for (int64_t m = 0; m < matrices; ++m) {
        reader_.read(name, DType::f32, rows_of(name, kept).range(m * each, (m + 1) * each), first.data());
        reader_.read(name, DType::f32, rows_of(name, expert).range(m * each, (m + 1) * each), second.data());
        if (dim == NeuronDim::rows)
          similarity->add_rows(first, second, each / neurons);
        else
          similarity->add_columns(first, second, each / neurons);
      }
    }
    if (!similarity->finite())
      fail(ExitCode::data,
           "{}: layer {}: the weights of expert {} or {}, or their products, are not finite, so that the "
           "experts "
           "cannot be merged",
           reader_.path(), layer, kept, expert);
    return at->second = similarity->best_pairs();
  }

  /// Reads rows of `width` elements of an expert, from `row` on, with its neurons in the given order.
  void read_aligned(const std::string& name, int64_t expert, const std::vector<int64_t>& order, int64_t row,
                    int64_t width, std::vector<double>& out) {
    const auto neurons = static_cast<int64_t>(order.size()), count = static_cast<int64_t>(out.size()) / width;
    const auto read = [&](int64_t from, int64_t rows, double* to) {
      reader_.read(name, DType::f64, rows_of(name, expert).range(from * width, (from + rows) * width), to);
    };
    if (neuron_dim(name) == NeuronDim::rows) {
      for (int64_t r = row; r < row + count; ++r)
        read(r / neurons * neurons + order[static_cast<size_t>(r % neurons)], 1,
             out.data() + (r - row) * width);
      return;
    }
    std::vector<double> before(out.size());
    read(row, count, before.data());
    for (size_t i = 0; i < out.size(); ++i) {
      const auto column = i % static_cast<size_t>(width);
      out[i] = before[i - column + static_cast<size_t>(order[column])];
    }
  }

  void write_mean(const std::string& name, int64_t layer, const std::vector<int64_t>& experts,
                  const std::vector<double>& weights, const WriteBytes& write) {
    const DType dtype = reader_.tensors().at(name).dtype;
    const Shape& shape = reader_.tensors().at(name).shape;
    const int64_t width = shape[shape.rank - 1], rows = rows_of(name, 0).elements() / width,
                  most = std::max<int64_t>(1, kExpertElements / width);
    for (int64_t row = 0; row < rows; row += most) {
      const int64_t count = std::min(most, rows - row), n = count * width;
      std::vector<double> one(static_cast<size_t>(n)), sum(static_cast<size_t>(n));
      for (size_t i = 0; i < experts.size(); ++i) {
        if (i == 0 || neuron_dim(name) == NeuronDim::none)
          reader_.read(name, DType::f64, rows_of(name, experts[i]).range(row * width, row * width + n),
                       one.data());
        else
          read_aligned(name, experts[i], aligned(layer, experts[0], experts[i]), row, width, one);
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += weights[i] * one[k];
      }
      std::vector<char> bytes(static_cast<size_t>(n * dtype_size(dtype)));
      convert_elements(DType::f64, sum.data(), dtype, bytes.data(), n);
      write(bytes.data(), static_cast<int64_t>(bytes.size()));
    }
  }

  PieceReader& reader_;
  const ModelConfig& model_;
  const EditExpertsOptions& o_;
  int64_t experts_;
  ExpertUse use_;  // prune, merge: of all experts
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<int64_t>> aligned_;  // layer, kept, expert
  const std::map<int64_t, Origins>* origins_ = nullptr;
};

void check_options(const EditExpertsOptions& o, const std::string& path, const ModelConfig& m) {
  if (m.moe.num_experts == 0) refuse(path, "is a dense model, without experts");
  if (m.lora.on())
    refuse(path,
           "has adapters beside its weights; merge them with ltrain export --merge, and give the checkpoint "
           "that ltrain import makes of that folder");
  if (m.num_nextn_predict_layers > 0)
    refuse(path, "has modules of multi-token prediction behind its layers, whose experts no record has");
  if (m.moe.zero_experts > 0)
    refuse(path, fmt::format("has {} zero experts behind the others in its routers, and is not edited",
                             m.moe.zero_experts));
  if (m.moe.by_token())
    refuse(path, fmt::format("has experts of token ids (model.moe.router.{}), and is not edited",
                             m.moe.kind == RouterKind::hash ? "kind: hash" : "freeze_step"));
  if (m.moe.n_group > 1)
    refuse(path,
           fmt::format("has experts in {} groups, of which each would need an equal number", m.moe.n_group));
  if (o.edit == ExpertEdit::add) {
    const auto redrawn = static_cast<int64_t>(o.reinit * static_cast<double>(m.moe.intermediate_size));
    if (o.reinit > 0 && redrawn == 0)
      refuse(path, fmt::format("--reinit {}: is less than one of the {} neurons of an expert", o.reinit,
                               m.moe.intermediate_size));
    if (o.copies < 2 || !(o.reinit >= 0 && o.reinit <= 1))
      refuse(path,
             fmt::format(
                 "--copies {} --reinit {}: expected at least 2 copies, and a share of neurons from 0 to 1",
                 o.copies, o.reinit));
    if (m.moe.selection != Selection::top_k)
      refuse(path,
             fmt::format(
                 "has model.moe.router.selection: {}, and only with top_k a token takes all copies of an "
                 "expert, or none",
                 to_string(m.moe.selection)));
    return;
  }
  const auto least = std::max<int64_t>(1, m.moe.top_k);
  if (o.experts < least || o.experts >= m.moe.num_experts)
    refuse(path,
           fmt::format(
               "--keep {}: the model has {} experts in a layer, and a token chooses {}; nearest valid "
               "value: {}",
               o.experts, m.moe.num_experts, m.moe.top_k, o.experts < least ? least : m.moe.num_experts - 1));
}

void change_model(Recipe& recipe, const EditExpertsOptions& o) {
  auto& moe = recipe.model.moe;
  if (o.edit == ExpertEdit::add) {
    moe.num_experts *= o.copies, moe.top_k *= o.copies;
    // Copies share the score of a softmax, and a sum of scores; sigmoids alone they do not.
    if (moe.score == RouterScore::sigmoid && !moe.norm_topk_prob)
      moe.routed_scaling_factor /= static_cast<double>(o.copies);
  } else {
    moe.num_experts = o.experts;
  }
  if (moe.num_experts % recipe.parallel.expert != 0) recipe.parallel = {};  // weights do not depend on it
}

}  // namespace

EditExpertsReport edit_experts(const EditExpertsOptions& o) {
  EditExpertsReport report;
  OldCheckpoint old(o.checkpoint, report.notes);
  CheckpointReader* const reader = &old.reader();
  Recipe recipe = old.recipe();
  const ModelConfig model = recipe.model;
  check_options(o, reader->path(), model);
  change_model(recipe, o);
  report.step = reader->info().step;
  report.settings = changed_settings(model, recipe.model);
  CheckpointInfo info = info_of_weights(recipe, reader->info().seed, o.made);  // before a byte is written
  ExpertEditing editing(*reader, model, o);
  editing.choose(report);
  std::vector<WrittenTensor> tensors;
  for (const auto& [name, t] : reader->tensors()) {
    if (name.starts_with("optimizer/")) {
      ++report.states_left_out;
      continue;
    }
    report.parameters_before += t.shape.elements();
    if (!editing.add(name, layer_of(model, name), tensors))
      tensors.push_back(copied_tensor(*reader, name, name));
  }
  for (const WrittenTensor& t : tensors) report.parameters += t.shape.elements();
  write_weights(o.made, tensors, std::move(info), o.progress);
  report.checkpoint = o.made;
  return report;
}

}  // namespace ltrain
