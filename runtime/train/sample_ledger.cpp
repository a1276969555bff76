#include "runtime/train/sample_ledger.h"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json/json.h"
#include "base/limits.h"

namespace ltrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLineBegin = "{\"step\": ";

/// End of the lines of steps up to `last_step`, in bytes. Lines have ascending steps, so that few are read.
int64_t end_of_step(const std::string& path, int64_t last_step) {
  std::ifstream in(path, std::ios::binary);
  // The wanted end is in [low, high], and a line begins at `low`.
  int64_t low = 0, high = static_cast<int64_t>(fs::file_size(path));
  std::string line;
  const auto line_at = [&](int64_t at) {
    in.clear();
    in.seekg(at);
    return bool(std::getline(in, line)) && !in.eof();  // a line without its end was written in part
  };
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    int64_t begin = low;  // position of the first line that begins after `middle`
    if (middle > low && line_at(middle)) begin = static_cast<int64_t>(in.tellg());
    if (begin >= high || begin == low) {
      // One line is left, or few: look at the first.
      if (!line_at(low)) return low;
      const int64_t step = ledger_step(line);
      if (step < 0 || step > last_step) return low;
      low = static_cast<int64_t>(in.tellg());
      continue;
    }
    const bool whole = line_at(begin);
    const int64_t step = whole ? ledger_step(line) : -1;
    if (step >= 0 && step <= last_step)
      low = static_cast<int64_t>(in.tellg());
    else
      high = begin;
  }
  return low;
}

}  // namespace

std::string ledger_folder(const std::string& output_dir) { return output_dir + "/ledger"; }

int64_t ledger_step(const std::string& line) {
  if (!line.starts_with(kLineBegin)) return -1;
  int64_t step = -1;
  const char* begin = line.data() + kLineBegin.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), step);
  return error == std::errc() && line.ends_with("}}") ? step : -1;
}

void begin_ledger(const std::string& output_dir, int64_t last_step) {
  const std::string folder = ledger_folder(output_dir);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_system(folder + ": cannot be made", error.value(), ExitCode::storage);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jsonl" || !entry.is_regular_file()) continue;
    fs::resize_file(entry.path(), static_cast<uintmax_t>(end_of_step(entry.path(), last_step)), error);
    if (error) fail_system(entry.path().string() + ": cannot be cut", error.value(), ExitCode::storage);
  }
}

SampleLedger::SampleLedger(const std::string& output_dir, int rank, std::vector<std::string> files)
    : file_(fmt::format("{}/rank-{:05}.jsonl", ledger_folder(output_dir), rank), false),
      files_(std::move(files)) {}

void SampleLedger::step(int64_t step, const std::vector<data::Batch>& batches) {
  std::vector<std::string> lists(files_.size());
  for (const data::Batch& batch : batches)
    for (size_t i = 0; i < batch.read.size(); ++i) {
      const data::ReadSample& sample = batch.read[i];
      std::string& list = lists.at(static_cast<size_t>(sample.source));
      list += fmt::format("{}[{}, {}, {}]", list.empty() ? "" : ", ", batch.sample_index[i], sample.in_source,
                          sample.crc);
    }
  std::string text;
  for (size_t i = 0; i < lists.size(); ++i)
    if (!lists[i].empty())
      text += fmt::format(
          "{}{}: [{}]", text.empty() ? "" : ", ",
          nlohmann::json(files_[i]).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), lists[i]);
  file_.append(fmt::format("{}{}, \"samples\": {{{}}}}}\n", kLineBegin, step, text));
}

}  // namespace ltrain
