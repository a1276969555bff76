#include "runtime/weights/hf_folder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/json/json.h"
#include "base/printable.h"
#include "models/decoder/decoder.h"
#include "models/moe/moe_layer.h"
#include "parallel/mesh/groups.h"
#include "parallel/zero/parameter_store.h"
#include "runtime/checkpoint/convert_elements.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/store.h"
#include "runtime/files/strict_json.h"

namespace ltrain {
namespace {

using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kSeqLength = 2048;
constexpr int64_t kMaxIndexBytes = 64 << 20;

std::string shown(const std::string& name) { return printable(name, 120); }

/// "a, b, c, and 7 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) text += (i ? ", " : "") + shown(names[i]);
  return names.size() <= kMost ? text : text + fmt::format(", and {} more", names.size() - kMost);
}

/// Returns whether `name` is a plain file next to the index: no path, not hidden.
bool plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && !name.starts_with(".") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// File of each tensor from the index.
std::map<std::string, std::string> read_index(const std::string& path) {
  std::string error;
  const json root = data::parse_strict(read_text_file(path, kMaxIndexBytes), 8, error);
  if (!error.empty()) fail(ExitCode::storage, "{}: {}", path, error);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
    fail(ExitCode::storage, "{}: has no object weight_map, which names the file of each tensor", path);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    if (!file.is_string() || !plain_name(file))
      fail(ExitCode::storage,
           "{}: weight_map[\"{}\"] is {}: it needs the name of a .safetensors file of this folder", path,
           shown(tensor), shown(file.dump(-1, ' ', false, json::error_handler_t::replace)));
    files[tensor] = file;
  }
  return files;
}

}  // namespace

bool is_hf_folder(const std::string& path) {
  return path_exists(path + "/config.json") && !path_exists(path + "/" + kManifestFile);
}

HfFolder open_hf_folder(const std::string& path, const std::string& key) {
  HfFolder folder;
  folder.path = path;
  std::map<std::string, std::string> index;
  if (path_exists(path + "/" + kSingle)) {
    folder.files = {kSingle};
    if (path_exists(path + "/" + kIndex))
      folder.notes.push_back(fmt::format(
          "{}: {} is read and {} beside it is not, as transformers does: remove the one that is out of date",
          path, kSingle, kIndex));
  } else if (path_exists(path + "/" + kIndex)) {
    index = read_index(path + "/" + kIndex);
    std::set<std::string> files;
    for (const auto& [tensor, file] : index) files.insert(file);
    folder.files.assign(files.begin(), files.end());
  } else {
    const bool pickled =
        path_exists(path + "/pytorch_model.bin") || path_exists(path + "/pytorch_model.bin.index.json");
    fail(ExitCode::storage, "{} = {}: has neither {} nor {}{}", key, path, kSingle, kIndex,
         pickled ? "; pytorch_model.bin holds Python objects and is not read: save it with transformers' "
                   "save_pretrained, which writes safetensors"
                 : "; for the shape alone, with weights from the seed, name its config.json");
  }
  for (size_t i = 0; i < folder.files.size(); ++i) {
    const SafetensorsFile file(path + "/" + folder.files[i]);
    for (const SafetensorsEntry& e : file.entries()) {
      if (!index.empty()) {
        const auto at = index.find(e.name);
        if (at == index.end() || at->second != folder.files[i])
          fail(ExitCode::storage, "{}: has tensor \"{}\", which {} {}", file.path(), shown(e.name), kIndex,
               at == index.end() ? "does not name" : "has in " + at->second);
      }
      folder.tensors[e.name] = {static_cast<int>(i), e.dtype, e.shape};
    }
  }
  for (const auto& [tensor, file] : index)
    if (!folder.tensors.count(tensor))
      fail(ExitCode::storage, "{}/{}: has no tensor \"{}\", which {} has there", path, file, shown(tensor),
           kIndex);
  return folder;
}

Recipe hf_recipe(const std::string& path, int64_t modules, const std::vector<std::string>& ignore) {
  std::vector<std::string> settings{"model.from=" + path, "data.seq_length=1"};
  if (modules > 0) settings.push_back(fmt::format("model.num_nextn_predict_layers={}", modules));
  if (!ignore.empty()) settings.push_back("model.from_ignore=" + json(ignore).dump());
  Recipe recipe = parse_recipe("{}", path, settings);
  recipe.data.seq_length = std::min(recipe.model.max_position_embeddings, kSeqLength);
  return recipe;
}

