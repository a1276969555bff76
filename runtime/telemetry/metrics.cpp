#include "runtime/telemetry/metrics.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/json/json.h"
#include "base/log.h"
#include "runtime/telemetry/append_file.h"
#include "runtime/telemetry/expert_images.h"
#include "runtime/telemetry/gpu_numbers.h"
#include "runtime/telemetry/prometheus.h"
#include "runtime/telemetry/tensorboard.h"

namespace ltrain {
namespace {

using nlohmann::json;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// JSON has no NaN, so it is written as null.
json number(double v) { return std::isfinite(v) ? json(v) : json(nullptr); }

json numbers(const std::vector<double>& all) {
  json list = json::array();
  for (const double v : all) list.push_back(number(v));
  return list;
}

/// A step without an update is one too: some are usual, many are not.
bool is_warning(std::string_view text) {
  return text.starts_with("warning:") || text.starts_with("WARNING:") ||
         text.find(": no update was made") != std::string_view::npos;
}

/// Step of a line of metrics.jsonl; INT64_MAX for another line.
int64_t line_step(const std::string& line) {
  const json j = json::parse(line, nullptr, false);
  const auto step = j.is_object() ? j.find("step") : j.end();
  return step != j.end() && step->is_number_integer() ? step->get<int64_t>()
                                                      : std::numeric_limits<int64_t>::max();
}

}  // namespace

struct MetricsWriter::State {
  std::unique_ptr<AppendFile> file;
  std::unique_ptr<TensorBoardWriter> tensorboard;
  ExpertImages images;
  std::unique_ptr<PrometheusText> prometheus;
  int64_t first_step = 0, lost_steps = 0;

