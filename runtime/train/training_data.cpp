#include "runtime/train/training_data.h"

#include "base/error.h"
#include "base/fault_point.h"
#include "runtime/checkpoint/data_identity.h"
#include "runtime/data/source_union.h"
#include "runtime/program/recipe_program.h"

namespace ltrain {

data::LoaderOptions training_options(const Recipe& recipe, const Mesh& mesh) {
  data::LoaderOptions o = loader_options(recipe, mesh);
  if (o.packing.on()) o.packing.eod = end_of_document(recipe);
  return o;
}

TrainingData::TrainingData(const Recipe& recipe, const Mesh& mesh, Job& job,
                           const data::LoaderOptions& options, int64_t step, int64_t cursor)
    : output_dir_(recipe.output_dir),
      rank_(job.info().rank),
      writes_(mesh.place_in(AxisSet(kAllAxes).without(kDataAxes)) == 0),
      loader_(std::make_unique<data::BatchLoader>(options, cursor)) {
  if (options.shuffle_window > 0)
    file_wait_ = FileWait(job.new_tree_group("token files", kAllAxes, mesh.group(kAllAxes)));
  // All ranks take part in a step before the first of them writes a line of it.
  if (options.ledger && rank_ == 0) begin_ledger(output_dir_, step);
}

void TrainingData::reopen(const data::LoaderOptions& options, int64_t cursor) {
  earlier_wait_ += loader_->wait_seconds();
  loader_ = std::make_unique<data::BatchLoader>(options, cursor);
  ledger_.reset();  // numbers of sources may be others
}

void TrainingData::seek(int64_t cursor) {
  earlier_wait_ += loader_->wait_seconds();
  loader_ = std::make_unique<data::BatchLoader>(data::LoaderOptions(loader_->options()), cursor);
}

void TrainingData::read(std::vector<data::Batch>& batches, int64_t micros, int place, int count) {
  batches.resize(static_cast<size_t>((micros - place + count - 1) / count));
  data::Batch other;
  for (int64_t k = 0; k < micros; ++k) {
    LT_FAULT_POINT("train.batch");
    loader_->next(k % count == place ? batches[static_cast<size_t>(k / count)] : other);
  }
}

void TrainingData::trained(int64_t step, const std::vector<data::Batch>& batches, int64_t cursor) {
  LT_CHECK(cursor == loader_->cursor(), "expected the loader at sample {}, got sample {}", cursor,
           loader_->cursor());
  if (!loader_->options().ledger || !writes_) return;
  if (!ledger_) open_ledger();
  ledger_->step(step, batches);
}

void TrainingData::open_ledger() {
  const data::LoaderOptions& options = loader_->options();
  std::vector<std::string> first_files;
  for (const auto& files : data::union_of(options.sources, options.stages).files)
    first_files.push_back(files.at(0));
  ledger_.emplace(output_dir_, rank_, std::move(first_files));
}

}  // namespace ltrain
