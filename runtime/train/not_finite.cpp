#include "runtime/train/not_finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "base/log.h"
#include "parallel/comm/host_collectives.h"
#include "runtime/files/write_file.h"

namespace ltrain {
namespace {

using nlohmann::json;

template <class Word>
int64_t count_words(const std::vector<char>& bytes, Word exponent) {
  int64_t count = 0;
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word;
    std::copy_n(bytes.data() + at, sizeof(Word), reinterpret_cast<char*>(&word));
    count += (word & exponent) == exponent;
  }
  return count;
}

/// Adds the first tensor with such a value to a rank's report, and counts the tensors.
void note(json& report, const char* kind, Stream& stream, const std::string& name, const Tensor& t) {
  if (!t.defined() || t.elements() == 0) return;
  const int64_t bad = count_not_finite(stream, t);
  if (bad == 0) return;
  if (!report.contains(kind))
    report[kind] = {{"name", name}, {"bad", bad}, {"of", t.elements()}, {"tensors", 0}};
  report[kind]["tensors"] = report[kind]["tensors"].get<int64_t>() + 1;
}

json report_of_tensors(const FailedStep& f) {
  json report{{"host", f.host}};
  ParameterStore& store = f.program.parameters();
  const Offload& o = f.recipe.offload;
  if (f.recipe.parallel.zero_stage < 3 && !o.params.on()) {
    store.complete_weights();
    for (int id = 0; id < store.count(); ++id)
      note(report, "weight", f.compute, store.spec(id).name,
           store.is_nf4(id) ? store.nf4(id).absmax : store.value(id));
  }
  if (!o.optimizer.on() && !o.params.on())
    for (const OwnedPiece& p : store.owned_pieces()) {
      if (f.recipe.parallel.zero_stage >= 3)
        note(report, "weight", f.compute, store.spec(p.id).name, p.nf4.defined() ? p.nf4.absmax : p.master);
      note(report, "gradient", f.compute, store.spec(p.id).name, p.grad);
    }
  return report;
}

/// "rank 1 on host a: model.norm.weight, 3 of 64 values" of the first rank with such a tensor; none: empty.
std::string first_of(const FailedStep& f, const std::vector<json>& reports, const char* kind) {
  const int first_rank = f.mesh.site() * f.mesh.site_ranks();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].contains(kind)) continue;
    const json& r = reports[rank][kind];
    const int64_t tensors = r["tensors"].get<int64_t>();
    return fmt::format("{} of rank {} on host {}, {} of {} values{}", r["name"].get<std::string>(),
                       first_rank + static_cast<int>(rank), reports[rank]["host"].get<std::string>(),
                       r["bad"].get<int64_t>(), r["of"].get<int64_t>(),
                       tensors == 1 ? "" : fmt::format("; {} tensors there have some", tensors));
  }
  return "";
}

/// Returns whether the loss of a forward pass over micro-batch `k` is finite, with the targets of the data
/// ranks from `first` to `last` - 1 alone. Collective.
bool finite_loss(const FailedStep& f, size_t k, int first, int last) {
  HostBatch batch = f.batches[k];
  const int place = f.mesh.place_in(kDataAxes);
  if (place < first || place >= last) std::fill(batch.targets.begin(), batch.targets.end(), -1);
  bool given = false;
  return std::isfinite(f.program.evaluate([&] { return std::exchange(given, true) ? nullptr : &batch; }));
}

/// Repeats the forward passes. Returns the first micro-batch with a bad loss, and the first place on the data
/// axes whose targets give one.
std::optional<std::pair<size_t, int>> first_bad_batch(const FailedStep& f) {
  const int parts = f.mesh.size(kDataAxes);
  for (size_t k = 0; k < f.batches.size(); ++k) {
    if (finite_loss(f, k, 0, parts)) continue;
    int first = 0, last = parts;
    while (last - first > 1) {
      const int middle = first + (last - first) / 2;
      if (finite_loss(f, k, first, middle))
        first = middle;
      else
        last = middle;
    }
    return std::pair(k, first);
  }
  return {};
}

/// Finds where the layers of this rank first compute a value that is NaN or infinite.
class LayerCheck final : public ActivationObserver {
 public:
  explicit LayerCheck(const FailedStep& f) {
    const ProgramOptions& o = f.program.options();
    for (const StageLayers& stage : stages_of_rank(o, f.mesh.place_in(Axis::pipeline))) {
      for (int64_t layer = stage.first; layer < stage.first + stage.count; ++layer) layers_.push_back(layer);
      if (stage.heads) layers_.push_back(o.model.num_hidden_layers);
    }
  }

  void residual(Stream& s, const Tensor& x) override {
    LT_CHECK(at_ + 1 < layers_.size(), "expected the residual stream before {} layers, got more",
             layers_.size());
    note(s, 2 * layers_[++at_], x);
  }
  void neurons(Stream& s, const Tensor& activation) override { note(s, 2 * layers_[at_] + 1, activation); }

  /// {place, bad values, values} of the first such tensor, by twice the index of the layer that reads it,
  /// plus one inside its feed-forward; none: place is kNowhere.
  const std::vector<int64_t>& found() const { return found_; }
  static constexpr int64_t kNowhere = int64_t{1} << 60;

 private:
  void note(Stream& s, int64_t place, const Tensor& t) {
    if (place >= found_[0]) return;
    if (const int64_t bad = count_not_finite(s, t)) found_ = {place, bad, t.elements()};
  }

