#include "runtime/telemetry/prometheus.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "parallel/comm/socket.h"
#include "runtime/files/write_file.h"
#include "runtime/telemetry/gpu_numbers.h"

namespace ltrain {
namespace {

/// Value of a label: backslash, quote and line break are escaped; other control characters are left out.
std::string label_value(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) >= 32)
      out += c;
  }
  return out;
}

std::string number_text(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", v);
}

class Page {
 public:
  explicit Page(const std::string& run) : run_(label_value(run)) {}

  /// One metric. `samples`: value by the text of further labels, `axis="dp"`. `prefix`: of the name.
  void add(const char* name, const char* type, const char* help,
           const std::vector<std::pair<std::string, double>>& samples, const char* prefix = "ltrain_") {
    if (samples.empty()) return;
    text_ += fmt::format("# HELP {}{} {}\n# TYPE {}{} {}\n", prefix, name, help, prefix, name, type);
    for (const auto& [labels, value] : samples)
      text_ += fmt::format("{}{}{{run=\"{}\"{}{}}} {}\n", prefix, name, run_, labels.empty() ? "" : ",",
                           labels, number_text(value));
  }
  void gauge(const char* name, const char* help, double value) { add(name, "gauge", help, {{"", value}}); }
  void counter(const char* name, const char* help, double value) {
    add(name, "counter", help, {{"", value}});
  }
  const std::string& text() const { return text_; }

 private:
  std::string run_, text_;
};

/// Numbers of GPUs under the names and labels of the DCGM exporter.
void add_gpus(Page& p, const std::vector<RankGpu>& gpus) {
  for (const GpuNumber& n : gpu_numbers()) {
    std::vector<std::pair<std::string, double>> samples;
    for (const RankGpu& g : gpus)
      if (const std::optional<double> value = g.reading.*n.member)
        samples.emplace_back(fmt::format("rank=\"{}\",Hostname=\"{}\"", g.rank, label_value(g.host)),
                             *value * n.dcgm_scale);
    p.add(n.dcgm, n.type, n.help, samples, "");
  }
}

void add_churn(Page& p, const RoutingChurn& churn) {
  std::vector<std::pair<std::string, double>> samples;
  for (size_t i = 0; i < churn.by_layer.size(); ++i)
    if (std::isfinite(churn.by_layer[i]))
      samples.emplace_back(fmt::format("layer=\"{}\"", i), churn.by_layer[i]);
  if (samples.empty()) return;
  p.gauge("routing_churn_ratio", "Choices of the routing probe that changed since the one before.",
          churn.all);
  p.add("routing_churn_by_layer_ratio", "gauge", "The same by layer.", samples);
}

constexpr double kBytesOfGib = 1073741824.0;

}  // namespace

