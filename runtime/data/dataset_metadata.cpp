#include "runtime/data/dataset_metadata.h"

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/strict_json.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMaxSidecarBytes = 1 << 20;
constexpr size_t kMaxText = 200;
constexpr int kMaxDepth = 8;

int64_t integer(const nlohmann::json& j, const std::string& path, const char* key, int64_t low,
                int64_t high) {
  const auto it = j.find(key);
  if (it == j.end())
    fail(ExitCode::data, "{}: key {} is missing; delete the file or build the data again", path, key);
  const bool fits = it->is_number_integer() &&
                    !(it->is_number_unsigned() && it->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || it->get<int64_t>() < low || it->get<int64_t>() > high)
    fail(ExitCode::data, "{}: {} is {}, not a whole number from {} to {}", path, key,
         printable(it->dump(), 60), low, high);
  return it->get<int64_t>();
}

std::string text(const nlohmann::json& j, const std::string& path, const char* key) {
  const auto it = j.find(key);
  if (it == j.end())
    fail(ExitCode::data, "{}: key {} is missing; delete the file or build the data again", path, key);
  if (!it->is_string())
    fail(ExitCode::data, "{}: {} is {}, not a string", path, key, printable(it->dump(), 60));
  const std::string value = it->get<std::string>();
  if (value.size() > kMaxText || printable(value) != value)
    fail(ExitCode::data, "{}: {} is \"{}\", which is no name: it is printable and has at most {} bytes", path,
         key, printable(value, 60), kMaxText);
  return value;
}

/// An optional key; false if it is missing.
bool truth(const nlohmann::json& j, const std::string& path, const char* key) {
  const auto it = j.find(key);
  if (it == j.end()) return false;
  if (!it->is_boolean())
    fail(ExitCode::data, "{}: {} is {}, expected true or false", path, key, printable(it->dump(), 60));
  return it->get<bool>();
}

void same(const std::string& path, const char* key, int64_t sidecar, int64_t index,
          const std::string& prefix) {
  if (sidecar != index)
    fail(ExitCode::data,
         "{}: {} is {}, but {}.idx has {}: they are not of the same build. Build the data again, or delete "
         "{} if the .idx and .bin are right",
         path, key, sidecar, prefix, index, path);
}

}  // namespace

std::string write_sidecar_text(const SourceInfo& info, bool append_eot) {
  nlohmann::ordered_json j;
  j["format"] = "ltrain-tokens";
  j["version"] = 1;
  j["tokenizer"] = info.tokenizer;
  j["tokenizer_hash"] = info.tokenizer_hash;
  j["vocab_size"] = info.vocab_size;
  j["eot"] = info.eot;
  j["append_eot"] = append_eot;
  if (info.bos >= 0) j["bos"] = info.bos;  // begins each document
  if (info.split_special_tokens) j["split_special_tokens"] = true;
  if (info.loss_mask) j["loss_mask"] = true;
  if (info.packed_length > 0) j["packed_length"] = info.packed_length;
  if (info.preference) j["preference"] = true;
  if (info.margins) j["margins"] = true;
  if (info.unpaired) j["unpaired"] = true;
  if (info.filtered.read > 0) {
    j["records_read"] = info.filtered.read;
    j["records_kept"] = info.filtered.kept;
  }
  if (info.filtered.duplicates > 0) j["duplicates"] = info.filtered.duplicates;
  if (info.filtered.contaminated > 0) j["contaminated"] = info.filtered.contaminated;
  j["type"] = token_type_name(info.type);
  j["documents"] = info.documents;
  j["sequences"] = info.sequences;
  j["tokens"] = info.tokens;
  j["max_token"] = info.max_token;
  j["bin_xxh3_64"] = info.bin_hash;
  return j.dump(2) + "\n";
}

void read_sidecar(SourceInfo& info) {
  const std::string path = info.prefix + ".json";
  if (!file_exists(path)) return;
  InputFile file(path);
  if (file.size() > kMaxSidecarBytes)
    fail(ExitCode::data, "{}: {} bytes; a sidecar has at most {}. It is some other file: move it away", path,
         file.size(), kMaxSidecarBytes);
  std::string bytes(file.size(), '\0');
  file.read(bytes.data(), 0, file.size());
  std::string error;
  const nlohmann::json j = parse_strict(bytes, kMaxDepth, error);
  if (!error.empty()) fail(ExitCode::data, "{}: {}; delete it or build the data again", path, error);
  if (!j.is_object() || j.value("format", nlohmann::json()) != "ltrain-tokens")
    fail(ExitCode::data,
         "{}: not the sidecar of a token file (no \"format\": \"ltrain-tokens\"); move it away", path);
  const int64_t version = integer(j, path, "version", 1, INT32_MAX);
  if (version != 1) fail(ExitCode::data, "{}: version {}; this ltrain reads version 1", path, version);

  constexpr int64_t kMost = INT64_MAX;
  same(path, "documents", integer(j, path, "documents", 0, kMost), info.documents, info.prefix);
  same(path, "sequences", integer(j, path, "sequences", 0, kMost), info.sequences, info.prefix);
  same(path, "tokens", integer(j, path, "tokens", 0, kMost), info.tokens, info.prefix);
  info.tokenizer = text(j, path, "tokenizer");
  info.tokenizer_hash = text(j, path, "tokenizer_hash");
  info.bin_hash = text(j, path, "bin_xxh3_64");
  info.vocab_size = integer(j, path, "vocab_size", 1, INT32_MAX);
  info.eot = integer(j, path, "eot", -1, info.vocab_size - 1);
  info.max_token = integer(j, path, "max_token", -1, info.vocab_size - 1);
  if (j.contains("bos")) info.bos = integer(j, path, "bos", 0, info.vocab_size - 1);
  info.split_special_tokens = truth(j, path, "split_special_tokens");
  info.loss_mask = truth(j, path, "loss_mask");
  if (j.contains("packed_length")) info.packed_length = integer(j, path, "packed_length", 1, INT32_MAX);
  info.preference = truth(j, path, "preference");
  info.margins = truth(j, path, "margins");
  info.unpaired = truth(j, path, "unpaired");
  if ((info.preference || info.unpaired) && (!info.loss_mask || info.packed_length == 0))
    fail(ExitCode::data, "{}: {} is true, expected loss_mask and packed_length with it; build the data again",
         path, info.preference ? "preference" : "unpaired");
  if (info.margins && !info.preference)
    fail(ExitCode::data, "{}: margins is true, expected preference with it; build the data again", path);
  if (info.preference && info.unpaired)
    fail(ExitCode::data, "{}: preference and unpaired are true, expected one of them; build the data again",
         path);
  if (j.contains("records_read")) {
    info.filtered.read = integer(j, path, "records_read", 1, kMost);
    info.filtered.kept = integer(j, path, "records_kept", 0, info.filtered.read);
  }
  if (j.contains("duplicates")) info.filtered.duplicates = integer(j, path, "duplicates", 1, kMost);
  if (j.contains("contaminated")) info.filtered.contaminated = integer(j, path, "contaminated", 1, kMost);
  info.has_sidecar = true;
}

}  // namespace ltrain::data