int64_t layer_of(const ModelConfig& model, const std::string& name) {
  // Files saved from a model without its output layer lack the prefix "model.".
  const std::string& layers = model.names().layers;
  for (const std::string& prefix : {layers + ".", layers.substr(layers.find('.') + 1) + "."}) {
    int64_t layer = -1;
    if (!name.starts_with(prefix)) continue;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
    return layer;
  }
  return -1;
}

int64_t modules_in(const HfFolder& folder, const ModelConfig& model) {
  if (!model.traits().multi_token_prediction) return 0;
  int64_t last = model.num_hidden_layers - 1;
  for (const auto& [name, t] : folder.tensors) last = std::max(last, layer_of(model, name));
  return last + 1 - model.num_hidden_layers;
}

std::vector<std::pair<std::string, std::string>> module_copies(const ModelConfig& model) {
  const ParameterNames& n = model.names();
  std::vector<std::pair<std::string, std::string>> copies;
  for (int64_t i = model.num_hidden_layers; i < model.all_layers(); ++i) {
    const std::string layer = n.layer(i) + ".";
    copies.emplace_back(layer + n.mtp_tokens_copy + ".weight", n.tokens + ".weight");
    copies.emplace_back(layer + n.mtp_output_copy + ".weight",
                        (model.tie_word_embeddings ? n.tokens : n.output) + ".weight");
  }
  return copies;
}

namespace {

/// Returns whether two tensors of one shape have the same values. -0 equals 0, and NaN equals NaN.
bool same_values(PieceReader& reader, const std::string& a, const std::string& b) {
  constexpr int64_t kMost = 1 << 20;  // elements per block
  const Shape& shape = reader.tensors().at(a).shape;
  reader.take_any_float();
  const int64_t block = std::min(kMost, shape.elements());
  std::vector<double> x(static_cast<size_t>(block)), y(x.size());
  for (int64_t at = 0; at < shape.elements(); at += block) {
    const int64_t end = std::min(shape.elements(), at + block);
    const Slice part = Slice::whole(shape).range(at, end);
    reader.read(a, DType::f64, part, x.data());
    reader.read(b, DType::f64, part, y.data());
    const auto same = [](double p, double q) { return p == q || (std::isnan(p) && std::isnan(q)); };
    if (!std::equal(x.begin(), x.begin() + (end - at), y.begin(), same)) return false;
  }
  return true;
}

}  // namespace

void check_copies(const HfFolder& folder, const ModelConfig& model) {
  const Shape shape{model.vocab_size, model.hidden_size};
  for (const auto& [copy, own] : module_copies(model)) {
    const auto c = folder.tensors.find(copy), o = folder.tensors.find(own);
    if (c == folder.tensors.end() || o == folder.tensors.end()) continue;
    const auto refuse = [&, &copy = copy, &own = own](const std::string& how) {
      fail(ExitCode::usage,
           "{}: {} is another than {}{}: multi-token prediction has the embedding and the output layer of "
           "the model itself, as DeepSeek-V3 does",
           folder.path, shown(copy), shown(own), how);
    };
    const auto dtype = dtype_from_safetensors(c->second.dtype);
    if (!dtype || c->second.dtype != o->second.dtype || c->second.shape != dims_of(shape))
      refuse(fmt::format(" ({} beside {})", c->second.dtype, o->second.dtype));
    std::map<std::string, TensorParts> both;
    for (const auto& [name, t] : {*c, *o}) {
      both[name].dtype = *dtype;
      both[name].shape = shape;
      both[name].pieces = {{t.file, name, Slice::whole(shape), {}}};
    }
    PieceReader reader(folder.path, folder.files, both);
    if (!same_values(reader, copy, own)) refuse("");
  }
}

