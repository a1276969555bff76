// Folders of Hugging Face of random weights, written, read, imported and exported.
#pragma once
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "base/json/json.h"
#include "parallel/mesh/groups.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/files/write_file.h"
#include "runtime/recipe/recipe.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/import.h"

namespace ltrain::test {

using nlohmann::json;

inline const json& golden() {
  static const json all = [] {
    std::ifstream in(std::string(LTRAIN_SOURCE_DIR) + "/tests/golden/hf_folders.json");
    return json::parse(in);
  }();
  return all;
}

/// A tensor: type, shape, bytes.
struct Made {
  DType dtype = DType::bf16;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
  bool operator==(const Made&) const = default;
};
using Tensors = std::map<std::string, Made>;

/// A tensor of zeros in bf16.
inline Made zeros(const std::vector<int64_t>& shape) {
  int64_t n = dtype_size(DType::bf16);
  for (const int64_t d : shape) n *= d;
  return {DType::bf16, shape, std::vector<char>(static_cast<size_t>(n))};
}

/// A tensor of random bits of a type.
inline Made random_tensor(const std::string& dtype, const std::vector<int64_t>& shape, std::mt19937& random) {
  Made m{*dtype_from_safetensors(dtype), shape, {}};
  int64_t n = dtype_size(m.dtype);
  for (const int64_t d : shape) n *= d;
  m.bytes.resize(static_cast<size_t>(n));
  // Finite values: a sign, an exponent near 0 and any fraction.
  for (char& b : m.bytes) b = static_cast<char>(random());
  const int64_t size = dtype_size(m.dtype);
  for (size_t i = static_cast<size_t>(size - 1); i < m.bytes.size(); i += static_cast<size_t>(size))
    m.bytes[i] = static_cast<char>((m.bytes[i] & 0x81) | 0x3e);
  return m;
}

inline Tensors random_tensors(const json& model, unsigned seed = 1) {
  std::mt19937 random(seed);
  Tensors all;
  for (const auto& [name, t] : model["tensors"].items())
    all[name] = random_tensor(t[0], t[1].get<std::vector<int64_t>>(), random);
  return all;
}

inline void write_tensors(const std::string& path, const Tensors& tensors) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, t] : tensors) items.push_back({name, t.dtype, t.shape, t.bytes.data()});
  NewFile file(path);
  write_safetensors(file, items);
}

inline void write_folder(const std::string& folder, const json& config, const Tensors& tensors) {
  make_folders(folder);
  write_file(folder + "/config.json", config.dump());
  write_tensors(folder + "/model.safetensors", tensors);
}

/// All tensors of a folder, whatever number of files it has.
inline Tensors read_tensors(const std::string& folder) {
  Tensors all;
  for (const std::string& name : list_folder(folder)) {
    if (!name.ends_with(".safetensors")) continue;
    const SafetensorsFile file(folder + "/" + name);
    for (const SafetensorsEntry& e : file.entries()) {
      Made m{*dtype_from_safetensors(e.dtype), e.shape,
             std::vector<char>(static_cast<size_t>(e.end - e.begin))};
      file.read(e, 0, e.end - e.begin, m.bytes.data());
      all[e.name] = std::move(m);
    }
  }
  return all;
}

inline json read_json(const std::string& path) {
  std::ifstream in(path);
  return json::parse(in);
}

/// All tensors of a checkpoint as doubles, their types, and its recipe.
struct WholeCheckpoint {
  std::map<std::string, std::vector<double>> tensors;
  std::map<std::string, DType> types;
  Recipe recipe;
};

inline WholeCheckpoint read_whole_checkpoint(const std::string& path) {
  std::vector<std::string> notes;
  const GroupSet alone;
  const auto stream = make_inline_stream("checkpoint");
  const auto reader =
      CheckpointReader::open_at(path, "test", true, alone.groups().world.communicator(), *stream, notes);
  reader->take_any_float();
  WholeCheckpoint r;
  for (const auto& [name, t] : reader->tensors()) {
    r.types[name] = t.dtype;
    r.tensors[name].resize(static_cast<size_t>(t.shape.elements()));
    reader->read(name, DType::f64, Slice::whole(t.shape), r.tensors[name].data());
  }
  r.recipe = parse_recipe(reader->info().recipe, path);
  return r;
}

inline Recipe recipe_of(const std::string& folder) {
  return parse_recipe("{}", "test", {"model.from=" + folder, "data.seq_length=16"});
}

/// The weights of a folder, in whatever float type they are asked for.
inline std::unique_ptr<PieceReader> open_weights(const std::string& folder, std::vector<std::string>& notes) {
  auto reader = hf_weights(open_hf_folder(folder, "test"), recipe_of(folder).model, notes);
  reader->take_any_float();
  return reader;
}

inline ExportReport export_to(const std::string& checkpoint, const std::string& folder,
                              const std::function<void(ExportOptions&)>& change = {}) {
  ExportOptions o;
  o.checkpoint = checkpoint;
  o.folder = folder;
  if (change) change(o);
  return export_checkpoint(o);
}

}  // namespace ltrain::test
