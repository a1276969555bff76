#include "runtime/distillation/top_logits.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/hash/crc32c.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "parallel/mesh/groups.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/data/identity.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/source_union.h"
#include "runtime/files/strict_json.h"
#include "runtime/files/write_file.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kMagic = "ltrain top logits 1\n";

json header_json(const TopLogitsHeader& h) {
  return {{"teacher", h.teacher},
          {"teacher_hash", h.teacher_hash},
          {"content", h.content},
          {"tokenizer", h.tokenizer},
          {"packing", h.packing},
          {"seq_length", h.seq_length},
          {"vocab_size", h.vocab_size},
          {"eod", h.eod},
          {"reset_attention_mask", h.reset_attention_mask},
          {"reset_position_ids", h.reset_position_ids},
          {"top_k", h.top_k},
          {"value_bytes", h.value_bytes},
          {"samples", h.samples},
          {"temperature", h.temperature}};
}

TopLogitsHeader header_of(const json& j) {
  TopLogitsHeader h;
  const auto get = [&](const char* key, auto& to) { j.at(key).get_to(to); };
  get("teacher", h.teacher), get("teacher_hash", h.teacher_hash), get("content", h.content);
  get("tokenizer", h.tokenizer), get("packing", h.packing), get("seq_length", h.seq_length);
  get("vocab_size", h.vocab_size), get("eod", h.eod), get("top_k", h.top_k), get("samples", h.samples);
  get("reset_attention_mask", h.reset_attention_mask), get("reset_position_ids", h.reset_position_ids);
  get("value_bytes", h.value_bytes), get("temperature", h.temperature);
  return h;
}

[[noreturn]] void damaged(const std::string& path, const std::string& why) {
  fail(ExitCode::data, "{}: damaged, {}: write it anew with ltrain eval TEACHER --record-logits RECIPE",
       printable(path), why);
}

TopLogitsHeader read_header(const data::InputFile& file) {
  constexpr int64_t kBytes = TopLogitsHeader::kHeaderBytes;
  if (file.size() < kBytes) damaged(file.path(), fmt::format("of {} bytes", file.size()));
  std::string text(static_cast<size_t>(kBytes), '\0');
  file.read(text.data(), 0, kBytes);
  uint64_t check = 0;
  std::memcpy(&check, text.data() + kBytes - 8, 8);
  if (!text.starts_with(kMagic) || check != XXH3_64bits(text.data(), static_cast<size_t>(kBytes) - 8))
    damaged(file.path(), "its header does not match its hash");
  std::string error;
  const json j = data::parse_strict(
      text.substr(kMagic.size(), static_cast<size_t>(kBytes) - 8 - kMagic.size()), 4, error);
  TopLogitsHeader h;
  try {
    h = header_of(j);
  } catch (const json::exception& e) {
    damaged(file.path(), fmt::format("its header is incomplete ({})", e.what()));
  }
  const bool possible = h.seq_length > 0 && h.vocab_size > 0 && h.top_k > 0 && h.top_k <= h.vocab_size &&
                        h.samples >= 0 && (h.value_bytes == 4 || h.value_bytes == 8) &&
                        h.seq_length <= INT32_MAX && h.top_k <= INT32_MAX / 16 &&
                        h.samples <= INT64_MAX / h.sample_bytes() - 1;
  if (!possible) damaged(file.path(), "its header has impossible numbers");
  if (file.size() != h.file_bytes())
    damaged(file.path(),
            fmt::format("{} bytes, expected {} for {} samples", file.size(), h.file_bytes(), h.samples));
  return h;
}

/// Compares a header with the one that a recipe asks for.
void check_header(const std::string& path, const TopLogitsHeader& is, const TopLogitsHeader& wanted) {
  const auto same = [&](const char* key, const auto& a, const auto& b, const char* fix) {
    if (a == b) return;
    fail(ExitCode::data, "{}: recorded with {} = {}, and the recipe has {}; {}, or record the logits anew",
         printable(path), key, a, b, fix);
  };
  same("data.tokenizer (hash)", is.tokenizer, wanted.tokenizer, "use data of that tokenizer");
  same("model.vocab_size", is.vocab_size, wanted.vocab_size, "use a model of that vocabulary");
  same("data.seq_length", is.seq_length, wanted.seq_length, "set it to the file's");
  same("data.packing", is.packing, wanted.packing, "set it to the file's");
  same("data.reset_attention_mask", is.reset_attention_mask, wanted.reset_attention_mask,
       "set it to the file's");
  same("data.reset_position_ids", is.reset_position_ids, wanted.reset_position_ids, "set it to the file's");
  same("data.tokenizer.eod", is.eod, wanted.eod, "set it to the file's");
  same("distillation.temperature", is.temperature, wanted.temperature, "set it to the file's");
  same("distillation.top_k", is.top_k, wanted.top_k, "set it to the file's");
}

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T at(const char* from, int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

}  // namespace