  std::vector<AppendFile*> files() {
    std::vector<AppendFile*> all{file.get()};
    if (tensorboard) all.push_back(&tensorboard->file());
    return all;
  }
};

MetricsWriter::MetricsWriter(const std::string& run_dir, bool tensorboard, int64_t last_step)
    : state_(std::make_unique<State>()) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::string kept;
  bool dropped = false;
  int64_t furthest = last_step;
  if (std::ifstream old(path); old)
    for (std::string line; std::getline(old, line);) {
      // An incomplete last line is from a run that died. It is removed, because the next line would be joined
      // to it.
      if (old.eof() || line_step(line) > last_step) dropped = true;
      const int64_t step = line_step(line);
      if (step <= last_step) kept += line + "\n";
      if (step != std::numeric_limits<int64_t>::max()) furthest = std::max(furthest, step);
    }
  if (dropped) {
    std::ofstream out(path + ".tmp");
    out << kept;
    out.close();
    std::error_code error;
    if (out) std::filesystem::rename(path + ".tmp", path, error);
    if (!out || error)
      fail(ExitCode::storage, "{}: cannot be rewritten without the steps after {}", path, last_step);
  }
  state_->first_step = last_step, state_->lost_steps = furthest - last_step;
  state_->file = std::make_unique<AppendFile>(path, false);
  if (tensorboard) state_->tensorboard = std::make_unique<TensorBoardWriter>(run_dir, last_step + 1);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::also(std::unique_ptr<PrometheusText> file) { state_->prometheus = std::move(file); }

int64_t MetricsWriter::lost_steps() const { return state_->lost_steps; }

void MetricsWriter::restart(int number, int most, const std::string& reason) {
  const json j{{"step", state_->first_step},
               {"restart", number},
               {"max_restarts", most},
               {"lost_steps", state_->lost_steps},
               {"reason", reason}};
  state_->file->append(j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

/// Seconds, to the millisecond.
static double unix_time() {
  using namespace std::chrono;
  const auto now = duration_cast<milliseconds>(system_clock::now().time_since_epoch());
  return static_cast<double>(now.count()) / 1e3;
}

void MetricsWriter::step(const StepMetrics& m) {
  if (state_->prometheus) state_->prometheus->step(m);
  json j{{"step", m.step},
         {"lm_loss", number(m.lm_loss)},
         {"grad_norm", number(m.grad_norm)},
         {"lr", number(m.lr)},
         {"tokens_per_sec", number(m.tokens_per_sec)},
         {"tokens_per_sec_per_gpu", number(m.tokens_per_sec_per_gpu)},
         {"tflops_per_gpu", number(m.tflops_per_gpu)},
         {"mfu", number(m.mfu)},
         {"step_time_ms", number(m.step_time_ms)},
         {"data_time_ms", number(m.data_time_ms)},
         {"data_wait_ms", number(m.data_wait_ms)},
         {"mem_peak_gib", number(m.mem_peak_gib)},
         {"mem_plan_gib", number(m.mem_plan_gib)},
         {"consumed_tokens", m.consumed_tokens},
         {"consumed_samples", m.consumed_samples},
         {"skipped_steps", m.skipped_steps},
         {"time", unix_time()}};
  for (const auto& [axis, ms] : m.exposed_comm_ms) j["exposed_comm_ms/" + axis] = number(ms);
  if (m.exposed_offload_ms >= 0) j["exposed_offload_ms"] = number(m.exposed_offload_ms);
  for (const auto& [name, value] : m.means) j[name] = number(value);
  if (m.ce_loss) j["ce_loss"] = number(*m.ce_loss);
  if (m.kl) j["kl"] = number(*m.kl);
  for (const auto& [name, value] : m.preference) j[name] = number(value);
  if (m.loss_scale > 0) j["loss_scale"] = number(m.loss_scale);
  if (m.replicas > 0) j["replicas"] = m.replicas;
  if (!m.expert_tokens.empty()) {
    j["balance_loss"] = number(m.balance_loss);
    j["router_z_loss"] = number(m.router_z_loss);
    j["router_entropy_loss"] = number(m.router_entropy_loss);
    if (m.router_distillation_loss) j["router_distillation_loss"] = number(*m.router_distillation_loss);
    j["drop_rate"] = number(m.drop_rate);
    j["expert_load_entropy"] = number(m.expert_load_entropy);
    j["experts_per_token"] = number(m.experts_per_token);
    j["expert_tokens"] = m.expert_tokens;
    j["drop_rate_by_layer"] = numbers(m.drop_rate_by_layer);
  }
  if (!m.slices_beyond_budget_by_layer.empty()) {
    j["rows_beyond_budget"] = number(m.rows_beyond_budget);
    j["slices_beyond_budget"] = number(m.slices_beyond_budget);
    j["slices_beyond_budget_by_layer"] = numbers(m.slices_beyond_budget_by_layer);
  }
  for (const GpuNumber& n : gpu_numbers())
    if (m.gpu.*n.member) j[std::string("gpu_") + n.name] = number(*(m.gpu.*n.member));
  state_->file->append(j.dump() + "\n");
  state_->images.step(m);
  if (state_->tensorboard)
    for (const auto& [name, value] : j.items())
      if (name != "step" && name != "time" && value.is_number())
        state_->tensorboard->scalar(name, m.step, value.get<double>());
}

void MetricsWriter::stragglers(int64_t step, const std::vector<Straggler>& found) {
  if (state_->prometheus) state_->prometheus->stragglers(found);
  for (const Straggler& s : found) {
    json j{{"step", step},
           {"straggler", s.rank},
           {"straggler_host", s.host},
           {"straggler_reason", s.reason},
           {"straggler_own_ms", number(s.own_ms)},
           {"straggler_median_ms", number(s.median_ms)}};
    if (s.gpu.sm_clock_mhz) j["straggler_sm_clock_mhz"] = number(*s.gpu.sm_clock_mhz);
    if (s.gpu.temperature_c) j["straggler_temperature_c"] = number(*s.gpu.temperature_c);
    state_->file->append(j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
  }
}

void MetricsWriter::gpus(int64_t step, const std::vector<RankGpu>& all) {
  if (state_->prometheus) state_->prometheus->gpus(all);
  if (all.size() < 2) return;  // the lines of steps have rank 0's
  json columns = json::object();
  for (const GpuNumber& n : gpu_numbers()) {
    json column = json::array();
    bool any = false;
    for (const RankGpu& g : all) {
      const std::optional<double> value = g.reading.*n.member;
      column.push_back(value ? number(*value) : json(nullptr));
      any = any || value;
    }
    if (any) columns[n.name] = std::move(column);
  }
  if (columns.empty()) return;
  for (const RankGpu& g : all) columns["host"].push_back(g.host);
  const json j{{"step", step}, {"gpus", std::move(columns)}};
  state_->file->append(j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

void MetricsWriter::eval(int64_t step, const std::string& name, double loss, double bits_per_byte,
                         const std::vector<std::pair<std::string, double>>& preference) {
  if (state_->prometheus) state_->prometheus->eval(name, loss);
  json j{{"step", step}};
  if (!name.empty()) j["eval_set"] = name;
  const auto put = [&](const std::string& key, double value) {
    j[key] = number(value);
    if (state_->tensorboard) state_->tensorboard->scalar(name.empty() ? key : key + "/" + name, step, value);
  };
  put("eval_loss", loss);
  if (preference.empty()) put("eval_perplexity", std::exp(loss));
  for (const auto& [key, value] : preference) put("eval_" + key, value);
  if (bits_per_byte > 0) put("eval_bits_per_byte", bits_per_byte);
  if (state_->tensorboard) state_->images.write(step, *state_->tensorboard);
  state_->file->append(j.dump() + "\n");
}

void MetricsWriter::routing(int64_t step, const RoutingChurn& churn) {
  if (state_->prometheus) state_->prometheus->routing(churn);
  const json j{{"step", step},
               {"routing_churn", number(churn.all)},
               {"routing_churn_by_layer", numbers(churn.by_layer)}};
  state_->file->append(j.dump() + "\n");
  if (!state_->tensorboard) return;
  if (std::isfinite(churn.all)) state_->tensorboard->scalar("routing_churn", step, churn.all);
  state_->images.routing(step, churn, *state_->tensorboard);
  state_->images.write(step, *state_->tensorboard);
}

std::vector<std::string> MetricsWriter::notes() {
  std::vector<std::string> all;
  for (AppendFile* f : state_->files())
    for (std::string& note : f->notes()) all.push_back(std::move(note));
  if (state_->prometheus)
    for (std::string& note : state_->prometheus->notes()) all.push_back(std::move(note));
  return all;
}

std::vector<std::string> MetricsWriter::finish() {
  for (AppendFile* f : state_->files()) f->finish();
  if (state_->prometheus) state_->prometheus->finish();
  return notes();
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}d {:02}:{:02}", s / 86400, s / 3600 % 24, s / 60 % 60);
}

std::string format_count(double n) {
  if (n < 10000) return fmt::format("{:.0f}", n);
  if (n < 1e6) return fmt::format("{:.1f}k", n / 1e3);
  if (n < 1e9) return fmt::format("{:.2f}M", n / 1e6);
  return n < 1e12 ? fmt::format("{:.2f}B", n / 1e9) : fmt::format("{:.2f}T", n / 1e12);
}

Progress::Progress(LogFormat format, int64_t log_interval)
    : format_(format), interval_(std::max<int64_t>(1, log_interval)) {
  quiet_ = std::getenv("LTRAIN_QUIET") != nullptr;  // set for runs of `ltrain bench`
  const char* launched = std::getenv("LTRAIN_LAUNCHER");
  if (!launched || std::string(launched) != "1") relay_ = std::make_unique<OutputRelay>(2);
  // Under a launcher stderr is a pipe, and the launcher reports whether its own output is a terminal.
  const char* told = std::getenv("LTRAIN_TTY");
  terminal_ = (told ? std::string(told) == "1" : isatty(2) == 1) && format == LogFormat::text;
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (term && std::string(term) == "dumb") terminal_ = false;
  colour_ = terminal_ && !(no_colour && *no_colour);
  struct winsize size {};
  if (const char* c = std::getenv("COLUMNS"); c && std::atoi(c) > 20) {
    columns_ = std::atoi(c);
  } else if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 20) {
    columns_ = size.ws_col;
  }
}

Progress::~Progress() {
  for (const std::string& line : limit_.rest()) write(line, true);
  if (drawn_) put("\n");
}

void Progress::clear() {
  if (!drawn_) return;
  put("\r\033[K");
  drawn_ = false;
}

void Progress::put(const std::string& text) {
  if (relay_) return relay_->write(text);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

void Progress::line(const std::string& text) {
  if (quiet_) return;
  const bool warning = is_warning(text);
  const double now_unix =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (const std::string said = warning ? limit_.pass(text, now_unix) : text; !said.empty())
    write(said, warning);
}

void Progress::write(const std::string& line, bool warning) {
  clear();
  put(format_ == LogFormat::json ? log_text(warning ? LogLevel::warning : LogLevel::info, line)
                                 : line + "\n");
}

void IntervalMean::add(const StepMetrics& m) {
  ++steps_;
  skipped_ += m.skipped;
  not_finite_ += !std::isfinite(m.lm_loss) || !std::isfinite(m.grad_norm);
  loss_ += m.lm_loss, norm_ += m.grad_norm;
  ms_ += m.step_time_ms;
  tokens_ += m.tokens_per_sec * m.step_time_ms, tokens_of_gpu_ += m.tokens_per_sec_per_gpu * m.step_time_ms;
  tflop_ += m.tflops_per_gpu * m.step_time_ms, mfu_ms_ += m.mfu * m.step_time_ms;
  if (m.step_time_ms >= slowest_ms_) slowest_ms_ = m.step_time_ms, slowest_step_ = m.step;
}

StepMetrics IntervalMean::mean(const StepMetrics& last) const {
  StepMetrics m = last;
  if (steps_ == 0) return m;
  const double n = static_cast<double>(steps_);
  m.lm_loss = loss_ / n, m.grad_norm = norm_ / n, m.step_time_ms = ms_ / n;
  if (ms_ <= 0) return m;
  m.tokens_per_sec = tokens_ / ms_, m.tokens_per_sec_per_gpu = tokens_of_gpu_ / ms_;
  m.tflops_per_gpu = tflop_ / ms_, m.mfu = mfu_ms_ / ms_;
  return m;
}

void Progress::step(const StepMetrics& of_step) {
  if (quiet_) return;
  mean_.add(of_step);
  const StepMetrics m = mean_.mean(of_step);
  const IntervalMean interval = mean_;
  const bool last = m.step == m.end_step, ends = m.step % interval_ == 0 || last;
  if (ends) mean_ = {};
  if (format_ == LogFormat::megatron) {
    if (!ends) return;
    line(fmt::format(
        " iteration {:>8}/{:>8} | consumed samples: {:>12} | elapsed time per iteration (ms): {:.1f} | "
        "throughput per GPU (TFLOP/s/GPU): {:.3f} | learning rate: {:.6E} | lm loss: {:.6E} | grad norm: "
        "{:.3f} | number of skipped iterations: {:>3} | number of nan iterations: {:>3} |",
        m.step, m.train_steps, m.consumed_samples, m.step_time_ms, m.tflops_per_gpu, m.lr, m.lm_loss,
        m.grad_norm, interval.skipped(), interval.not_finite()));
    return;
  }
  const std::string left =
      m.seconds_left > 0 ? fmt::format("  {} left", format_duration(m.seconds_left)) : "";
  const std::string mfu = std::isfinite(m.mfu) ? fmt::format("  MFU {:.1f}%", 100 * m.mfu) : "";
  const std::string slowest =
      interval.steps() > 1
          ? fmt::format("  slowest step {} {:.0f} ms", interval.slowest_step(), interval.slowest_ms())
          : "";
  // The remaining time comes early, because a narrow terminal cuts off the end of the line.
  std::string text =
      fmt::format("step {}/{}{}  loss {:.4f}  lr {:.2e}  norm {:.2f}  {} tok/s{}  mem {:.0f}/{:.0f} MiB{}",
                  m.step, m.train_steps, left, m.lm_loss, m.lr, m.grad_norm, format_count(m.tokens_per_sec),
                  mfu, m.mem_peak_gib * 1024, m.mem_plan_gib * 1024, slowest);
  if (ends) return line(emphasized(text));
  const double t = now();
  if (!terminal_ || t - last_draw_ < 0.1) return;
  last_draw_ = t;
  clear();
  if (static_cast<int>(text.size()) >= columns_) text.resize(static_cast<size_t>(columns_ - 1));
  put(emphasized(text));
  drawn_ = true;
}

std::string Progress::emphasized(std::string text) const {
  if (colour_) text.insert(std::min(text.find("  "), text.size()), "\033[0m").insert(0, "\033[1m");
  return text;
}

}  // namespace ltrain
