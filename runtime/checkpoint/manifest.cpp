#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/files/strict_json.h"

namespace ltrain {

namespace {

using nlohmann::json;

/// Reads JSON objects strictly: every key must be read and every value must have its type.
class Object {
 public:
  Object(const json& v, std::string where) : v_(v), where_(std::move(where)) {
    if (!v_.is_object()) bad("is not an object");
  }
  /// Fails if a key has not been read.
  void done() const {
    for (const auto& [key, unused] : v_.items())
      if (!taken_.count(key)) bad("has the unknown key \"" + printable(key, 60) + "\"");
  }
  bool has(const char* key) const { return v_.contains(key); }
  const json& get(const char* key) {
    auto it = v_.find(key);
    if (it == v_.end()) bad(std::string("lacks \"") + key + "\"");
    taken_.insert(key);
    return *it;
  }
  int64_t integer(const char* key, int64_t low = 0, int64_t high = INT64_MAX) {
    const json& v = get(key);
    if (!v.is_number_integer() ||
        (v.is_number_unsigned() && v.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) ||
        v.get<int64_t>() < low || v.get<int64_t>() > high)
      bad(fmt::format("\"{}\" is {}, not a whole number from {} to {}", key, v.dump().substr(0, 40), low,
                      high));
    return v.get<int64_t>();
  }
  /// A number of steps, samples or tokens.
  int64_t count(const char* key) { return integer(key, 0, kMaxCount); }
  /// A number. null stands for a value that is not finite.
  double number(const char* key) {
    const json& v = get(key);
    if (v.is_null()) return std::nan("");
    if (!v.is_number()) bad(std::string("\"") + key + "\" is not a number");
    return v.get<double>();
  }
  bool truth(const char* key) {
    const json& v = get(key);
    if (!v.is_boolean()) bad(std::string("\"") + key + "\" is not true or false");
    return v.get<bool>();
  }
  std::string text(const char* key) {
    const json& v = get(key);
    if (!v.is_string()) bad(std::string("\"") + key + "\" is not a text");
    return v.get<std::string>();
  }
  Shape shape(const char* key) {
    const json& v = get(key);
    if (!v.is_array() || v.size() > 5) bad(std::string("\"") + key + "\" is not a list of at most 5 dims");
    Shape s;
    for (const json& d : v) {
      if (!d.is_number_unsigned() || d.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        bad(std::string("\"") + key + "\" has a dim that is not a whole number");
      s.dims[s.rank++] = d.get<int64_t>();
    }
    return s;
  }
  [[noreturn]] void bad(const std::string& what) const { fail(ExitCode::storage, "{}: {}", where_, what); }

 private:
  const json& v_;
  std::string where_;
  std::set<std::string> taken_;
};

bool is_hash(const std::string& s) {
  return s.size() == 32 && s.find_first_not_of("0123456789abcdef") == std::string::npos;
}

json shape_json(const Shape& s) {
  json list = json::array();
  for (int i = 0; i < s.rank; ++i) list.push_back(s[i]);
  return list;
}

json number_json(double v) { return std::isfinite(v) ? json(v) : json(nullptr); }

json tensors_json(const std::map<std::string, TensorParts>& tensors) {
  json all = json::object();
  for (const auto& [name, t] : tensors) {
    json pieces = json::array();
    for (const Piece& p : t.pieces)
      pieces.push_back({{"file", p.file},
                        {"key", p.key},
                        {"offset", shape_json(p.slice.offset)},
                        {"extent", shape_json(p.slice.extent)},
                        {"begin", p.slice.begin},
                        {"end", p.slice.end}});
    all[name] = {{"dtype", safetensors_dtype(t.dtype)}, {"shape", shape_json(t.shape)}, {"pieces", pieces}};
  }
  return all;
}

std::map<std::string, TensorParts> read_tensors(const json& v, const std::string& where, int file_count) {
  if (!v.is_object()) fail(ExitCode::storage, "{}: \"tensors\" is not an object", where);
  std::map<std::string, TensorParts> tensors;
  for (const auto& [name, value] : v.items()) {
    const std::string at = where + ": tensor \"" + printable(name, 120) + "\"";
    Object o(value, at);
    TensorParts t;
    const std::string dtype = o.text("dtype");
    const auto known = dtype_from_safetensors(dtype);
    if (!known) o.bad("has the unknown dtype " + printable(dtype, 20));
    t.dtype = *known;
    t.shape = o.shape("shape");
    const json& pieces = o.get("pieces");
    if (!pieces.is_array()) o.bad("\"pieces\" is not a list");
    for (const json& piece : pieces) {
      Object p(piece, at);
      Piece out;
      out.file = static_cast<int>(std::min<int64_t>(p.integer("file"), INT32_MAX));
      if (out.file >= file_count) p.bad(fmt::format("lies in file number {} of {}", out.file, file_count));
      out.key = p.text("key");
      out.slice.global = t.shape;
      out.slice.offset = p.shape("offset");
      out.slice.extent = p.shape("extent");
      out.slice.begin = p.integer("begin");
      out.slice.end = p.integer("end");
      if (const std::string wrong = invalid_slice(out.slice); !wrong.empty())
        p.bad("has a bad piece: " + wrong);
      p.done();
      t.pieces.push_back(std::move(out));
    }
    o.done();
    tensors.emplace(name, std::move(t));
  }
  return tensors;
}

json parse(const std::string& text, const std::string& path) {
  std::string error;
  json v = data::parse_strict(text, 8, error);
  if (!error.empty()) fail(ExitCode::storage, "{}: {}", path, error);
  return v;
}

json sources_json(const std::vector<data::SourceIdentity>& list) {
  json sources = json::array();
  for (const data::SourceIdentity& s : list)
    sources.push_back({{"path", s.path},
                       {"weight", s.weight},
                       {"content", s.content},
                       {"tokens", s.tokens},
                       {"documents", s.documents}});
  return sources;
}

json identity_json(const data::DataIdentity& d) {
  json tokenizer{{"kind", d.tokenizer.kind},
                 {"hash", d.tokenizer.hash},
                 {"vocab_size", d.tokenizer.vocab_size},
                 {"eod", d.tokenizer.eod}};
  if (d.tokenizer.bos >= 0) tokenizer["bos"] = d.tokenizer.bos;
  json identity{{"sources", sources_json(d.sources)},
                {"tokenizer", std::move(tokenizer)},
                {"seq_length", d.seq_length},
                {"seed", d.seed},
                {"reset_attention_mask", d.reset_attention_mask},
                {"reset_position_ids", d.reset_position_ids},
                {"eod_mask_loss", d.eod_mask_loss}};
  if (d.packing != data::DataIdentity().packing) identity["packing"] = d.packing;
  if (d.shuffle_window > 0) identity["shuffle_window"] = d.shuffle_window;
  if (d.train_seq_length > 0) identity["train_seq_length"] = d.train_seq_length;
  for (const data::StageIdentity& stage : d.stages) {
    json one{{"first_sample", stage.first_sample}, {"sources", sources_json(stage.sources)}};
    if (stage.seq_length > 0) one["seq_length"] = stage.seq_length;
    identity["stages"].push_back(std::move(one));
  }
  return identity;
}

std::vector<data::SourceIdentity> read_sources(const json& sources, const Object& o,
                                               const std::string& where) {
  if (!sources.is_array()) o.bad("\"sources\" is not a list");
  std::vector<data::SourceIdentity> list;
  for (const json& source : sources) {
    Object s(source, where + ": a source");
    list.push_back(
        {s.text("path"), s.number("weight"), s.text("content"), s.count("tokens"), s.count("documents")});
    if (!(list.back().weight > 0)) s.bad("\"weight\" is not above 0");
    if (!is_hash(list.back().content)) s.bad("\"content\" is no hash");
    s.done();
  }
  return list;
}

void read_stages(const json& stages, const Object& o, const std::string& where, data::DataIdentity& d) {
  if (!stages.is_array()) o.bad("\"stages\" is not a list");
  for (const json& stage : stages) {
    Object s(stage, where + ": a stage");
    d.stages.push_back({s.count("first_sample"), {}, 0});
    if (s.has("seq_length")) d.stages.back().seq_length = s.integer("seq_length", 1, kMaxCount);
    d.stages.back().sources = read_sources(s.get("sources"), s, where);
    s.done();
  }
}

data::DataIdentity read_identity(const json& v, const std::string& where) {
  Object o(v, where);
  data::DataIdentity d;
  d.sources = read_sources(o.get("sources"), o, where);
  if (o.has("stages")) read_stages(o.get("stages"), o, where, d);
  Object t(o.get("tokenizer"), where + ": \"tokenizer\"");
  d.tokenizer = {t.text("kind"), t.text("hash"), t.integer("vocab_size", -1, INT32_MAX),
                 t.integer("eod", -1, INT32_MAX), t.has("bos") ? t.integer("bos", 0, INT32_MAX) : -1};
  t.done();
  d.seq_length = o.integer("seq_length", 1, kMaxCount);
  d.seed = o.integer("seed");
  if (o.has("train_seq_length")) d.train_seq_length = o.integer("train_seq_length", 1, kMaxCount);
  if (o.has("packing")) d.packing = o.text("packing");
  if (o.has("shuffle_window")) d.shuffle_window = o.integer("shuffle_window", 1, kMaxCount);
  d.reset_attention_mask = o.truth("reset_attention_mask");
  d.reset_position_ids = o.truth("reset_position_ids");
  d.eod_mask_loss = o.truth("eod_mask_loss");
  o.done();
  return d;
}

}  // namespace

int64_t Manifest::bytes() const {
  int64_t n = 0;
  for (const FileRecord& f : files) n += f.bytes;
  return n;
}

std::string shard_name(int index, int count) {
  return fmt::format("shard-{:05d}-of-{:05d}.safetensors", index, count);
}

std::string manifest_to_json(const Manifest& m) {
  const CheckpointInfo& i = m.info;
  json model = json::object(), files = json::array();
  for (const auto& [key, value] : i.model) model[key] = value;
  for (const FileRecord& f : m.files)
    files.push_back({{"name", f.name}, {"bytes", f.bytes}, {"xxh3_128", f.hash}});
  json root = {{"format", "ltrain-checkpoint"},
               {"version", kManifestVersion},
               {"step", i.step},
               {"data_cursor", i.data_cursor},
               {"consumed_samples", i.consumed_samples},
               {"consumed_tokens", i.consumed_tokens},
               {"skipped_steps", i.skipped_steps},
               {"seed", i.seed},
               {"loss", number_json(i.loss)},
               {"grad_norm", number_json(i.grad_norm)},
               {"healthy", i.healthy},
               {"model", model},
               {"recipe", i.recipe},
               {"files", files},
               {"tensors", tensors_json(m.tensors)}};
  if (i.loss_scale)
    root["loss_scale"] = {{"scale", i.loss_scale->scale},
                          {"good_steps", i.loss_scale->good_steps},
                          {"hysteresis", i.loss_scale->hysteresis}};
  if (i.eval_loss) root["eval_loss"] = number_json(*i.eval_loss);
  if (i.earlier_updates > 0) root["earlier_updates"] = i.earlier_updates;
  if (i.data) root["data"] = identity_json(*i.data);
  if (!i.written_by.empty()) root["written_by"] = i.written_by;
  return root.dump(1) + "\n";
}

static LossScaleState read_loss_scale(const json& j, const std::string& path) {
  Object s(j, path + ": \"loss_scale\"");
  LossScaleState state;
  state.scale = s.number("scale");
  state.good_steps = s.count("good_steps");
  state.hysteresis = s.count("hysteresis");
  if (!(state.scale > 0 && state.scale <= 0x1p100)) s.bad("\"scale\" is not a number above 0");
  s.done();
  return state;
}

Manifest manifest_from_json(const std::string& text, const std::string& path) {
  const json root = parse(text, path);
  Object o(root, path);
  if (o.text("format") != "ltrain-checkpoint") o.bad("is not the manifest of an ltrain checkpoint");
  const int64_t version = o.integer("version");
  if (version < 1 || version > kManifestVersion) {
    // Another version may have other keys, so the version is checked first.
    fail(ExitCode::storage, "{}: format version {}, this ltrain reads versions 1 to {}; {}", path, version,
         kManifestVersion,
         version > kManifestVersion ? "use the ltrain that wrote it, or a newer one"
                                    : "no such version was ever written");
  }
  Manifest m;
  CheckpointInfo& i = m.info;
  i.step = o.count("step");
  i.data_cursor = o.count("data_cursor");
  i.consumed_samples = version == 1 ? i.data_cursor : o.count("consumed_samples");
  i.consumed_tokens = o.count("consumed_tokens");
  i.seed = o.integer("seed");
  i.skipped_steps = o.count("skipped_steps");
  if (i.skipped_steps > i.step) o.bad("\"skipped_steps\" is above \"step\"");
  if (root.contains("earlier_updates")) i.earlier_updates = o.count("earlier_updates");
  if (root.contains("loss_scale")) i.loss_scale = read_loss_scale(o.get("loss_scale"), path);
  if (root.contains("data")) i.data = read_identity(o.get("data"), path + ": \"data\"");
  if (root.contains("written_by")) i.written_by = o.text("written_by");
  i.loss = o.number("loss");
  i.grad_norm = o.number("grad_norm");
  if (root.contains("eval_loss")) i.eval_loss = o.number("eval_loss");
  i.healthy = o.truth("healthy");
  i.recipe = o.text("recipe");
  const json& model = o.get("model");
  if (!model.is_object()) o.bad("\"model\" is not an object");
  for (const auto& [key, value] : model.items()) {
    if (!value.is_string()) o.bad("\"model\" has a value that is not a text");
    i.model.emplace_back(key, value.get<std::string>());
  }
  const json& files = o.get("files");
  if (!files.is_array()) o.bad("\"files\" is not a list");
  for (const json& file : files) {
    Object f(file, path + ": a file");
    FileRecord r{f.text("name"), f.integer("bytes"), f.text("xxh3_128")};
    // The name must not lead out of the folder.
    if (r.name != shard_name(static_cast<int>(m.files.size()), static_cast<int>(files.size())))
      f.bad("has an unexpected name");
    if (!is_hash(r.hash)) f.bad("has no xxh3-128 hash");
    f.done();
    m.files.push_back(std::move(r));
  }
  m.tensors = read_tensors(o.get("tensors"), path, static_cast<int>(m.files.size()));
  o.done();
  if (const std::string wrong = untiled(m); !wrong.empty()) o.bad(wrong);
  return m;
}

namespace {

bool same_box(const Slice& a, const Slice& b) { return a.offset == b.offset && a.extent == b.extent; }

std::string overlap_text(const Slice& a, const Slice& b) {
  return fmt::format("two pieces overlap: {} and {}", to_string(a), to_string(b));
}

/// Describes an overlap of the pieces, or returns "". Takes n log n time for the pieces that runs write:
/// ranges of one box, or boxes from successive cuts along dims.
std::string overlap(std::vector<const Slice*> pieces, int depth) {
  constexpr int kMostDepth = 32;
  constexpr size_t kMostPairs = 1024;
  if (pieces.size() < 2) return "";
  const Slice& first = *pieces.front();
  if (std::all_of(pieces.begin(), pieces.end(), [&](const Slice* s) { return same_box(*s, first); })) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Slice* a, const Slice* b) { return a->begin < b->begin; });
    for (size_t i = 1; i < pieces.size(); ++i)
      if (pieces[i]->begin < pieces[i - 1]->end) return overlap_text(*pieces[i - 1], *pieces[i]);
    return "";
  }
  for (int d = 0; d < first.global.rank && depth < kMostDepth; ++d) {
    std::sort(pieces.begin(), pieces.end(),
              [&](const Slice* a, const Slice* b) { return a->offset[d] < b->offset[d]; });
    std::vector<size_t> cuts{0};
    int64_t end = 0;  // end of the pieces so far along the dim
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && pieces[i]->offset[d] >= end) cuts.push_back(i);
      end = std::max(end, pieces[i]->offset[d] + pieces[i]->extent[d]);
    }
    if (cuts.size() == 1) continue;
    cuts.push_back(pieces.size());
    for (size_t c = 1; c < cuts.size(); ++c)
      if (std::string wrong = overlap({pieces.begin() + static_cast<int64_t>(cuts[c - 1]),
                                       pieces.begin() + static_cast<int64_t>(cuts[c])},
                                      depth + 1);
          !wrong.empty())
        return wrong;
    return "";
  }
  // No cut separates these pieces. There are few, or no run wrote them.
  const size_t looked_at = std::min(pieces.size(), kMostPairs);
  for (size_t i = 0; i < looked_at; ++i)
    for (size_t j = 0; j < i; ++j)
      if (common_elements(*pieces[i], *pieces[j]) > 0) return overlap_text(*pieces[j], *pieces[i]);
  if (looked_at == pieces.size()) return "";
  return fmt::format("{} pieces lie in and over each other, as no run writes them, such as {} and {}",
                     pieces.size(), to_string(*pieces[0]), to_string(*pieces[1]));
}

}  // namespace

