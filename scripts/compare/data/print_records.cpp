// Prints the records of a Parquet or Arrow file, or the texts of a .jsonl file, one JSON value a line, for
// scripts/compare/data/compare_records.py. Usage: print_records FILE [--json] [--fields A,B]; --schema: rows
// and fields; --count: bytes and CPU seconds alone;
// --files: names of files on stdin, each answered by its records and a line of "end" or of the error.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "runtime/data/input/record_file.h"
#include "runtime/records/arrow.h"
#include "runtime/records/encodings/json_value.h"
#include "runtime/records/parquet.h"

using namespace ltrain;
using namespace ltrain::records;

namespace {

struct Options {
  Selection selection;
  bool schema = false, count = false;
};

bool is_parquet(const data::InputFile& file) {
  char magic[4] = {};
  return file.read_some(magic, 0, 4) == 4 && std::string(magic, 3) == "PAR";
}

void print_schema(const FileSchema& schema) {
  std::string line;
  for (const FieldInfo& f : schema.fields) {
    line += line.empty() ? "" : ", ";
    append_json_string(line, f.name);
    line += ": ";
    append_json_string(line, f.type);
  }
  std::printf("{\"rows\": %lld, \"fields\": {%s}}\n", static_cast<long long>(schema.rows), line.c_str());
}

std::string line_of(const Record& record, bool as_json) {
  if (record.null) return "null";
  if (as_json) return record.text;
  std::string line;
  if (!record.has_tokens) {
    append_json_string(line, record.text);
    return line;
  }
  for (const int32_t token : record.tokens) line += (line.empty() ? "[" : ", ") + std::to_string(token);
  return line.empty() ? "[]" : line + "]";
}

void print_count(int64_t rows, int64_t bytes, std::clock_t begin) {
  std::printf("{\"rows\": %lld, \"bytes\": %lld, \"seconds\": %.6f}\n", static_cast<long long>(rows),
              static_cast<long long>(bytes), static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
}

/// Counts the texts of JSON lines, compressed or not.
void count_lines(const std::string& path) {
  Source source{std::make_shared<data::InputFile>(path), path};
  char head[4] = {};
  source.compression = compression_of({head, static_cast<size_t>(source.file->read_some(head, 0, 4))});
  const std::clock_t begin = std::clock();
  data::RecordReader reader(source, data::RecordForm::lines, 1 << 20);
  int64_t bytes = 0, rows = 0;
  for (std::string line; reader.next(line); ++rows)
    bytes += static_cast<int64_t>(data::json_text(line, "text", path, reader.line_number()).size());
  print_count(rows, bytes, begin);
}

void print(const std::string& path, const Options& options) {
  if (path.find(".jsonl") != std::string::npos) return count_lines(path);
  const auto file = std::make_shared<data::InputFile>(path);
  const bool parquet = is_parquet(*file);
  if (options.schema) return print_schema(parquet ? parquet_schema(file, path) : arrow_schema(file, path));
  const std::clock_t begin = std::clock();
  const auto source =
      parquet ? open_parquet(file, path, options.selection) : open_arrow(file, path, options.selection);
  Record record;
  int64_t bytes = 0, rows = 0;
  while (source->next(record)) {
    ++rows;
    bytes += static_cast<int64_t>(record.text.size() + 4 * record.tokens.size());
    if (!options.count) {
      const std::string line = line_of(record, options.selection.as_json);
      std::fwrite(line.data(), 1, line.size(), stdout);
      std::fputc('\n', stdout);
    }
  }
  if (options.count) print_count(rows, bytes, begin);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string path;
  bool files = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      options.selection.as_json = true;
    } else if (word == "--schema") {
      options.schema = true;
    } else if (word == "--count") {
      options.count = true;
    } else if (word == "--files") {
      files = true;
    } else if (word == "--fields" && i + 1 < argc) {
      std::istringstream names(argv[++i]);
      for (std::string name; std::getline(names, name, ',');) options.selection.fields.push_back(name);
    } else {
      path = word;
    }
  }
  const auto guarded = [&](const std::string& name) {
    try {
      print(name, options);
      return std::string("end");
    } catch (const Error& e) {
      return fmt::format("error {}: {}", static_cast<int>(e.code()), e.what());
    }
  };
  if (!files) {
    const std::string outcome = guarded(path);
    if (outcome != "end") std::fprintf(stderr, "%s\n", outcome.c_str());
    return outcome == "end" ? 0 : 65;
  }
  for (std::string name; std::getline(std::cin, name);) {
    std::printf("%s\n", guarded(name).c_str());
    std::fflush(stdout);
  }
}
