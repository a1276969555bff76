#include "runtime/train/stage_changes.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json/json.h"
#include "base/limits.h"
#include "base/printable.h"
#include "kernels/tensor/timeline.h"
#include "parallel/comm/host_collectives.h"
#include "parallel/comm/rank_texts.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/files/write_file.h"

namespace ltrain {
namespace {

namespace fs = std::filesystem;

constexpr double kLookSeconds = 0.5;
constexpr size_t kMostBytes = size_t{1} << 20;

std::string next_path(const std::string& output_dir) { return output_dir + "/stages-next.json"; }

/// Text of a small file; nothing if there is none.
std::optional<std::string> text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string text(kMostBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMostBytes)
    fail(ExitCode::storage, "{}: has more than {} bytes, expected data.stages", path, kMostBytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

std::optional<std::string> taken_stages(const std::string& output_dir) {
  return text_of(output_dir + "/stages.json");
}

void leave_stages(const std::string& output_dir, const std::string& stages) {
  replace_file(next_path(output_dir), stages + "\n");
}

bool StageChanges::pending() {
  const double now = steady_seconds();
  if (now < look_at_) return false;
  look_at_ = now + kLookSeconds;
  std::error_code error;
  return fs::exists(next_path(output_dir_), error);
}

std::string StageChanges::read() const {
  try {
    return text_of(next_path(output_dir_)).value_or("");
  } catch (const Error&) {
    return "";
  }
}

void StageChanges::answer(const std::string& stages, const char* name) const {
  replace_file(output_dir_ + "/" + name, stages + "\n");
  if (read() == stages) fs::remove(next_path(output_dir_));
}

std::string stages_in_words(const std::string& stages) {
  std::string line;
  try {
    for (const auto& stage : nlohmann::json::parse(stages)) {
      const char* between = line.empty() ? "" : "; ";
      line += stage.contains("from_tokens")
                  ? fmt::format("{}from {} tokens:", between, stage["from_tokens"].dump())
                  : fmt::format("{}from step {}:", between, stage.at("from_step").dump());
      for (const auto& source : stage.at("train"))
        line += fmt::format("{} {}", line.ends_with(':') ? "" : ",",
                            printable(source.at("path").get<std::string>(), 100));
    }
  } catch (const nlohmann::json::exception&) {
    return stages;  // YAML that `ltrain data stages` has not written
  }
  return line.empty() ? "none" : line;
}

StageChanges::StageChanges(std::string output_dir, WithStages with_stages,
                           std::unique_ptr<Communicator> group)
    : output_dir_(std::move(output_dir)),
      with_stages_(std::move(with_stages)),
      group_(std::move(group)),
      stream_(make_worker_stream("data.stages")) {}

std::optional<StageChanges::Change> StageChanges::take(const Recipe& recipe, const data::DataIdentity& before,
                                                       int64_t cursor, std::string& reason) {
  const bool lead = group_->rank() == 0;
  Change change;
  change.stages = broadcast_text(*group_, *stream_, lead ? read() : "");
  std::string mine = ok_text(""), identity;
  try {
    change.recipe = with_stages_(recipe, change.stages);
    if (lead) {
      const data::DataIdentity now = data_identity(change.recipe);
      if (const auto begun = data::differences(before, now, cursor); !begun.empty())
        fail(ExitCode::usage, "a mix that has begun cannot change: {}", fmt::join(begun, ", "));
      identity = data_identity_to_json(now);
    }
  } catch (const Error& e) {
    mine = error_text(e.what());
  }
  reason = join_errors(gather_texts(*group_, *stream_, mine));
  if (lead) answer(change.stages, reason.empty() ? "stages.json" : "stages-refused.json");
  if (!reason.empty()) return std::nullopt;
  // All ranks save what rank 0 has read.
  change.identity =
      data_identity_from_json(broadcast_text(*group_, *stream_, identity), "the identity of data of rank 0");
  return change;
}

}  // namespace ltrain