data::LoaderOptions top_logits_options(const Recipe& r) {
  data::LoaderOptions o = loader_options(r, GroupSet().groups().mesh);
  if (o.packing.on()) o.packing.eod = end_of_document(r);
  o.rows.reset();
  return o;
}

TopLogitsHeader wanted_header(const Recipe& r, const data::LoaderOptions& options, const std::string& path) {
  TopLogitsHeader h;
  h.content = data::content_identity(path);
  h.tokenizer = data::inspect_source(path).tokenizer_hash;
  h.packing = fmt::format("{}", r.data.packing);
  h.seq_length = r.data.seq_length;
  h.vocab_size = r.model.vocab_size;
  h.reset_attention_mask = r.data.reset_attention_mask;
  h.reset_position_ids = r.data.reset_position_ids;
  h.eod = options.packing.on() ? options.packing.eod : -1;
  h.top_k = r.distillation.top_k;
  h.temperature = r.distillation.temperature;
  return h;
}

std::string top_logits_path(const Recipe& r, const TopLogitsHeader& h) {
  return fmt::format("{}/{}.logits", *r.distillation.logits, h.content);
}

std::string weights_hash(const std::string& folder) {
  std::vector<std::string> files;
  for (const fs::directory_entry& e : fs::directory_iterator(folder))
    if (e.path().extension() == ".safetensors") files.push_back(e.path().string());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const std::string& file : files) all += data::sample_hash(data::InputFile(file), 64);
  return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
}

TopLogitsWriter::TopLogitsWriter(const std::string& path, const TopLogitsHeader& header)
    : header_(header), file_(path), order_(static_cast<size_t>(header.vocab_size)) {
  constexpr size_t kBytes = TopLogitsHeader::kHeaderBytes;
  std::string text = std::string(kMagic) + header_json(header).dump();
  if (text.size() > kBytes - 8)
    fail(ExitCode::usage, "{}: the path of the teacher is too long for the header",
         printable(header.teacher, 80));
  text.resize(kBytes - 8, ' ');
  append(text, XXH3_64bits(text.data(), text.size()));
  file_.write(text.data(), static_cast<int64_t>(text.size()));
}

void TopLogitsWriter::position(const double* logits) {
  const auto vocab = static_cast<size_t>(header_.vocab_size), k = static_cast<size_t>(header_.top_k);
  for (size_t i = 0; i < vocab; ++i)
    if (!std::isfinite(logits[i]))
      fail(ExitCode::data, "{}: expected finite logits, got {} for token {}", printable(header_.teacher),
           logits[i], i);
  std::iota(order_.begin(), order_.end(), 0);
  // The lower id first among equals, so that the file does not depend on the order of the search.
  const auto larger = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::nth_element(order_.begin(), order_.begin() + static_cast<int64_t>(k) - 1, order_.end(), larger);
  std::sort(order_.begin(), order_.begin() + static_cast<int64_t>(k), larger);
  double rest = -INFINITY;
  if (k < vocab) {
    double top = -INFINITY, sum = 0;
    for (size_t i = k; i < vocab; ++i) top = std::max(top, logits[order_[i]]);
    for (size_t i = 0; i < vocab; ++i)  // in the order of ids, see above
      if (larger(order_[k - 1], static_cast<int32_t>(i)))
        sum += std::exp((logits[i] - top) / header_.temperature);
    rest = top / header_.temperature + std::log(sum);
  }
  const auto put = [&](double v) {
    header_.value_bytes == 8 ? append(sample_, v) : append(sample_, static_cast<float>(v));
  };
  put(rest);
  for (size_t i = 0; i < k; ++i) put(logits[order_[i]]);
  for (size_t i = 0; i < k; ++i)
    header_.id_bytes() == 2 ? append(sample_, static_cast<uint16_t>(order_[i])) : append(sample_, order_[i]);
}

void TopLogitsWriter::end_sample(uint32_t crc) {
  LT_CHECK(static_cast<int64_t>(sample_.size()) == header_.sample_bytes() - 8,
           "expected {} bytes of a sample's logits, got {}", header_.sample_bytes() - 8, sample_.size());
  std::string all;
  append(all, crc);
  all += sample_;
  append(all, crc32c(all.data(), all.size()));
  file_.write(all.data(), static_cast<int64_t>(all.size()));
  sample_.clear();
}

void TopLogitsWriter::commit() {
  LT_CHECK(file_.bytes() == header_.file_bytes(), "expected a file of {} bytes, got {}", header_.file_bytes(),
           file_.bytes());
  file_.commit();
}

