#include "runtime/weights/export.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/json/json.h"
#include "models/families/hf_tensors.h"
#include "models/moe/expert_adapters.h"
#include "parallel/mesh/groups.h"
#include "parallel/optim/optimizer.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/finite.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/program/quantized_matrices.h"
#include "runtime/recipe/recipe.h"
#include "runtime/tokenizer/formats/huggingface_tokenizer.h"
#include "runtime/tokenizer/tokenizer_kinds.h"
#include "runtime/weights/adapter_folder.h"
#include "runtime/weights/compressed_tensors.h"
#include "runtime/weights/hf_config.h"
#include "runtime/weights/hf_folder.h"
#include "runtime/weights/merged_reader.h"
#include "runtime/weights/new_folder.h"
#include "runtime/weights/stream_tensor.h"

namespace ltrain {
namespace {

using nlohmann::ordered_json;

/// Returns whether the checkpoint comes from `ltrain import`: step 0 and no optimizer. Its types are those of
/// the files.
bool is_imported(const CheckpointReader& reader) {
  return reader.info().step == 0 &&
         std::none_of(reader.tensors().begin(), reader.tensors().end(),
                      [](const auto& t) { return t.first.starts_with("optimizer/"); });
}

/// Matmul input type at the end of the run.
DType run_dtype(const Recipe& recipe) {
  switch (recipe.phases.empty() ? recipe.precision : recipe.phases.back().precision) {
    case Precision::fp32:
    case Precision::tf32:
      return DType::f32;
    case Precision::fp16:
      return DType::f16;
    default:
      return DType::bf16;
  }
}

/// A tensor of the folder, and the slice of the checkpoint that it holds.
struct Part {
  SafetensorsItem item;
  std::string source;
  Slice slice;
  bool transposed = false, stacked = false;  ///< fields of TensorName
  std::optional<CompressedPart> compressed;  ///< a tensor of a quantized matrix
};

/// Settings of the folder's quantized matrices, with the dtype of scales. Not on, if there are none.
QuantizationSettings quantization_of(const std::string& checkpoint, const Recipe& recipe,
                                     const ExportOptions& o) {
  QuantizationSettings q = recipe.quantization;
  if (o.masters && !q.on())
    fail(ExitCode::usage, "{}: --masters is for a run with quantization.weights, and this one has none",
         checkpoint);
  if (o.masters || !q.on()) return {};
  if (recipe.precision == Precision::fp64)
    fail(ExitCode::usage,
         "{}: has scales of fp64, which other programs do not read; give --masters to export "
         "the master weights",
         checkpoint);
  q.type = run_dtype(recipe);
  if (o.dtype && *o.dtype != *q.type)
    fail(
        ExitCode::usage,
        "--dtype: weights of {} are {} with scales of {}; leave --dtype out, or give --masters to export the "
        "master weights",
        checkpoint, q.weights, dtype_name(*q.type));
  return q;
}

[[noreturn]] void refuse_module(const std::string& checkpoint, const std::string& name,
                                const Family& family) {
  fail(ExitCode::usage,
       "{}: {} is not the weight of a Linear in Hugging Face's {}, and compressed-tensors has quantized "
       "weights of Linear alone; give --masters to export the master weights",
       checkpoint, name, family.name);
}

/// Adds the tensors that a quantized matrix of master weights `source` becomes.
void add_quantized(std::vector<Part>& parts, const QuantizationSettings& quantization,
                   const std::string& name, const std::string& source, const Shape& shape) {
  for (CompressedItem& c : compressed_items(quantization, name, shape))
    parts.push_back({.item = std::move(c.item),
                     .source = source,
                     .slice = Slice::whole(shape),
                     .transposed = false,
                     .stacked = false,
                     .compressed = c.part});
}

std::vector<Part> parts_of(const Recipe& recipe, const PieceReader& reader, bool imported,
                           const ExportOptions& o, const QuantizationSettings& quantization) {
  const ModelConfig& model = recipe.model;
  std::map<std::string, Shape> quantized;
  if (quantization.on()) quantized = quantized_matrices(recipe);
  std::vector<Part> parts;
  const auto add = [&](const std::string& name, const Shape& shape, bool trained) {
    const std::string source = o.average && trained ? fmt::format("optimizer/{}/{}", kAverage, name) : name;
    const auto at = reader.tensors().find(source);
    if (at == reader.tensors().end())
      fail(ExitCode::usage, "{}: has no {}{}", reader.path(), source,
           o.average ? "; averages of weights are kept by runs with train.ema_decay" : "");
    const DType stored = at->second.dtype;
    const DType dtype = !trained                             ? stored
                        : o.dtype                            ? *o.dtype
                        : dtype_size(stored) < 4 || imported ? stored
                                                             : run_dtype(recipe);
    const auto tensors = hf_tensors(*model.family, name, model.moe.num_experts);
    if (tensors.empty())
      fail(ExitCode::usage, "{}: {} has no name in Hugging Face's {}, which cannot hold this model",
           reader.path(), name, model.family->name);
    if (quantized.count(name)) {
      if (tensors.size() != 1 || tensors[0].transposed) refuse_module(reader.path(), name, *model.family);
      return add_quantized(parts, quantization, tensors[0].name, source, shape);
    }
    for (const TensorName& t : tensors) {
      Part p{.item = {.name = t.name, .dtype = dtype, .shape = dims_of(shape), .data = nullptr},
             .source = source,
             .slice = Slice::whole(shape),
             .transposed = t.transposed,
             .stacked = t.stacked,
             .compressed = {}};
      if (t.expert >= 0) {
        p.slice = expert_slice(shape, t);
        p.item.shape = {shape[shape.rank - 2], shape[shape.rank - 1]};
      }
      if (t.stacked)
        p.item.shape = stacked_shape(shape, t.transposed);
      else if (t.transposed)
        std::swap(p.item.shape.at(0), p.item.shape.at(1));
      parts.push_back(std::move(p));
    }
  };
  for (const auto& [name, shape] : parameter_shapes(model)) add(name, shape, true);
  for (const auto& [name, shape] : buffer_shapes(model)) add(name, shape, false);
  for (const auto& [copy, own] : module_copies(model)) {
    const auto of =
        std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.item.name == own; });
    LT_CHECK(of != parts.end(), "expected a tensor {} for its copy {}, got none", own, copy);
    Part p = *of;
    p.item.name = copy;
    parts.push_back(std::move(p));
  }
  return parts;
}