std::string prometheus_text(const StepMetrics& m, const std::string& run, int restarts,
                            const std::map<std::string, double>& eval_loss, double now,
                            const std::vector<Straggler>& stragglers, const std::vector<RankGpu>& gpus,
                            const RoutingChurn& churn) {
  Page p(run);
  p.gauge("iteration", "Optimizer steps done.", static_cast<double>(m.step));
  p.gauge("train_iterations", "Steps of the recipe.", static_cast<double>(m.train_steps));
  p.gauge("lm_loss_nats", "Mean cross-entropy over the steps of the interval.", m.lm_loss);
  for (const auto& [name, value] : m.means)
    if (name == "mtp_loss") p.gauge("mtp_loss_nats", "Loss of multi-token prediction.", value);
  p.gauge("grad_norm", "2-norm of the gradient before clipping, mean of the interval.", m.grad_norm);
  p.gauge("learning_rate", "Learning rate of the last step.", m.lr);
  if (m.replicas > 0) p.gauge("replicas", "Replicas of the last step.", m.replicas);
  if (m.loss_scale > 0) p.gauge("loss_scale", "Factor of the loss with fp16.", m.loss_scale);
  p.gauge("step_time_seconds", "Wall time of a step, mean of the interval.", m.step_time_ms / 1e3);
  p.gauge("data_time_seconds", "Time of the last step that rank 0 waited for the loader.",
          m.data_time_ms / 1e3);
  p.gauge("data_wait_seconds", "Time of the last step that ranks waited for token files in the making.",
          m.data_wait_ms / 1e3);
  std::vector<std::pair<std::string, double>> exposed, losses;
  for (const auto& [axis, ms] : m.exposed_comm_ms)
    exposed.emplace_back(fmt::format("axis=\"{}\"", label_value(axis)), ms / 1e3);
  p.add("exposed_communication_seconds", "gauge",
        "Time of the last step that rank 0's compute waited for communication.", exposed);
  p.gauge("tokens_per_second", "Tokens of all ranks by the second.", m.tokens_per_sec);
  p.gauge("tokens_per_second_per_gpu", "Tokens of a rank by the second.", m.tokens_per_sec_per_gpu);
  p.gauge("throughput_tflops_per_gpu", "Model TFLOP/s of a rank.", m.tflops_per_gpu);
  if (std::isfinite(m.mfu)) p.gauge("mfu_ratio", "Model FLOPs over the peak of all ranks, 0 to 1.", m.mfu);
  p.gauge("memory_peak_bytes", "Highest use of rank 0's arena.", m.mem_peak_gib * kBytesOfGib);
  p.gauge("memory_plan_bytes", "Planned size of rank 0's arena.", m.mem_plan_gib * kBytesOfGib);
  p.counter("consumed_tokens_total", "Tokens since the start of training.",
            static_cast<double>(m.consumed_tokens));
  p.counter("consumed_samples_total", "Sequences since the start of training.",
            static_cast<double>(m.consumed_samples));
  p.counter("skipped_iterations_total", "Steps that made no update, since the start of training.",
            static_cast<double>(m.skipped_steps));
  std::vector<std::pair<std::string, double>> slow;
  for (const Straggler& s : stragglers)
    slow.emplace_back(
        fmt::format("rank=\"{}\",host=\"{}\",reason=\"{}\"", s.rank, label_value(s.host), s.reason),
        s.own_ms / std::max(1e-3, s.median_ms));
  p.add("straggler_slowdown_ratio", "gauge",
        "Own time of a rank that holds up the others, over the median of the ranks.", slow);
  add_gpus(p, gpus);
  p.gauge("restarts", "Restarts by launch.max_restarts in this run.", restarts);
  for (const auto& [set, loss] : eval_loss)
    losses.emplace_back(set.empty() ? "" : fmt::format("set=\"{}\"", label_value(set)), loss);
  p.add("eval_loss_nats", "gauge", "Held-out loss of the last evaluation.", losses);
  add_churn(p, churn);
  p.gauge("seconds_left", "Expected time to the last step.", m.seconds_left);
  p.gauge("last_update_timestamp_seconds", "Unix time of this file.", now);
  return p.text();
}

PrometheusText::PrometheusText(Options options) : o_(std::move(options)) {
  if (o_.port == 0) return;
  try {
    server_ = std::make_unique<MetricsServer>(o_.port);
    notes_.push_back(fmt::format("metrics at http://{}:{}/metrics", host_name(), o_.port));
  } catch (const Error& e) {
    notes_.push_back(fmt::format("warning: {}; training goes on without the page", e.what()));
  }
}

void PrometheusText::step(const StepMetrics& m) {
  mean_.add(m);
  last_ = mean_.mean(m);
  any_ = true;
  if (m.step % o_.log_interval != 0 && m.step != m.end_step) return;
  mean_ = {};
  write(last_);
}

void PrometheusText::finish() {
  if (any_) write(last_);
}

void PrometheusText::write(const StepMetrics& m) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string text =
      prometheus_text(m, o_.run, o_.restarts, eval_loss_, now, stragglers_, gpus_, churn_);
  if (server_) server_->set_page(text);
  if (o_.path.empty()) return;
  try {
    replace_file(o_.path, text);
    if (std::exchange(failing_, false)) notes_.push_back(o_.path + " is written again");
  } catch (const std::exception& e) {
    if (!std::exchange(failing_, true))
      notes_.push_back(fmt::format(
          "warning: telemetry.prometheus: {}; training goes on, and the next log line tries again",
          e.what()));
  }
}

}  // namespace ltrain
