#include "planner/report/wandb_run.h"

#include <zlib.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "planner/report/run_history.h"
#include "runtime/files/protobuf_fields.h"
#include "runtime/files/write_file.h"

namespace ltrain {
namespace {

/// The client's log of records: LevelDB's log format with CRC-32. A record that crosses a block of 32 KiB is
/// cut into parts.
class RecordLog {
 public:
  RecordLog() : bytes_(":W&B\xe1\xbe\0", 7) {}
  void add(std::string_view record) {
    enum Part : char { whole = 1, first, middle, last };
    for (bool begun = false;; begun = true) {
      size_t left = kBlock - bytes_.size() % kBlock;
      if (left < kHead) bytes_.append(left, '\0'), left = kBlock;
      const std::string_view here = record.substr(0, left - kHead);
      record.remove_prefix(here.size());
      const Part part = begun ? (record.empty() ? last : middle) : (record.empty() ? whole : first);
      put_part(part, here);
      if (record.empty()) return;
    }
  }
  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr size_t kBlock = 32768, kHead = 7;
  void put_part(char part, std::string_view data) {
    const auto* p = reinterpret_cast<const Bytef*>(&part);
    const uLong sum = crc32_z(crc32_z(0, p, 1), reinterpret_cast<const Bytef*>(data.data()), data.size());
    for (int i = 0; i < 4; ++i) bytes_ += static_cast<char>(sum >> (8 * i));
    for (int i = 0; i < 2; ++i) bytes_ += static_cast<char>(data.size() >> (8 * i));
    bytes_ += part;
    bytes_ += data;
  }
  std::string bytes_;
};

/// Fields of the client's messages (wandb/proto/wandb_internal.proto).
namespace field {
constexpr int history = 2, summary = 3, run = 17, exit = 18, header = 21;  // Record has its number in 1
}

/// A key with its value as JSON, in the messages HistoryItem, SummaryItem and ConfigItem.
std::string item(std::string_view key, std::string_view json) {
  std::string to;
  put_field(to, 2, key);  // nested_key: one part, so that `.` and `/` in it mean nothing
  put_field(to, 16, json);
  return to;
}

std::string json_of(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return nlohmann::json(value).dump();
}

class RunFile {
 public:
  explicit RunFile(const TrackedRun& run) : run_(run) {}
  void begin(const std::string& id, const std::string& project) {
    std::string version, header;
    put_field(version, 1, "ltrain");
    put_field(version, 2, "0.70.0");  // oldest client, as wandb 0.31 writes it
    put_field(header, 1, version);
    add(field::header, header);
    std::string config, r, started;
    for (const auto& [key, value] : run_.config.items()) put_field(config, 1, item(key, value.dump()));
    put_field(started, 1, run_.started);
    put_field(r, 1, id);
    put_field(r, 3, project);
    put_field(r, 4, config);
    put_field(r, 8, run_.name);
    put_field(r, 13, run_.host);
    put_field(r, 17, started);
    add(field::run, r);
  }
  void step(const StepNumbers& s) {
    std::string history, number;
    const auto put = [&](const std::string& key, const std::string& json) {
      put_field(history, 1, item(key, json));
      last_[key] = json;
    };
    for (const auto& [key, value] : s.values) put(key, json_of(value));
    put("_step", std::to_string(s.step));
    put("_runtime", json_of(s.seconds));
    put("_timestamp", json_of(static_cast<double>(run_.started) + s.seconds));
    put_field(number, 1, s.step);
    put_field(history, 2, number);
    add(field::history, history);
    reached_ = s.step;
    seconds_ = s.seconds;
  }
  /// A run with steps left gets no end, so that the client leaves it open.
  void end() {
    std::string summary, end;
    for (const auto& [key, json] : last_) put_field(summary, 1, item(key, json));
    add(field::summary, summary);
    if (!run_.done(reached_)) return;
    put_field(end, 1, 0);
    put_field(end, 2, static_cast<int64_t>(seconds_));
    add(field::exit, end);
  }
  const std::string& bytes() const { return log_.bytes(); }

 private:
  void add(int which, const std::string& message) {
    std::string record;
    put_field(record, 1, ++records_);
    put_field(record, which, message);
    log_.add(record);
  }
  const TrackedRun& run_;
  RecordLog log_;
  int64_t records_ = 0, reached_ = 0;
  double seconds_ = 0;
  std::map<std::string, std::string> last_;
};

}  // namespace

std::string write_wandb_run(const std::string& run, const std::string& folder, const std::string& project) {
  const TrackedRun tracked = read_tracked_run(run);
  const std::string id = tracked.id().substr(0, 8);
  RunFile file(tracked);
  file.begin(id, project);
  each_step(run, [&](const StepNumbers& s) { file.step(s); });
  file.end();
  char when[32];
  const std::time_t started = tracked.started;
  struct tm utc {};
  gmtime_r(&started, &utc);
  std::strftime(when, sizeof when, "%Y%m%d_%H%M%S", &utc);
  const std::string offline = fmt::format("{}/offline-run-{}-{}", folder, when, id);
  const std::string path = fmt::format("{}/run-{}.wandb", offline, id);
  std::error_code error;
  std::filesystem::create_directories(offline + "/files", error);
  if (error) fail(ExitCode::storage, "{}: cannot be made: {}", offline, error.message());
  replace_file(path, file.bytes());
  for (const char* mark : {".synced", ".syncstate"})
    std::filesystem::remove(path + mark, error);  // marks of an upload
  return offline;
}

}  // namespace ltrain