/// Refuses weights that overflow the folder's type.
[[noreturn]] void refuse_overflow(const std::string& checkpoint, const SafetensorsItem& item, DType stored,
                                  int64_t count) {
  const bool half = item.dtype == DType::f16;
  fail(ExitCode::usage,
       "{}: {}: {} of {} weights are {} here and not finite as {}, whose largest number is {}; nearest valid "
       "value: --dtype {}",
       checkpoint, item.name, count, item.bytes() / dtype_size(item.dtype), dtype_name(stored),
       dtype_name(item.dtype), half ? "65504" : "3.4e38", half ? "bf16" : "fp32");
}

/// Modules of matrices that are not quantized; others than Linear do no harm.
std::vector<std::string> other_modules(const Recipe& recipe, const std::vector<Part>& parts) {
  std::set<std::string> modules{recipe.model.names().output};
  for (const Part& p : parts)
    if (!p.compressed && p.item.shape.size() == 2 && p.item.name.ends_with(".weight"))
      modules.emplace(module_of(p.item.name));
  return {modules.begin(), modules.end()};
}

/// Groups the parts into files of up to `most` bytes, in order.
std::vector<std::vector<const Part*>> shards_of(const std::vector<Part>& parts, int64_t most) {
  std::vector<std::vector<const Part*>> shards(1);
  int64_t bytes = 0;
  for (const Part& p : parts) {
    if (!shards.back().empty() && bytes + p.item.bytes() > most) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += p.item.bytes();
    shards.back().push_back(&p);
  }
  return shards;
}