  /// Layers that read the residual stream, in the order of a pass; the head is the last one.
  std::vector<int64_t> layers_;
  size_t at_ = size_t(-1);  ///< index of the last residual()
  std::vector<int64_t> found_{kNowhere, 0, 0};
};

/// Repeats a micro-batch's forward pass and names the first activation that is NaN or infinite. Collective.
std::string first_bad_layer(const FailedStep& f, size_t k, const std::vector<json>& reports) {
  LayerCheck check(f);
  f.program.observe(&check);
  finite_loss(f, k, 0, f.mesh.size(kDataAxes));
  f.program.observe(nullptr);
  const std::vector<int64_t> all = gather_numbers(f.group, f.stream, check.found());
  size_t first = 0;
  for (size_t rank = 1; rank < reports.size(); ++rank)
    if (all[3 * rank] < all[3 * first]) first = rank;
  const int64_t place = all[3 * first], layer = place / 2;
  if (place == LayerCheck::kNowhere)
    return "\nThe activations of all layers are finite there: the value comes from the output layer or the "
           "loss.";
  return fmt::format("\nThe first such activation there is {}: {} of {} values, on rank {} on host {}.",
                     place % 2 == 1 ? fmt::format("in the feed-forward of layer {}", layer)
                     : layer == 0   ? "the embedding's output"
                                    : fmt::format("the output of layer {}", layer - 1),
                     all[3 * first + 1], all[3 * first + 2], first,
                     reports[first]["host"].get<std::string>());
}

std::string save_batch(const FailedStep& f, int rank) {
  const std::string folder = fmt::format("{}/not-finite/step-{:08d}", f.recipe.output_dir, f.step);
  json micros = json::array();
  for (const HostBatch& b : f.batches)
    micros.push_back({{"samples", b.sample_index}, {"tokens", b.tokens}, {"targets", b.targets}});
  try {
    std::filesystem::create_directories(folder);
    replace_file(fmt::format("{}/rank-{:05d}.json", folder, rank),
                 json{{"step", f.step}, {"rank", rank}, {"host", f.host}, {"micro_batches", micros}}.dump());
  } catch (const std::exception& e) {
    log_lines(LogLevel::warning,
              fmt::format("warning: the batch of step {} is not saved: {}", f.step, e.what()));
  }
  return folder;
}

}  // namespace

int64_t count_not_finite(Stream& stream, const Tensor& t) {
  const DType d = t.dtype;
  if (d != DType::f64 && d != DType::f32 && d != DType::bf16 && d != DType::f16) return 0;
  std::vector<char> bytes(static_cast<size_t>(t.bytes()));
  stream.copy(bytes.data(), t.data, t.bytes());
  stream.synchronize();
  if (d == DType::f64) return count_words<uint64_t>(bytes, 0x7ff0000000000000);
  if (d == DType::f32) return count_words<uint32_t>(bytes, 0x7f800000);
  return count_words<uint16_t>(bytes, d == DType::bf16 ? 0x7f80 : 0x7c00);
}

std::string not_finite_text(const FailedStep& f, const StepResult& r, int64_t sample) {
  const Precision p = f.recipe.precision;
  const bool wide = p == Precision::fp32 || p == Precision::fp64;
  const std::string wider =
      wide ? "" : fmt::format(", or use precision: {}", p == Precision::fp16 ? "bf16" : "fp32");
  return fmt::format(
      "step {}: loss {} and gradient norm {} are not finite; no update was made and nothing was saved.\n{}\n"
      "The same step would fail again: lower optimizer.lr{} check the data around sample {}{}. To tell a "
      "fault of "
      "the\nhardware from one that comes back: ltrain replay {}",
      f.step, r.loss, r.grad_norm, explain_not_finite(f), wider.empty() ? ", or" : ",", sample, wider,
      f.recipe.output_dir);
}

std::string explain_not_finite(const FailedStep& f) {
  f.compute.synchronize();
  const std::string folder = save_batch(f, f.mesh.rank);
  std::vector<json> reports;
  for (const std::string& text : gather_texts(f.group, f.stream, report_of_tensors(f).dump()))
    reports.push_back(json::parse(text));
  const std::string weight = first_of(f, reports, "weight"), gradient = first_of(f, reports, "gradient");
  std::string text = weight.empty() ? "Before the step all weights that were read had usual values."
                                    : "Before the step a weight was NaN or infinite: " + weight + ".";
  // Forward passes outside a step are of all sites.
  if (!trains_preferences(f.recipe.task) && f.program.options().ema_decay == 0 && f.mesh.sites == 1) {
    if (const auto bad = first_bad_batch(f)) {
      const std::vector<int64_t> places = gather_numbers(f.group, f.stream, {f.mesh.place_in(kDataAxes)});
      const auto rank = std::find(places.begin(), places.end(), bad->second) - places.begin();
      text += fmt::format("\nRepeated, the loss is NaN or infinite in micro-batch {} of {}", bad->first + 1,
                          f.batches.size());
      text += f.mesh.size(kDataAxes) == 1
                  ? "."
                  : fmt::format(", with the data of rank {} on host {}.", rank,
                                reports.at(static_cast<size_t>(rank))["host"].get<std::string>());
      text += first_bad_layer(f, bad->first, reports);
    } else {
      text +=
          "\nRepeated, the losses of all micro-batches are finite: the value comes from backward, or does "
          "not come back.";
    }
  }
  if (!gradient.empty()) text += "\nA summed gradient is NaN or infinite: " + gradient + ".";
  return text + fmt::format("\nEach rank's part of the batch: {}", folder);
}

}  // namespace ltrain
