// Options of commands that read text: the files, the form of records, and the notes about them.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "base/printable.h"
#include "runtime/data/input_list.h"

namespace ltrain::app {

/// --input, --input-format, --json-key, --on-bad-record, --include and --exclude. All arguments must outlive
/// the parsing.
inline void add_input_options(CLI::App& command, std::vector<std::string>& inputs,
                              std::vector<std::string>& include, std::vector<std::string>& exclude,
                              data::RecordOptions& records) {
  using data::InputFormat, data::OnBadRecord;
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
      .add_option("--input", inputs,
                  "text files, JSON files (JSONL under any name, or a .json of one array), folders with all "
                  "that is in them, or - for standard input")
      ->required();
  choice("--input-format", records.format,
         std::map<std::string, InputFormat>{
             {"auto", InputFormat::automatic}, {"text", InputFormat::text}, {"json", InputFormat::json}},
         "How files are read: auto: by their content; text: each is one document; json: records, and other "
         "files are refused");
  command.add_option_function<std::string>(
      "--json-key", [&records](const std::string& key) { records.json_key = key; },
      "Key of the text in a JSON record, text by default; given, all inputs are JSON records");
  choice("--on-bad-record", records.on_bad,
         std::map<std::string, OnBadRecord>{
             {"stop", OnBadRecord::stop}, {"skip", OnBadRecord::skip}, {"replace", OnBadRecord::replace}},
         "Bad JSON records: stop at the first one (default), skip all, or replace invalid characters by "
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