std::string shard_file(size_t index, size_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format("model-{:05d}-of-{:05d}.safetensors", index + 1, count);
}

/// Folder of the tokenizer of the run's data, else the folder that the run began with.
std::string tokenizer_folder(const Recipe& recipe, const std::string& begun_with) {
  if (!recipe.data.tokenizer.kind->folder) return begun_with;
  const std::filesystem::path path = *recipe.data.tokenizer.path;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) && path.filename() != "tokenizer.json" &&
      path.filename() != "tokenizer.model" && path.filename() != "tekken.json")
    return begun_with;  // readers do not find a file of another name
  return data::tokenizer_folder(path.string());
}

/// Copies the other files of a model.
std::vector<std::string> copy_tokenizer(const std::string& from, const std::string& to) {
  std::vector<std::string> copied;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
                           "merges.txt", "tokenizer.model", "tekken.json", "added_tokens.json",
                           "chat_template.jinja", "generation_config.json"}) {
    if (!path_exists(from + "/" + name)) continue;
    std::error_code error;
    std::filesystem::copy_file(from + "/" + name, to + "/" + name, error);
    if (error) fail(ExitCode::storage, "{}/{}: cannot be copied: {}", from, name, error.message());
    copied.push_back(name);
  }
  return copied;
}

void check_adapters(const std::string& checkpoint, const Recipe& recipe, const ExportOptions& o) {
  const bool has = recipe.model.lora.on();
  if (has && o.adapters == ExportAdapters::unset)
    fail(ExitCode::usage,
         "{}: has adapters (lora.r = {}); give --merge to add them to the weights, or --adapter to write "
         "them alone, "
         "as a folder of PEFT",
         checkpoint, recipe.model.lora.rank);
  if (!has && o.adapters != ExportAdapters::unset)
    fail(ExitCode::usage, "{}: has no adapters, and --{} is for a run with lora.r above 0", checkpoint,
         o.adapters == ExportAdapters::merge ? "merge" : "adapter");
  if (has && o.average)
    fail(ExitCode::usage, "{}: --ema: averages of adapters are not exported; leave --ema out", checkpoint);
}

/// Writes a file with the tensors of `parts`, and counts their bytes in the report. `all`: bytes of all
/// files. Returns the names in the order of the file.
std::vector<std::string> write_shard(const ReadSlice& read, const CheckpointReader& reader,
                                     const std::vector<const Part*>& parts, const std::string& path,
                                     const QuantizationSettings& quantization, const ExportOptions& o,
                                     int64_t all, ExportReport& report) {
  std::map<std::string, const Part*> by_name;
  std::vector<SafetensorsItem> items;
  for (const Part* p : parts) {
    by_name[p->item.name] = p;
    items.push_back(p->item);
  }
  std::vector<std::string> names;
  NewFile file(path);
  SafetensorsWriter writer(file, items);
  for (const SafetensorsItem& item : writer.items()) {
    const Part& p = *by_name.at(item.name);
    const DType stored = reader.tensors().at(p.source).dtype;
    int64_t infinite = 0;
    const WriteBytes write = [&](const void* data, int64_t bytes) {
      if (stored != item.dtype && !p.compressed)
        infinite += count_not_finite(item.dtype, data, bytes / dtype_size(item.dtype));
      writer.write(data, bytes);
      report.bytes += bytes;
      if (o.progress) o.progress(report.bytes, all);
    };
    if (p.compressed)
      stream_compressed(read, p.source, p.slice.global, quantization, *p.compressed, write);
    else if (p.stacked)
      stream_stack(read, p.source, item.dtype, p.slice.global, p.transposed, write);
    else
      stream_tensor(read, p.source, item.dtype, p.slice, p.transposed, write);
    if (infinite > 0) refuse_overflow(report.checkpoint, item, stored, infinite);
    names.push_back(item.name);
  }
  writer.finish();
  return names;
}

