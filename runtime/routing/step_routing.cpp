#include "runtime/routing/step_routing.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "base/bytes_text.h"
#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/routing/routing_lines.h"

namespace ltrain {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kMissing = -2, kOwnChoice = -1;
constexpr std::string_view kStep = "step-";

/// Files of a step's record, in the order of their names.
std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".jsonl") files.push_back(at->path().string());
  std::sort(files.begin(), files.end());
  return files;
}

/// Places of a rank's samples in its micro-batches.
struct Place {
  size_t micro = 0;
  int64_t sample = 0;  ///< number in the micro-batch
};

/// A rank's choices of one step, filled from lines.
class StepChoices {
 public:
  StepChoices(const TrainProgram& program, const std::vector<HostBatch>& batches)
      : rows_(program.context_sharding().rows()),
        layers_(program.router_layers()),
        k_(program.options().model.moe.top_k) {
    all_.resize(batches.size());
    for (size_t micro = 0; micro < batches.size(); ++micro) {
      const std::vector<int64_t>& of = batches[micro].sample_index;
      for (size_t b = 0; b < of.size(); ++b) mine_[of[b]] = {micro, static_cast<int64_t>(b)};
      all_[micro].assign(layers_.size(), std::vector<int32_t>(of.size() * rows_.rows * k_, kMissing));
    }
  }

  /// Takes the tokens of a line that this rank has.
  void take(const RoutedTokens& t) {
    const auto at = mine_.find(t.sample);
    if (at == mine_.end()) return;
    if (t.partial) partial_.insert(t.sample);
    for (size_t l = 0; l < t.layers.size(); ++l) {
      const auto here = std::lower_bound(layers_.begin(), layers_.end(), t.layers[l]);
      if (here == layers_.end() || *here != t.layers[l]) continue;
      const auto layer = static_cast<size_t>(here - layers_.begin());
      for (int64_t i = 0; i < t.tokens(); ++i) {
        const int64_t row = rows_.row_of(t.position + i);
        if (row < 0) continue;
        int32_t* into = token(at->second, layer, row);
        if (*into != kMissing)
          throw std::invalid_argument(fmt::format("sample {}, position {}, layer {} came before", t.sample,
                                                  t.position + i, t.layers[l]));
        std::copy_n(t.experts.data() + (i * static_cast<int64_t>(t.layers.size()) + l) * k_, k_, into);
      }
    }
  }

  /// Leaves missing tokens of partial samples to the routers. Throws Error (data) for other missing ones.
  std::vector<std::vector<std::vector<int32_t>>> finish(const std::string& from) {
    for (const auto& [sample, at] : mine_)
      for (size_t l = 0; l < layers_.size(); ++l)
        for (int64_t row = 0; row < rows_.rows; ++row) {
          int32_t* of = token(at, l, row);
          if (*of != kMissing) continue;
          if (!partial_.count(sample))
            fail(ExitCode::data, "{}: has no choices of sample {}, position {}, layer {}", printable(from),
                 sample, rows_.at(row), layers_[l]);
          std::fill_n(of, k_, kOwnChoice);
        }
    return std::move(all_);
  }

 private:
  int32_t* token(const Place& at, size_t layer, int64_t row) {
    return all_[at.micro][layer].data() + (at.sample * rows_.rows + row) * k_;
  }

  const Positions rows_;
  const std::vector<int64_t>& layers_;
  const int64_t k_;
  std::vector<std::vector<std::vector<int32_t>>> all_;
  std::map<int64_t, Place> mine_;
  std::set<int64_t> partial_;
};

}  // namespace

RoutedRows routed_rows(const TrainProgram& program, const Mesh& mesh) {
  const ProgramOptions& o = program.options();
  const int64_t all = o.micro_batch * program.context_sharding().rows().rows;
  const int64_t part = mesh.coordinate(Axis::tensor);
  if (o.expert_tensor) return {0, part == 0 ? all : 0};
  const int64_t each = all / mesh.size(Axis::tensor);
  return {part * each, (part + 1) * each};
}

std::string StepRouting::folder(const std::string& of, int64_t step) const {
  return fmt::format("{}/{}{:08}", of, kStep, step);
}

void StepRouting::check_steps(int64_t done, int64_t end) const {
  if (folders_.replay.empty()) return;
  std::set<int64_t> there;
  std::error_code error;
  for (fs::directory_iterator at(folders_.replay, error), last; !error && at != last; at.increment(error)) {
    const std::string name = at->path().filename().string();
    int64_t step = 0;
    if (name.starts_with(kStep) &&
        std::from_chars(name.data() + kStep.size(), name.data() + name.size(), step).ec == std::errc())
      there.insert(step);
  }
  if (error)
    fail(ExitCode::data, "train.router_replay: {}: cannot be read: {}", printable(folders_.replay),
         error.message());
  for (int64_t step = done + 1; step <= end; ++step)
    if (!there.count(step))
      fail(ExitCode::data,
           "train.router_replay: {}: has no record of step {}, which this run is to make (steps {} to {}); "
           "record every step (train.router_record_interval: 1), or stop before it (train.stop_step)",
           printable(folders_.replay), step, done + 1, end);
}

