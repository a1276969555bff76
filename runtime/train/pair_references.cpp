#include "runtime/train/pair_references.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "parallel/comm/host_collectives.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/data/identity.h"
#include "runtime/files/file.h"
#include "runtime/files/write_file.h"

namespace ltrain {
namespace {

constexpr std::string_view kMagic = "ltrain reference sums 1\n";

/// A file of sums, and the data whose texts have them.
struct SumsFile {
  std::string path;
  const char* key;    // recipe key of the data, for messages
  uint64_t data = 0;  // hash of the data
};

SumsFile sums_file(const Recipe& r, const data::LoaderOptions& options, int held_out) {
  std::string text = fmt::format("{}", r.data.seq_length);
  for (const data::SourceSpec& s : options.sources) text.append("|").append(data::content_identity(s.path));
  const std::string set = held_out > 0 ? fmt::format("-eval-{}", held_out) : "";
  return {.path = fmt::format("{}/reference-sums{}.bin", r.output_dir, set),
          .key = held_out > 0 ? "data.eval" : "data.train",
          .data = XXH3_64bits(text.data(), text.size())};
}

std::string packed(const SumsFile& file, const std::vector<double>& values) {
  std::string text(kMagic);
  const uint64_t count = values.size();
  const auto put = [&](const void* from, size_t bytes) {
    text.append(static_cast<const char*>(from), bytes);
  };
  put(&file.data, 8);
  put(&count, 8);
  put(values.data(), values.size() * 8);
  const uint64_t check = XXH3_64bits(text.data(), text.size());
  put(&check, 8);
  return text;
}

void unpack(const Recipe& r, const SumsFile& sums, std::vector<double>& values) {
  const std::string& path = sums.path;
  if (!data::file_exists(path))
    fail(ExitCode::data,
         "{}: missing. A resumed run with task: {} needs the sums of its reference model over {}, which its "
         "first start wrote; put the file back, or begin anew with another output_dir",
         path, r.task, sums.key);
  const int64_t bytes = static_cast<int64_t>(kMagic.size() + 24 + values.size() * 8);
  data::InputFile file(path);
  if (file.size() != bytes)
    fail(ExitCode::data, "{}: {} bytes, expected {} for {} texts: it is damaged or of other data", path,
         file.size(), bytes, values.size());
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(text.data(), 0, bytes);
  uint64_t hash = 0, check = 0;
  std::memcpy(&hash, text.data() + kMagic.size(), 8);
  std::memcpy(&check, text.data() + bytes - 8, 8);
  if (!text.starts_with(kMagic) || check != XXH3_64bits(text.data(), text.size() - 8))
    fail(ExitCode::data, "{}: damaged, its hash does not match its bytes", path);
  if (hash != sums.data) fail(ExitCode::data, "{}: the sums are of other data than {}", path, sums.key);
  std::memcpy(values.data(), text.data() + kMagic.size() + 16, values.size() * 8);
}

/// Runs the reference over the samples of one source, and fills this rank's part of the table.
void score_source(const Recipe& r, const Mesh& mesh, data::LoaderOptions options, size_t source,
                  TrainProgram& program, data::PairReferences& table) {
  options.sources = {{options.sources[source].path, 1.0}};
  options.global_batch = options.micro_batch * options.dp_size;
  options.eval = true;
  options.eval_samples = 0;
  data::BatchLoader loader(options, 0);
  const int64_t most = data::max_segments(r.data.seq_length);
  // Ranks that have the same pairs have the same sums: one of them contributes.
  const bool mine = mesh.coordinate(Axis::context) == 0 && mesh.coordinate(Axis::tensor) == 0;
  int64_t left = (loader.eval_samples() + options.global_batch - 1) / options.global_batch;
  data::Batch batch;
  program.score_pairs(
      [&]() -> const data::Batch* {
        if (left-- <= 0) return nullptr;
        loader.next(batch);
        return &batch;
      },
      [&](const data::Batch& b, const std::vector<double>& sums) {
        for (size_t i = 0; mine && i < b.sample_index.size(); ++i) {
          if (b.sample_index[i] < 0) continue;
          const int64_t first = table.first(source, b.sample_index[i]);
          for (int64_t t = 0; t < table.segments(source, b.sample_index[i]); ++t)
            table.values[static_cast<size_t>(first + t)] =
                sums[2 * (i * static_cast<size_t>(most) + static_cast<size_t>(t))];
        }
      });
}

/// Every rank's table: the values of different ranks are at different places, and bits of zeros are zero.
void share(std::vector<double>& values, Communicator& control, Stream& stream) {
  std::vector<int64_t> bits;
  for (const double v : values) bits.push_back(std::bit_cast<int64_t>(v));
  sum_over(control, stream, bits);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<double>(bits[i]);
}

}  // namespace

std::shared_ptr<const data::PairReferences> reference_sums(const ReferencedRun& run,
                                                           const data::LoaderOptions& options, int held_out) {
  const Recipe& r = run.recipe;
  std::vector<std::string> paths;
  for (const data::SourceSpec& s : options.sources) paths.push_back(s.path);
  if (r.task == Task::reward) return data::margins_of(paths, r.data.seq_length);
  if (!r.preference.has_reference() || (held_out == 0 && r.preference.references_in_step())) return nullptr;
  auto table = std::make_shared<data::PairReferences>(data::empty_references(paths, r.data.seq_length));
  const SumsFile file = sums_file(r, options, held_out);
  if (run.step > 0) {
    // Rank 0 reads the file of the run, whose folder other hosts may not see.
    if (run.control.rank() == 0) unpack(r, file, table->values);
    share(table->values, run.control, run.stream);
    return table;
  }
  for (size_t source = 0; source < paths.size(); ++source)
    score_source(r, run.mesh, options, source, run.program, *table);
  share(table->values, run.control, run.stream);
  for (const double v : table->values)
    if (!std::isfinite(v))
      fail(ExitCode::data,
           "task: {}: the reference model gives a log-probability of {}, expected a finite one; check {}",
           r.task, v,
           r.preference.reference_model ? "preference.reference_model"
                                        : "model.from and checkpoint.load.path");
  if (run.control.rank() == 0) replace_file(file.path, packed(file, table->values));
  return table;
}

void check_first_loss(const Recipe& r, const StepResult& result) {
  const PreferenceSettings& settings = r.preference;
  // The reference has no dropout.
  const ModelConfig& m = r.model;
  const bool drops =
      m.embd_pdrop > 0 || m.attn_pdrop > 0 || m.resid_pdrop > 0 || (m.lora.on() && m.lora.dropout > 0);
  // With preference.reference_model the reference is another model.
  if (!result.preference || !settings.has_reference() || drops || r.preference.reference_model) return;
  const TextSum same{-1, -1, 1};
  const auto of_label = [&](bool desirable) { return kto_loss(settings, same, desirable).loss; };
  const double share = static_cast<double>(result.preference->desirable) /
                       static_cast<double>(std::max<int64_t>(1, result.preference->pairs));
  const double expected = r.task == Task::kto ? share * of_label(true) + (1 - share) * of_label(false)
                                              : preference_loss(settings, same, same).loss;
  // The sums of a text are of hundreds of log-probabilities, each with the rounding of the precision.
  const double bound = r.precision == Precision::fp64 ? 1e-9 : r.precision == Precision::fp32 ? 1e-4 : 0.05;
  if (std::abs(result.preference->pair_loss - expected) <= bound * std::max(1.0, expected)) return;
  fail(ExitCode::internal,
       "task: {}: step 1: the loss of preferences is {}, expected {} because the policy still equals the "
       "reference; no update was kept. The pass of the reference and the step disagree: report this with "
       "the recipe",
       r.task, result.preference->pair_loss, expected);
}

std::vector<std::pair<std::string, double>> preference_metrics(
    const Recipe& r, const std::optional<PreferenceResult>& result) {
  if (!result) return {};
  const PreferenceResult& p = *result;
  std::vector<std::pair<std::string, double>> all = {{"rewards/chosen", p.chosen_reward},
                                                     {"rewards/rejected", p.rejected_reward},
                                                     {"rewards/margin", p.chosen_reward - p.rejected_reward}};
  if (r.task != Task::reward)
    all.insert(all.end(), {{"logps/chosen", p.chosen}, {"logps/rejected", p.rejected}});
  if (r.preference.estimates_divergence()) all.emplace_back("kl", p.divergence);
  const double count = static_cast<double>(p.pairs);
  if (r.preference.labelled()) {
    all.insert(all.end(), {{"examples", count}, {"desirable", static_cast<double>(p.desirable)}});
    return all;
  }
  if (r.task == Task::dpo) all.insert(all.end(), {{"pair_loss", p.pair_loss}, {"sft_loss", p.sft_loss}});
  all.insert(all.end(), {{"rewards/accuracy", p.accuracy}, {"pairs", count}});
  return all;
}

}  // namespace ltrain