static std::vector<std::pair<std::string, Shape>> shapes_of(const ModelConfig& model, bool adapters) {
  const GroupSet one;
  ParameterStore parameters;
  const Decoder decoder(model, parameters, one.groups(), {});
  std::vector<std::pair<std::string, Shape>> shapes;
  std::set<std::string> seen;
  for (int id = 0; id < parameters.count(); ++id)  // queries, keys and values may be parts of one tensor
    if (const std::string& name = parameters.spec(id).name;
        parameters.spec(id).adapter == adapters && seen.insert(name).second)
      shapes.emplace_back(name, parameters.spec(id).slice.global);
  return shapes;
}

std::vector<std::pair<std::string, Shape>> parameter_shapes(const ModelConfig& model) {
  return shapes_of(model, false);
}

std::vector<std::pair<std::string, Shape>> adapter_shapes(const ModelConfig& model) {
  return shapes_of(model, true);
}

std::vector<std::pair<std::string, Shape>> buffer_shapes(const ModelConfig& model) {
  std::vector<std::pair<std::string, Shape>> shapes;
  if (!model.has_correction_bias()) return shapes;
  for (int64_t i = 0; i < model.all_layers(); ++i)
    if (model.has_experts(i))
      shapes.emplace_back(correction_bias_name(model, i), Shape{model.moe.router_outputs()});
  return shapes;
}

std::vector<int64_t> stacked_shape(const Shape& s, bool transposed) {
  if (!transposed) return {s[0], s[1] * s[2]};
  return s.rank == 4 ? std::vector<int64_t>{s[0], s[3], s[1] * s[2]} : std::vector<int64_t>{s[0], s[2], s[1]};
}

Slice expert_slice(const Shape& stack, const TensorName& matrix) {
  Shape offset = stack, extent = stack;
  for (int d = 0; d < stack.rank; ++d) offset.dims[d] = 0;
  offset.dims[0] = matrix.expert;
  extent.dims[0] = 1;
  if (stack.rank == 4 || (matrix.stacked && !matrix.transposed)) {  // gate and up
    offset.dims[1] = matrix.matrix;
    extent.dims[1] = 1;
  }
  return Slice::box(stack, offset, extent);
}

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Assembles parameters from a folder's tensors.
class Match {
 public:
  Match(const HfFolder& folder, const ModelConfig& model) : folder_(folder), model_(model) {
    // Files saved from a model without its output layer, and GPT-2's own files, lack the prefix "model.".
    const std::string& tokens = model.names().tokens;
    const std::string prefix = tokens.substr(0, tokens.find('.') + 1);
    const auto with = [&](const auto& t) { return t.first.starts_with(prefix); };
    if (std::none_of(folder.tensors.begin(), folder.tensors.end(), with)) prefix_ = prefix;
    for (const auto& [name, t] : folder.tensors) left_.insert(name);
    // A tied tensor may be saved under either of its names.
    if (model.tie_word_embeddings && !find(tokens_) && folder.tensors.count(output_))
      tokens_in_file_ = output_;
  }

  void add(const std::string& name, const Shape& shape) {
    // A causal model has none: it keeps its initial values.
    if (name == model_.score_name() && !find(name)) return;
    TensorParts parts;
    parts.shape = shape;
    dtype_.clear();
    const auto tensors = hf_tensors(*model_.family, name, model_.moe.num_experts);
    if (tensors.empty())
      return problems_.push_back(fmt::format(
          "{} has no name in a Hugging Face folder of {}: the recipe's model is not of that family alone",
          name, model_.family->name));
    if (const HfTensor* stack = find(name); stack && tensors[0].expert >= 0) {  // all experts in one tensor
      take(name, *stack, stacked(shape, stack->shape), {{Slice::whole(shape), {}}}, parts);
    } else {
      for (const TensorName& t : tensors) {
        if (t.stacked) {
          add_stack(t, shape, parts);
          continue;
        }
        const HfTensor* found = find(t.name);
        if (!found) {
          missing_.push_back(t.name);
          continue;
        }
        Slice slice = Slice::whole(shape);
        std::vector<int64_t> want = dims_of(shape);
        if (t.expert >= 0) {
          slice = expert_slice(shape, t);
          want = {shape[shape.rank - 2], shape[shape.rank - 1]};
        }
        FileOrder order;
        if (t.transposed) {
          order = {FileOrder::strided, 0, 1, want.at(0), want.at(0) * want.at(1), ""};
          std::swap(want.at(0), want.at(1));
        }
        take(t.name, *found, want, {{slice, order}}, parts);
      }
    }
    parts_[name] = std::move(parts);
  }