/// Copies the tokenizer, or notes that there is none, and makes sure of a generation_config.json.
void add_tokenizer_files(const std::string& tokenizer, const std::string& folder, ExportReport& report) {
  if (!tokenizer.empty() && path_exists(tokenizer))
    for (const std::string& name : copy_tokenizer(tokenizer, folder)) report.files.push_back(name);
  if (std::find(report.files.begin(), report.files.end(), "generation_config.json") == report.files.end()) {
    write_text_file(folder + "/generation_config.json", "{\n  \"_from_model_config\": true\n}\n");
    report.files.push_back("generation_config.json");
  }
  if (std::none_of(report.files.begin(), report.files.end(),
                   [](const std::string& f) { return f.starts_with("tokenizer"); }))
    report.notes.push_back("no tokenizer files: give their folder with --tokenizer");
}

}  // namespace

ExportReport export_checkpoint(const ExportOptions& o) {
  if (!path_exists(o.checkpoint)) fail(ExitCode::storage, "{}: there is no such checkpoint", o.checkpoint);
  const auto stream = make_inline_stream("export");
  const GroupSet one;
  ExportReport report;
  const auto reader = CheckpointReader::open_at(o.checkpoint, "the checkpoint", true,
                                                one.groups().world.communicator(), *stream, report.notes);
  reader->take_any_float();
  report.checkpoint = reader->path();
  report.step = reader->info().step;
  const Recipe recipe = parse_recipe(reader->info().recipe, reader->path() + " (recipe)");
  check_adapters(report.checkpoint, recipe, o);
  if (o.adapters == ExportAdapters::alone) {
    write_adapter_folder(*reader, recipe, recipe.checkpoint.load_path.value_or(""), o.folder, report);
    return report;
  }
  MergedReader merged(*reader, lora_of_stacks(recipe.model));
  const ReadSlice read = reads_of(merged);
  const QuantizationSettings quantization = quantization_of(report.checkpoint, recipe, o);
  const std::vector<Part> parts = parts_of(recipe, *reader, is_imported(*reader), o, quantization);
  report.dtype = parts.front().item.dtype;
  report.tensors = static_cast<int64_t>(parts.size());

  NewFolder folder(o.folder);
  const std::string begun_with = recipe.checkpoint.load_path.value_or("");
  write_text_file(
      folder.work() + "/config.json",
      hf_config_text(recipe, report.dtype, begun_with.empty() ? "" : begun_with + "/config.json"));
  check_hf_config(folder.work() + "/config.json", recipe);
  if (quantization.on()) {
    ordered_json config = ordered_json::parse(read_text_file(folder.work() + "/config.json", 1 << 20));
    std::filesystem::remove(folder.work() + "/config.json");  // read back without, and written with it
    config["quantization_config"] = compressed_config(quantization, other_modules(recipe, parts));
    write_text_file(folder.work() + "/config.json", config.dump(2) + "\n");
  }
  int64_t all = 0;
  for (const Part& p : parts) all += p.item.bytes();
  folder.need(all);
  const auto shards = shards_of(parts, o.shard_bytes);
  ordered_json map = ordered_json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_file(i, shards.size());
    for (const std::string& tensor :
         write_shard(read, *reader, shards[i], folder.work() + "/" + name, quantization, o, all, report))
      map[tensor] = name;
    report.files.push_back(name);
  }
  if (shards.size() > 1) {
    const ordered_json index{{"metadata", {{"total_size", all}}}, {"weight_map", map}};
    write_text_file(folder.work() + "/model.safetensors.index.json", index.dump(2) + "\n");
    report.files.push_back("model.safetensors.index.json");
  }
  report.files.push_back("config.json");
  add_tokenizer_files(!o.tokenizer.empty() ? o.tokenizer : tokenizer_folder(recipe, begun_with),
                      folder.work(), report);
  folder.commit();
  return report;
}

}  // namespace ltrain