StepRouting::Choices StepRouting::read(int64_t step, int64_t first, int64_t samples,
                                       const std::vector<HostBatch>& batches) const {
  const ProgramOptions& o = program_.options();
  StepChoices choices(program_, batches);
  const std::string from = folder(folders_.replay, step);
  const std::vector<std::string> files = files_of(from);
  if (files.empty()) fail(ExitCode::data, "{}: expected *.jsonl, got no such file", printable(from));
  for (const std::string& path : files) {
    std::ifstream in(path);
    if (!in) fail(ExitCode::data, "{}: cannot be read", printable(path));
    int64_t number = 0;
    for (std::string text; std::getline(in, text);) {
      ++number;
      try {  // lines of other ranks are checked too
        const RoutedTokens t = parse_routed_line(text, o.model, o.seq_length, step);
        if (t.sample < first || t.sample >= first + samples)
          throw std::invalid_argument(fmt::format("sample = {}: must be one of step {}, from {} to {}",
                                                  t.sample, step, first, first + samples - 1));
        choices.take(t);
      } catch (const std::exception& e) {
        fail(ExitCode::data, "{}:{}: {}", printable(path), number, printable(e.what(), 400));
      }
    }
    if (in.bad()) fail(ExitCode::data, "{}:{}: cannot be read further", printable(path), number + 1);
  }
  return choices.finish(from);
}

void StepRouting::before_step(int64_t step, int64_t first, int64_t samples,
                              const std::vector<HostBatch>& batches) {
  if (folders_.replay.empty()) return;
  const Choices all = read(step, first, samples, batches);
  for (size_t micro = 0; micro < all.size(); ++micro)
    for (size_t layer = 0; layer < all[micro].size(); ++layer)
      program_.give_choices(static_cast<int64_t>(micro), layer, all[micro][layer]);
}

void StepRouting::after_step(int64_t step, const std::vector<HostBatch>& batches) {
  if (folders_.record.empty() || step % folders_.interval != 0) return;
  const ProgramOptions& o = program_.options();
  const std::string to = folder(folders_.record, step);
  const std::string ranks = fmt::format("-of-{:05}.jsonl", mesh_.world());
  std::error_code error;
  fs::create_directories(to, error);
  if (error) fail(ExitCode::storage, "train.router_record: {}: {}", printable(to), error.message());
  if (mesh_.rank == 0)  // an earlier attempt may have had other ranks
    for (const std::string& path : files_of(to))
      if (!path.ends_with(ranks)) fs::remove(path, error);
  const Positions rows = program_.context_sharding().rows();
  const RoutedRows mine = routed_rows(program_, mesh_);
  const int64_t k = o.model.moe.top_k;
  data::OutputFile file(fmt::format("{}/rank-{:05}{}", to, mesh_.rank, ranks));
  for (size_t micro = 0; micro < batches.size(); ++micro)
    for (size_t layer = 0; layer < program_.router_layers().size(); ++layer) {
      const std::vector<int32_t> choices = program_.read_choices(static_cast<int64_t>(micro), layer);
      for (int64_t row = mine.begin, end; row < mine.end; row = end) {  // runs of neighbouring positions
        const int64_t sample = row / rows.rows, position = rows.at(row % rows.rows);
        end = row + 1;
        while (end < mine.end && end / rows.rows == sample &&
               rows.at(end % rows.rows) == position + end - row)
          ++end;
        const std::string line = line_of(
            o.model, {.step = step,
                      .rank = mesh_.rank,
                      .sample = batches[micro].sample_index[static_cast<size_t>(sample)],
                      .position = position,
                      .top_k = k,
                      .layers = {program_.router_layers()[layer]},
                      .experts = std::vector<int32_t>(choices.begin() + row * k, choices.begin() + end * k)});
        file.write(line.data(), static_cast<int64_t>(line.size()));
      }
    }
  file.commit();
}

int64_t routing_record_bytes(const ModelConfig& model, int64_t seq_length, int64_t samples) {
  constexpr int64_t kKeys = 200;  // bytes of a line
  int64_t layers = 0, digits = 1;
  for (int64_t i = 0; i < model.all_layers(); ++i) layers += model.has_experts(i);
  for (int64_t most = model.moe.router_outputs() - 1; most >= 10; most /= 10) ++digits;
  const int64_t token = model.moe.top_k * (digits + 1) + 2;
  return samples * layers * (kKeys + seq_length * token);
}

RoutingFolders routing_folders(const Recipe& recipe) {
  const Train& t = recipe.train;
  return {t.router_record.value_or(""), t.router_record_interval, t.router_replay.value_or("")};
}

std::string routing_text(const Recipe& recipe) {
  const Train& t = recipe.train;
  if (t.router_replay)
    return fmt::format("routing: tokens go to the experts of {}", printable(*t.router_replay));
  if (!t.router_record) return "";
  const int64_t bytes = routing_record_bytes(recipe.model, recipe.data.seq_length, t.global_batch_size);
  const std::string which =
      t.router_record_interval == 1 ? "every step" : fmt::format("every {}th step", t.router_record_interval);
  return fmt::format("routing: {} is recorded in {}, up to {} a step; none is removed", which,
                     printable(*t.router_record), bytes_text(bytes));
}

}  // namespace ltrain
