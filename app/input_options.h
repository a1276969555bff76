// Options of commands that read text: the files, the form of records, and the notes about them.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/printable.h"
#include "runtime/data/input/input_list.h"
#include "runtime/records/format.h"

namespace ltrain::app {

/// --input-format, --field, --dataset-split, --dataset-config and --object-cache-gb.
inline void add_record_options(CLI::App& command, data::RecordOptions& options) {
  using data::InputFormat;
  std::vector<std::string> formats{"auto", "text", "json"};
  for (const records::Format& f : records::formats()) formats.emplace_back(f.name);
  command
      .add_option_function<std::string>(
          "--input-format",
          [&options](const std::string& name) {
            options.format = name == "text"   ? InputFormat::text
                             : name == "json" ? InputFormat::json
                                              : InputFormat::automatic;
            options.record_format = records::format_named(name);
          },
          "How files are read: auto: by their content; text: each is one document; json and the others: "
          "records of that format, and other files are refused")
      ->check(CLI::IsMember(formats));
  command.add_option_function<std::string>(
      "--field,--json-key", [&options](const std::string& field) { options.field = field; },
      "Field of the text in a record: the key of JSON, the column of a table; text by default, txt for tar; "
      "given, all inputs are records");
  command.add_option("--dataset-split", options.dataset.split,
                     "Split to read of folders of Hugging Face datasets; default: train");
  command.add_option("--dataset-config", options.dataset.config,
                     "Configuration to read of such folders; default: the one that their README.md marks");
  command
      .add_option_function<double>(
          "--object-cache-gb", [&options](double gb) { options.objects.set_gb(gb); },
          "Most GB of local copies of objects behind URLs at once; default: half of what is free")
      ->check(CLI::PositiveNumber);
}

/// --input, --on-bad-record, --include, --exclude, and those of add_record_options(). All arguments must
/// outlive the parsing.
inline void add_input_options(CLI::App& command, std::vector<std::string>& inputs,
                              std::vector<std::string>& include, std::vector<std::string>& exclude,
                              data::RecordOptions& options) {
  using data::OnBadRecord;
  const auto choice = [&command](const std::string& name, auto& to, const auto& choices,
                                 const std::string& help) {
    using Choice = typename std::decay_t<decltype(choices)>::mapped_type;
    std::vector<std::string> names;
    for (const auto& [text, value] : choices) names.push_back(text);
    command
        .add_option_function<std::string>(
            name, [&to, choices](const std::string& text) { to = choices.at(text); }, help)
        ->check(CLI::IsMember(names));
    static_assert(std::is_same_v<Choice, std::decay_t<decltype(to)>>);
  };
  command
      .add_option(
          "--input", inputs,
          "files of text or records, folders with all that is in them, URLs (s3://, gs://, https://), or - "
          "for standard input; formats: docs/data.md")
      ->required();
  add_record_options(command, options);
  choice("--on-bad-record", options.on_bad,
         std::map<std::string, OnBadRecord>{
             {"stop", OnBadRecord::stop}, {"skip", OnBadRecord::skip}, {"replace", OnBadRecord::replace}},
         "Bad records: stop at the first one (default), skip all, or replace invalid characters by "
         "U+FFFD and skip the others");
  command.add_option("--include", include, "Take of folders only the files that match GLOB");
  command.add_option("--exclude", exclude, "Leave out of folders the files and folders that match GLOB");
}

/// Prints a line for each kind of input that was skipped, and the first bad records.
inline void print_input_notes(const data::InputList& list, const data::BadRecords& bad) {
  for (const std::string& phrase : list.left_out()) std::printf("left out: %s\n", phrase.c_str());
  if (list.json_as_text.count > 0)
    std::printf("read as text: %s\n", list.json_as_text.text(".json without records").c_str());
  if (bad.skipped + bad.replaced == 0) return;
  std::printf("bad records: %lld skipped, %lld read with U+FFFD; the first ones:\n",
              static_cast<long long>(bad.skipped), static_cast<long long>(bad.replaced));
  for (const std::string& message : bad.first) std::printf("  %s\n", message.c_str());
}

}  // namespace ltrain::app