  std::map<std::string, TensorParts> finish(std::vector<std::string>& notes) {
    if (!tokens_in_file_.empty())
      notes.push_back(fmt::format("{}: {} is read as the embedding, {}, which is not there: they are tied",
                                  folder_.path, output_, tokens_));
    pass_over_tied_output(notes);
    if (model_.scores_texts && left_.erase(in_folder(output_)) > 0)
      notes.push_back(fmt::format("{}: {} is passed over: a reward model has scores instead of logits",
                                  folder_.path, output_));
    pass_over(notes);
    if (dequantized_ > 0)
      notes.push_back(
          fmt::format("{}: {} tensors are MXFP4, and are read as the bf16 values that they stand for",
                      folder_.path, dequantized_));
    if (fp8_ > 0)
      notes.push_back(
          fmt::format("{}: weights in FP8 with factors of blocks ({} of the tensors) are read as bf16",
                      folder_.path, fp8_));
    if (!missing_.empty())
      problems_.push_back(fmt::format("{} tensor{} of the model {} not there: {}", missing_.size(),
                                      missing_.size() == 1 ? "" : "s", missing_.size() == 1 ? "is" : "are",
                                      some_of(missing_)));
    if (!left_.empty())
      problems_.push_back(fmt::format("{} tensor{} have no place in the recipe's model: {}", left_.size(),
                                      left_.size() == 1 ? "" : "s", some_of({left_.begin(), left_.end()})));
    if (problems_.empty()) return std::move(parts_);
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(problems_.size(), 5); ++i) text += "\n  " + problems_[i];
    fail(ExitCode::usage,
         "{}: are not weights of the recipe's model ({}):{}\nThe model.* keys must be those of its "
         "config.json: model.from: {} takes them all",
         folder_.path, model_.family->name, text, folder_.path);
  }

 private:
  const HfTensor* find(const std::string& name) const {
    const auto at = folder_.tensors.find(in_folder(name));
    return at == folder_.tensors.end() ? nullptr : &at->second;
  }
  std::string in_folder(const std::string& name) const {
    if (!tokens_in_file_.empty() && name == tokens_) return tokens_in_file_;
    return !prefix_.empty() && name.starts_with(prefix_) ? name.substr(prefix_.size()) : name;
  }

  /// Accepts (experts, 2 F, H) in a file for (experts, 2, F, H) in memory.
  static std::vector<int64_t> stacked(const Shape& shape, const std::vector<int64_t>& in_file) {
    if (shape.rank == 4 && in_file.size() == 3) return {shape[0], shape[1] * shape[2], shape[3]};
    return dims_of(shape);
  }

  struct Part {
    Slice slice;
    FileOrder order;
  };

  /// Adds a tensor of all experts in the layout of TensorName::stacked, or in MXFP4 blocks.
  void add_stack(const TensorName& t, const Shape& shape, TensorParts& parts) {
    const int64_t experts = shape[0], matrices = shape.rank == (t.transposed ? 4 : 3) ? 2 : 1,
                  rows = t.transposed ? shape[shape.rank - 2] : 1, columns = shape[shape.rank - 1],
                  each = matrices * rows * columns, all = experts * each;
    const HfTensor* whole = find(t.name);
    const HfTensor* blocks = whole || !t.transposed ? nullptr : find(t.name + "_blocks");
    if (!whole && !blocks) return missing_.push_back(t.name);
    std::vector<Part> pieces;
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t m = 0; m < matrices; ++m) {
        FileOrder order;
        if (blocks)
          order = {
              FileOrder::mxfp4, e * matrices * rows + m, matrices, 0, all, in_folder(t.name + "_scales")};
        else if (t.transposed)
          order = {FileOrder::strided, e * each + m, matrices, matrices * rows, all, ""};
        else
          order = {FileOrder::strided, e * each + m, each, matrices, all, ""};
        TensorName place = t;
        place.expert = e;
        place.matrix = m;
        pieces.push_back({expert_slice(shape, place), order});
      }
    if (blocks && columns % 32 != 0)
      return problems_.push_back(
          fmt::format("{}: MXFP4 has blocks of 32, and rows here are of {}", shown(t.name), columns));
    if (blocks) return take_blocks(t.name, *blocks, {experts, matrices * rows, columns / 32}, pieces, parts);
    take(t.name, *whole, stacked_shape(shape, t.transposed), pieces, parts);
  }

  /// `want`: shape of the scales, one per block of 32 columns.
  void take_blocks(const std::string& name, const HfTensor& blocks, std::vector<int64_t> want,
                   const std::vector<Part>& pieces, TensorParts& parts) {
    const HfTensor* scales = find(name + "_scales");
    for (const char* end : {"_blocks", "_scales"}) left_.erase(in_folder(name + end));
    if (!scales) return missing_.push_back(name + "_scales");
    for (const auto& [end, t] : {std::pair{"_blocks", &blocks}, {"_scales", scales}}) {
      std::vector<int64_t> shape = want;
      if (t == &blocks) shape.push_back(16);
      if (t->dtype != "U8" || t->shape != shape)
        return problems_.push_back(
            fmt::format("{}{} is {} {}, and MXFP4 weights of the recipe's model are U8 {}", shown(name), end,
                        t->dtype, shape_text(t->shape), shape_text(shape)));
    }
    parts.dtype = DType::bf16;
    for (Part p : pieces) {
      p.order.scales_file = scales->file;
      parts.pieces.push_back({blocks.file, in_folder(name + "_blocks"), p.slice, p.order});
    }
    ++dequantized_;
  }

  /// Adds an e4m3 matrix, the format of DeepSeek-V3.
  void take_fp8(const std::string& name, const HfTensor& t, const std::vector<int64_t>& want, Part piece,
                TensorParts& parts) {
    const std::string scales_name = name + "_scale_inv";
    const HfTensor* scales = find(scales_name);
    left_.erase(in_folder(scales_name));
    if (!scales) return missing_.push_back(scales_name);
    const auto blocks = [](int64_t n) { return (n + FileOrder::kFp8Block - 1) / FileOrder::kFp8Block; };
    if (t.shape != want || want.size() != 2 || scales->dtype != "F32" ||
        scales->shape != std::vector<int64_t>{blocks(want[0]), blocks(want[1])})
      return problems_.push_back(fmt::format(
          "{} is F8_E4M3 {} with {} {} of factors; the recipe's model has {}, with an F32 factor for each "
          "block of 128 by 128",
          shown(name), shape_text(t.shape), scales->dtype, shape_text(scales->shape), shape_text(want)));
    if (!dtype_.empty() && dtype_ != t.dtype)
      return problems_.push_back(fmt::format("{} of {} is {}, and others of its experts are {}", shown(name),
                                             folder_.files[static_cast<size_t>(t.file)], t.dtype, dtype_));
    dtype_ = t.dtype;
    parts.dtype = DType::bf16;
    piece.order = {FileOrder::fp8, 0, 0, 0, want[0] * want[1], in_folder(scales_name), scales->file};
    parts.pieces.push_back({t.file, in_folder(name), piece.slice, piece.order});
    ++fp8_;
  }

  void take(const std::string& name, const HfTensor& t, const std::vector<int64_t>& want,
            const std::vector<Part>& pieces, TensorParts& parts) {
    left_.erase(in_folder(name));
    if (t.dtype == "F8_E4M3" && pieces.size() == 1 && pieces[0].order.kind == FileOrder::rows)
      return take_fp8(name, t, want, pieces[0], parts);
    const std::string file = folder_.files[t.file], key = in_folder(name);
    const auto dtype = dtype_from_safetensors(t.dtype);
    if (!dtype || !is_floating(*dtype))
      return problems_.push_back(
          fmt::format("{} of {} is {}: F32, BF16, F16 and F64 are read; import what it was quantized from",
                      shown(name), file, t.dtype));
    if (t.shape != want)
      return problems_.push_back(fmt::format("{} of {} is {}, and the recipe's model has {}", shown(name),
                                             file, shape_text(t.shape), shape_text(want)));
    if (!dtype_.empty() && dtype_ != t.dtype)
      return problems_.push_back(fmt::format("{} of {} is {}, and others of its experts are {}", shown(name),
                                             file, t.dtype, dtype_));
    dtype_ = t.dtype;
    parts.dtype = *dtype;
    for (const Part& p : pieces) parts.pieces.push_back({t.file, key, p.slice, p.order});
  }

  /// Skips the output layer of a tied model if it equals the embedding. Throws Error (usage) if it differs.
  void pass_over_tied_output(std::vector<std::string>& notes) {
    if (!model_.tie_word_embeddings || !left_.count(output_) || !problems_.empty() || !missing_.empty())
      return;
    add(output_, parts_.at(tokens_).shape);
    if (!problems_.empty()) return;
    const auto output = parts_.extract(output_);
    PieceReader both(folder_.path, folder_.files,
                     {{output_, output.mapped()}, {tokens_, parts_.at(tokens_)}});
    if (!same_values(both, output_, tokens_))
      fail(ExitCode::usage,
           "{}: {} differs from {}, and with model.tie_word_embeddings: true the output layer would be lost. "
           "Expected equal tensors, one of the two, or model.tie_word_embeddings: false (without a recipe: "
           "tie_word_embeddings of {}/config.json), which uses both, as transformers 5 does",
           folder_.path, output_, tokens_, folder_.path);
    notes.push_back(fmt::format("{}: {} is passed over: it equals {}, to which it is tied", folder_.path,
                                output_, tokens_));
  }

  /// Skips tensors that are not parameters: computed masks and angles, modules that this run does not have,
  /// and copies.
  void pass_over(std::vector<std::string>& notes) {
    int64_t buffers = 0, behind = 0, copies = 0;
    std::set<std::string> copied;
    for (const auto& [copy, own] : module_copies(model_)) copied.insert(in_folder(copy));
    for (auto it = left_.begin(); it != left_.end();) {
      bool buffer = it->ends_with(".rotary_emb.inv_freq");
      for (const std::string& end : model_.family->hf_layout.buffers) buffer = buffer || it->ends_with(end);
      const bool copy = copied.count(*it) > 0;
      const bool module =
          model_.traits().multi_token_prediction && layer_of(model_, *it) >= model_.all_layers();
      buffers += buffer;
      behind += module;
      copies += copy;
      it = buffer || module || copy ? left_.erase(it) : std::next(it);
    }
    if (behind > 0)
      notes.push_back(fmt::format(
          "{}: {} tensors of modules that predict more than the next token are passed over, and an export of "
          "this run will have none; model.num_nextn_predict_layers: {} takes them",
          folder_.path, behind, modules_in(folder_, model_)));
    if (copies > 0)
      notes.push_back(fmt::format(
          "{}: {} tensors are passed over: they are the embedding and the output layer once more, "
          "which modules that predict more tokens share with the model",
          folder_.path, copies));
    if (buffers > 0)
      notes.push_back(fmt::format(
          "{}: {} tensors that are computed and not trained (masks, angles of rotation) are passed over",
          folder_.path, buffers));
  }

  const HfFolder& folder_;
  const ModelConfig& model_;
  const std::string tokens_ = model_.names().tokens + ".weight", output_ = model_.names().output + ".weight";
  std::string prefix_;          ///< prefix that names in the folder lack
  std::string tokens_in_file_;  ///< set if the embedding is stored under the name of the output layer
  std::string dtype_;           ///< dtype of the parameter being assembled
  int64_t dequantized_ = 0, fp8_ = 0;
  std::set<std::string> left_;
  std::vector<std::string> missing_, problems_;
  std::map<std::string, TensorParts> parts_;
};

}  // namespace

std::unique_ptr<PieceReader> hf_weights(const HfFolder& folder, const ModelConfig& model,
                                        std::vector<std::string>& notes) {
  notes.insert(notes.end(), folder.notes.begin(), folder.notes.end());
  Match match(folder, model);
  for (const auto& shapes : {parameter_shapes(model), buffer_shapes(model)})
    for (const auto& [name, shape] : shapes) match.add(name, shape);
  return std::make_unique<PieceReader>(folder.path, folder.files, match.finish(notes));
}

}  // namespace ltrain
