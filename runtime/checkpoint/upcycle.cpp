#include "runtime/checkpoint/upcycle.h"

#include <algorithm>

#include "kernels/elementwise/tensor_ops.h"
#include "kernels/tensor/rng.h"
#include "models/moe/moe_layer.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/tensor_reader.h"

namespace ltrain {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Settings that a dense model shares with a MoE model of the same shape. MoE families without biases of
/// attention lack their key.
Settings shared_settings(const Settings& all) {
  Settings kept;
  for (const auto& [key, value] : all)
    if (key != "architecture" && !key.starts_with("moe.") && !(key == "attention_bias" && value == "false"))
      kept.push_back({key, value});
  return kept;
}

std::string setting(const Settings& all, const std::string& key, const std::string& otherwise) {
  for (const auto& [name, value] : all)
    if (name == key) return value;
  return otherwise;
}

/// Kind of MoE parameter; none: the dense model has a parameter of this name.
enum class Part { none, router, gate_up, down };

struct Place {
  Part part = Part::none;
  std::string dense;  // prefix of the dense feed-forward: "model.layers.3.mlp."
};

Place place_of(const std::string& name, const ModelConfig& m) {
  for (int64_t i = 0; i < m.num_hidden_layers; ++i) {
    if (!m.moe.in_layer(i)) continue;
    const std::string prefix = moe_prefix(m, i) + ".",
                      dense = m.names().layer(i) + "." + m.names().feed_forward + ".";
    if (name == prefix + "gate.weight") return {Part::router, dense};
    if (name == prefix + "experts.gate_up_proj") return {Part::gate_up, dense};
    if (name == prefix + "experts.down_proj") return {Part::down, dense};
  }
  return {};
}

/// Reads a slice of stacked experts, matrix by matrix. This rank has a box of rows and columns of each. Gates
/// and ups are (experts, 2, width, hidden), downs (experts, hidden, width).
void read_experts(TensorReader& tensors, const ParameterNames& names, const Place& place, int64_t shards,
                  const Slice& slice, const Tensor& to) {
  const Shape &global = slice.global, &offset = slice.offset, &extent = slice.extent;
  const int r = global.rank - 2, c = global.rank - 1;
  const bool gate_up = place.part == Part::gate_up;
  const int64_t rows = gate_up ? shards : 1, columns = gate_up ? 1 : shards,
                matrices = gate_up ? extent[1] : 1;
  const int64_t each = extent[r] * extent[c], end = slice.begin + slice.elements();
  for (int64_t at = slice.begin; at < end;) {
    const int64_t index = at / each, stop = std::min(end, (index + 1) * each);
    const int64_t shard = (offset[0] + index / matrices) % shards;
    const Slice matrix = Slice::box(
        {global[r] * rows, global[c] * columns},
        {offset[r] + (gate_up ? shard * global[r] : 0), offset[c] + (gate_up ? 0 : shard * global[c])},
        {extent[r], extent[c]});
    const std::string& part = !gate_up                                   ? names.down
                              : (offset[1] + index % extent[1]) % 2 == 0 ? names.gate
                                                                         : names.up;
    tensors.read(place.dense + part + ".weight", matrix.range(at - index * each, stop - index * each),
                 to.flat(at - slice.begin, {stop - at}));
    at = stop;
  }
}

/// Gives each row of a router the initial values of the first of its group of `shards` rows.
void group_rows(Stream& s, const ParameterSpec& spec, int64_t shards, uint64_t seed,
                const OwnedPiece& piece) {
  const int64_t columns = spec.slice.global[1];
  Runs runs(piece.slice);
  for (Run run = runs.next(); run.count > 0; run = runs.next())
    for (int64_t done = 0; done < run.count;) {
      const int64_t at = run.global + done, row = at / columns;
      const int64_t count = std::min(run.count - done, (row + 1) * columns - at);
      fill_normal(s, piece.master.flat(run.local + done, {count}), seed, hash_name(spec.name),
                  at - row % shards * columns, 0.0, spec.std);
      done += count;
    }
}

}  // namespace

int64_t feed_forward_shards(const ModelConfig& model) {
  return model.intermediate_size / model.moe.intermediate_size;
}

std::unique_ptr<CheckpointReader> open_dense(const Recipe& recipe, bool verify_hashes, Communicator& control,
                                             Stream& stream, std::vector<std::string>& notes) {
  const std::string& path = recipe.checkpoint.upcycle.value();
  auto reader = CheckpointReader::open_at(path, "checkpoint.upcycle", verify_hashes, control, stream, notes);
  const Settings model = reader->info().model;
  const std::string experts = setting(model, "moe.num_experts", "0"),
                    architecture = setting(model, "architecture", "an unknown architecture");
  const Family* family = find_family(architecture);
  if (experts != "0" || !family || family->traits != recipe.model.family->traits)
    fail(ExitCode::usage,
         "checkpoint.upcycle = {}: {} is of {} with {} experts; expected a dense model of {}; "
         "checkpoint.resume goes on from an MoE model",
         path, reader->path(), architecture, experts, dense_families(*recipe.model.family));
  if (const std::string differs =
          model_mismatch(shared_settings(model), shared_settings(model_settings(recipe.model)));
      !differs.empty())
    fail(ExitCode::usage, "checkpoint.upcycle = {}: {} is of another shape: {}; make the recipe agree", path,
         reader->path(), differs);
  notes.push_back(fmt::format("an MoE model of {} experts begins with the weights of {}, step {}",
                              recipe.model.moe.num_experts, reader->path(), reader->info().step));
  return reader;
}

void load_dense(CheckpointReader& dense, const ModelConfig& m, uint64_t seed, ParameterStore& parameters) {
  Stream& stream = parameters.stream();
  TensorReader tensors(dense, stream);
  const int64_t shards = feed_forward_shards(m);
  for (const OwnedPiece& piece : parameters.stored_pieces()) {
    const std::string& name = parameters.spec(piece.id).name;
    const Place place = place_of(name, m);
    if (place.part == Part::none) {
      tensors.read(name, piece.slice, piece.master);
    } else if (place.part != Part::router) {
      read_experts(tensors, m.names(), place, shards, piece.slice, piece.master);
      if (place.part == Part::down && shards > 1) scale_by(stream, piece.master, static_cast<double>(shards));
    } else if (shards > 1) {
      group_rows(stream, parameters.spec(piece.id), shards, seed, piece);
    }
  }
  parameters.publish_loaded();
  parameters.start_average();
}

}  // namespace ltrain