std::string untiled(const Manifest& m) {
  for (const auto& [name, t] : m.tensors) {
    int64_t sum = 0;
    const int64_t whole = checked_elements(t.shape);
    std::vector<const Slice*> pieces;
    for (const Piece& p : t.pieces) {
      if (__builtin_add_overflow(sum, p.slice.elements(), &sum)) sum = INT64_MAX;
      if (p.slice.elements() > 0) pieces.push_back(&p.slice);
    }
    if (const std::string wrong = overlap(std::move(pieces), 0); !wrong.empty())
      return fmt::format("tensor \"{}\": {}", printable(name, 120), wrong);
    if (sum != whole)
      return fmt::format("tensor \"{}\" {}: its pieces hold {} of {} elements", printable(name, 120),
                         to_string(t.shape), sum, whole);
  }
  return "";
}

std::string data_identity_to_json(const data::DataIdentity& identity) {
  return identity_json(identity).dump();
}

data::DataIdentity data_identity_from_json(const std::string& text, const std::string& path) {
  return read_identity(parse(text, path), path);
}

std::string pieces_to_json(const std::map<std::string, TensorParts>& tensors) {
  return tensors_json(tensors).dump();
}

std::map<std::string, TensorParts> pieces_from_json(const std::string& text, const std::string& path,
                                                    int file_count) {
  return read_tensors(parse(text, path), path, file_count);
}

}  // namespace ltrain
