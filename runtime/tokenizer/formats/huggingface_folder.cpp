// make_huggingface_tokenizer: files of a tokenizer.
#include <filesystem>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/files/strict_json.h"
#include "runtime/tokenizer/formats/huggingface_tokenizer.h"
#include "runtime/tokenizer/formats/json_fields.h"
#include "runtime/tokenizer/formats/sentencepiece_tokenizer.h"
#include "runtime/tokenizer/formats/tekken.h"
#include "runtime/tokenizer/formats/tokenizer_json.h"
#include "runtime/tokenizer/tokenizer_kinds.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

std::string read_whole(const std::string& path) { return data::read_whole(path, kMaxTokenizerBytes); }

/// bos_token or eos_token of a tokenizer_config.json; "": none. Its other keys are for other programs.
std::string token_of(const nlohmann::json& config, const char* key, const std::string& path) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return "";
  const nlohmann::json& value = it->is_object() && it->contains("content") ? it->at("content") : *it;
  if (!value.is_string() || value.get<std::string>().empty())
    fail(ExitCode::data, "{}: {}: {}, not a token", path, key, printable(value.dump(), 60));
  return value.get<std::string>();
}

DocumentTokens tokens_of_config(const std::string& path) {
  if (!file_exists(path)) return {};
  std::string error;
  const nlohmann::json config = parse_strict(read_whole(path), 32, error);
  if (!error.empty()) fail(ExitCode::data, "{}: {}", path, error);
  if (!config.is_object()) fail(ExitCode::data, "{}: not an object", path);
  return {token_of(config, "bos_token", path), token_of(config, "eos_token", path)};
}

}  // namespace

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& path, const DocumentTokens& tokens) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  std::string file = path;
  if (folder) {
    file = (fs::path(path) / "tokenizer.json").string();
    for (const char* other : {"tokenizer.model", "tekken.json"})
      if (const std::string model = (fs::path(path) / other).string();
          !file_exists(file) && file_exists(model))
        file = model;
  }
  if (fs::path(file).extension() == ".model")
    return make_sentencepiece_tokenizer(read_whole(file), file, tokens);
  const std::shared_ptr<HuggingfaceTables> tables = is_tekken_file(file)
                                                        ? read_tekken(read_whole(file), file)
                                                        : read_tokenizer_json(read_whole(file), file);
  const std::string config = (fs::path(file).parent_path() / "tokenizer_config.json").string();
  const DocumentTokens named = tokens_of_config(config);
  const auto id_of = [&](const char* what, const std::string& given, const std::string& of_config,
                         int32_t of_file) -> int32_t {
    const std::string& token = given.empty() ? of_config : given;
    if (token.empty()) return of_file;
    for (size_t id = 0; id < tables->contents.size(); ++id)
      if (tables->contents[id] == token) return static_cast<int32_t>(id);
    fail(given.empty() ? ExitCode::data : ExitCode::usage, "{}: {} \"{}\" is no token of {}",
         given.empty() ? config : std::string("tokenizer"), what, printable(token, 80), file);
  };
  tables->bos = id_of("bos_token", tokens.bos, named.bos, tables->bos);
  tables->eot = id_of("eos_token", tokens.eos, named.eos, tables->eot);
  return std::make_unique<HuggingfaceTokenizer>(tables);
}

std::string tokenizer_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || fs::is_directory(path, error)) return path;
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

TokenizerKind huggingface_kind() {
  return {.name = "huggingface",
          .help =
              "a tokenizer.json, or SentencePiece's tokenizer.model; also the default if model.from names a "
              "folder with one.",
          .file = "tokenizer.json, tokenizer.model or tekken.json, or the folder that has it",
          .file_example = "FOLDER",
          .file_option = "--tokenizer PATH",
          .folder = true,
          .make = make_huggingface_tokenizer};
}

}  // namespace ltrain::data