TopLogitsFiles::TopLogitsFiles(const Recipe& r, const data::LoaderOptions& options) {
  const std::vector<std::string> sources = data::union_of(options.sources, {}).paths;  // ReadSample::source
  for (size_t i = 0; i < sources.size(); ++i) {
    const TopLogitsHeader wanted = wanted_header(r, options, sources[i]);
    const std::string path = top_logits_path(r, wanted);
    if (!data::file_exists(path))
      fail(ExitCode::data,
           "distillation.logits = {}: has no logits of data.train.{} = {}: there is no {}, named by the "
           "content "
           "of the data; record them with ltrain eval TEACHER --record-logits RECIPE, or name the data that "
           "the "
           "logits are of",
           printable(*r.distillation.logits), i, printable(sources[i]), printable(path));
    auto file = std::make_unique<data::InputFile>(path);
    const TopLogitsHeader header = read_header(*file);
    check_header(path, header, wanted);
    if (i > 0 && header.teacher_hash != files_[0].header.teacher_hash)
      fail(ExitCode::data,
           "{}: recorded from {} (hash {}), and the logits of data.train.0 from {} (hash {}): record all "
           "sources from one "
           "teacher",
           printable(path), printable(header.teacher), header.teacher_hash,
           printable(files_[0].header.teacher), files_[0].header.teacher_hash);
    files_.push_back({header, std::move(file)});
  }
}

void TopLogitsFiles::read(const data::ReadSample& sample, const Positions& rows, int32_t* ids, double* values,
                          double* rest) const {
  const File& f = files_.at(static_cast<size_t>(sample.source));
  const TopLogitsHeader& h = f.header;
  if (sample.in_source >= h.samples)
    fail(ExitCode::data, "{}: has logits of {} samples, expected sample {}: it is of other data",
         printable(f.file->path()), h.samples, sample.in_source);
  std::string bytes(static_cast<size_t>(h.sample_bytes()), '\0');
  f.file->read(bytes.data(), TopLogitsHeader::kHeaderBytes + sample.in_source * h.sample_bytes(),
               h.sample_bytes());
  const size_t checked = bytes.size() - 4;
  if (crc32c(bytes.data(), checked) != at<uint32_t>(bytes.data() + checked, 0))
    damaged(f.file->path(), fmt::format("the checksum of sample {} does not match", sample.in_source));
  if (at<uint32_t>(bytes.data(), 0) != sample.crc)
    fail(
        ExitCode::data,
        "{}: the logits of sample {} are of other tokens than those of data.train.{}: they are of other data",
        printable(f.file->path()), sample.in_source, sample.source);
  const auto value = [&](const char* from, int64_t i) {
    return h.value_bytes == 8 ? at<double>(from, i) : static_cast<double>(at<float>(from, i));
  };
  for (int64_t r = 0; r < rows.rows; ++r) {
    const char* from = bytes.data() + 4 + rows.at(r) * h.position_bytes();
    const char* of_ids = from + (1 + h.top_k) * h.value_bytes;
    rest[r] = value(from, 0);
    for (int64_t i = 0; i < h.top_k; ++i) {
      values[r * h.top_k + i] = value(from, 1 + i);
      ids[r * h.top_k + i] = h.id_bytes() == 2 ? at<uint16_t>(of_ids, i) : at<int32_t>(of_ids, i);
    }
  }
}

void check_top_logits(const Recipe& r) {
  if (r.distillation.logits) TopLogitsFiles(r, top_logits_options(r));
}

std::shared_ptr<const data::RecordedLogits> open_top_logits(const Recipe& r,
                                                            const data::LoaderOptions& options, int64_t step,
                                                            bool lead) {
  if (!r.distillation.logits) return nullptr;
  auto files = std::make_shared<TopLogitsFiles>(r, options);
  if (!lead) return files;
  const TopLogitsHeader& h = files->header(0);
  const std::string path = r.output_dir + "/teacher.json";
  const json now = {{"teacher", h.teacher}, {"hash", h.teacher_hash}};
  if (step == 0) {
    replace_file(path, now.dump() + "\n");
    return files;
  }
  if (!data::file_exists(path))
    fail(
        ExitCode::data,
        "{}: missing. A resumed run with distillation.logits compares it with the teacher of its logits; put "
        "the file back, or begin anew with another output_dir",
        printable(path));
  std::string error;
  const json before = data::parse_strict(data::read_whole(path, 1 << 16), 4, error);
  const std::string hash = before.is_object() ? before.value("hash", "") : "";
  if (hash != h.teacher_hash)
    fail(ExitCode::data,
         "distillation.logits = {}: recorded from {} (hash {}), and the run began with logits of another "
         "teacher (hash {}): "
         "put those back, or begin anew with another output_dir",
         printable(*r.distillation.logits), printable(h.teacher), h.teacher_hash, printable(hash, 40));
  return files;
}

}  // namespace ltrain
