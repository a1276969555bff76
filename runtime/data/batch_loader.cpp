#include "runtime/data/batch_loader.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/progress.h"
#include "runtime/data/document_samples.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/sample_order.h"
#include "runtime/data/source_union.h"
#include "runtime/data/staged_order.h"
#include "runtime/data/window_order.h"

namespace ltrain::data {
namespace {

constexpr std::chrono::milliseconds kLookForFiles{200};

/// Checks LoaderOptions::first_sequence and those of the stages.
void check_sequences(const LoaderOptions& o) {
  const auto check = [&](int64_t sequence) {
    if (sequence == 0 || sequence == o.seq_length) return;
    LT_CHECK(sequence > 0 && o.seq_length % sequence == 0,
             "expected a sequence length that divides {} tokens of a sample, got {}", o.seq_length, sequence);
    LT_CHECK(o.packing.attention_mask && o.packing.position_ids && !o.pairs &&
                 o.packing.mode == SamplePacking::concatenate,
             "expected masks, positions and concatenated documents for sequences of {} tokens in samples of "
             "{}, got others",
             sequence, o.seq_length);
  };
  check(o.first_sequence);
  for (const StageSpec& stage : o.stages) check(stage.sequence);
}

void check_options(const LoaderOptions& o, int64_t first_sample) {
  auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least) fail(ExitCode::usage, "data: {} is {}; it must be at least {}", name, value, least);
  };
  if (o.sources.empty()) fail(ExitCode::usage, "data: no source; name at least one token file");
  at_least("seq_length", o.seq_length, 1);
  at_least("micro_batch", o.micro_batch, 1);
  at_least("global_batch", o.global_batch, 1);
  at_least("vocab_size", o.vocab_size, 1);
  at_least("prefetch", o.prefetch, 1);
  at_least("dp_size", o.dp_size, 1);
  at_least("dp_rank", o.dp_rank, 0);
  at_least("eval_samples", o.eval_samples, 0);
  at_least("first sample", first_sample, 0);
  for (size_t i = 0; i < o.stages.size(); ++i)
    at_least("first sample of a stage", o.stages[i].first_sample, i ? o.stages[i - 1].first_sample + 1 : 1);
  if ((o.eval || o.pairs) && !o.stages.empty())
    fail(ExitCode::usage, "data: {} stages; an evaluation and preference pairs have one mix",
         o.stages.size());
  if (o.rows && (o.rows->seq != o.seq_length || o.rows->rows < 1 || o.rows->rows > o.seq_length))
    fail(ExitCode::usage, "data: {} rows of sequences of {}, but seq_length is {}", o.rows->rows, o.rows->seq,
         o.seq_length);
  check_sequences(o);
  if (o.dp_rank >= o.dp_size) fail(ExitCode::usage, "data: dp_rank {} of {}", o.dp_rank, o.dp_size);
  if (o.vocab_size > int64_t{1} << 31)
    fail(ExitCode::usage, "data: vocab_size {}; at most 2^31", o.vocab_size);
  const int64_t ranks = o.dp_size * o.share.of, unit = o.micro_batch * ranks;
  if (o.global_batch % unit != 0)
    fail(ExitCode::usage,
         "data: global_batch {} is not a multiple of micro_batch {} x {} data-parallel ranks = {}; the next "
         "that is: {}",
         o.global_batch, o.micro_batch, ranks, unit, (o.global_batch / unit + 1) * unit);
}

/// Token files of all sources, opened when a sample of them is asked for, and the places of samples in them.
/// With LoaderOptions::shuffle_window a file may be missing until then. For several threads.
class SourceFiles {
 public:
  /// Opens all files without a window, and checks them.
  SourceFiles(const LoaderOptions& o, const SourceUnion& all) : options_(o) {
    if (o.packing.mode != SamplePacking::concatenate) documents_.emplace(o.seq_length, o.packing.mode);
    for (size_t i = 0; i < all.files.size(); ++i) {
      const auto count = static_cast<int64_t>(all.files[i].size());
      sources_.push_back(
          {all.files[i], WindowOrder(static_cast<int>(i), count, o.shuffle_window, o.seed, !o.eval), {}, 0});
      if (o.shuffle_window == 0)
        while (!sources_.back().order.knows_all()) open_next(sources_.back());
    }
  }

  struct Found {
    const IndexedDataset* data = nullptr;
    size_t number = 0;      ///< number of the file in DocumentSamples
    int64_t sample = 0;     ///< sample of the file
    int64_t in_source = 0;  ///< number of the sample in its source
  };
  /// Sample of a draw; nothing if its window has a file that does not exist yet.
  std::optional<Found> find(const Blend::Draw& draw) {
    const std::lock_guard lock(mutex_);
    Source& s = sources_[static_cast<size_t>(draw.source)];
    for (;;) {
      if (s.order.knows_all() && s.order.known_samples() == 0)
        fail(ExitCode::data,
             "{} and {} other token files: less than one sample of seq_length + 1 = {} tokens in each",
             s.files[0], s.files.size() - 1, options_.seq_length + 1);
      if (const auto at = s.order.find(draw.index)) {
        const Opened& file = s.opened[static_cast<size_t>(at->file)];
        return Found{file.data.get(), file.number, at->sample, at->in_source};
      }
      if (!exists(s, s.opened.size())) return std::nullopt;
      open_next(s);
    }
  }

  /// Files that exist, from the first on, and all.
  FileCounts counts() {
    const std::lock_guard lock(mutex_);
    FileCounts c;
    for (Source& s : sources_) {
      while (s.existing < s.files.size() && exists(s, s.existing)) ++s.existing;
      c.made += static_cast<int64_t>(s.existing), c.all += static_cast<int64_t>(s.files.size());
    }
    return c;
  }
  /// First file of a source that was not opened.
  std::string next_file(int source) {
    const std::lock_guard lock(mutex_);
    const Source& s = sources_[static_cast<size_t>(source)];
    return s.opened.size() < s.files.size() ? s.files[s.opened.size()] : "";
  }

  bool packs_documents() const { return documents_.has_value(); }
  void documents_of(const Found& at, std::vector<DocumentSamples::Run>& out) {
    const std::lock_guard lock(mutex_);
    documents_->sample(at.number, at.sample, out);
  }

  /// Samples of each source in the files that were opened.
  std::vector<int64_t> samples() const {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> all;
    for (const Source& s : sources_) all.push_back(s.order.known_samples());
    return all;
  }
  int64_t memory_bytes() const {
    const std::lock_guard lock(mutex_);
    int64_t bytes = documents_ ? documents_->memory_bytes() : 0;
    for (const Source& s : sources_)
      for (const Opened& file : s.opened) bytes += file.data->memory_bytes();
    return bytes;
  }

 private:
  struct Opened {
    std::unique_ptr<IndexedDataset> data;
    size_t number;
  };
  struct Source {
    std::vector<std::string> files;
    WindowOrder order;
    std::vector<Opened> opened;
    size_t existing;  // files that exist, from the first on
  };

  static bool exists(const Source& s, size_t file) {
    return file < s.existing || file_exists(dataset_prefix(s.files[file]) + ".idx");
  }
  void open_next(Source& s) {
    auto data = std::make_unique<IndexedDataset>(s.files[s.opened.size()]);
    const SourceInfo& info = data->info();
    if (s.files.size() == 1)
      check_source(info, options_.vocab_size, options_.seq_length, options_.packing.mode);
    else
      check_tokens(info, options_.vocab_size, options_.seq_length);
    const size_t number = files_++;
    if (documents_) documents_->add(*data);
    s.order.add(documents_ ? documents_->count(number).samples : info.samples(options_.seq_length));
    s.opened.push_back({std::move(data), number});
  }

  const LoaderOptions& options_;
  mutable std::mutex mutex_;
  std::vector<Source> sources_;
  size_t files_ = 0;                          // opened ones of all sources
  std::optional<DocumentSamples> documents_;  // samples of whole documents
};

/// Samples of an evaluation: each at most once, until the first source ends.
int64_t evaluated_samples(const LoaderOptions& o, const std::vector<int64_t>& samples) {
  std::vector<double> weights;
  for (const SourceSpec& s : o.sources) weights.push_back(s.weight);
  const int64_t all = SampleOrder(samples, weights, o.seed, false).before_first_repeat();
  return o.eval_samples == 0 ? all : std::min(all, o.eval_samples);
}

ReadSample with_crc(ReadSample read, const std::vector<int32_t>& tokens) {
  read.crc = static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(tokens.data()), tokens.size() * sizeof tokens[0]));
  return read;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

struct BatchLoader::State {
  /// One sample as read, before context-parallel sharding.
  struct Sample {
    std::vector<int32_t> tokens;     // length + 1
    std::vector<int32_t> documents;  // start of the document at each position; length + 1
    std::vector<int64_t> starts;     // starts of documents from the index
    std::vector<uint8_t> counted;    // 1 for a token that counts in the loss; length + 1
    std::vector<int32_t> segments;   // LoaderOptions::pairs: text of each position; length
    std::vector<uint8_t> labels;     // LoaderOptions::labels: label of an example that begins; length + 1
    std::vector<DocumentSamples::Run> runs;  // samples of whole documents
    int64_t sequence = 0;                    // tokens of a sequence

    /// First position that the token at `t` attends to: of its document, or of its sequence.
    int32_t begin(int64_t t) const { return std::max(documents[t], static_cast<int32_t>(t - t % sequence)); }
  };

  LoaderOptions options;
  Positions rows;  // rows of each sequence on this rank
  int64_t first_sample, micro_steps;
  SourceUnion all;
  StagedOrder order;
  mutable SourceFiles files;
  int64_t eval_samples = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Batch> ring;  // slots filled % size ... of which filled - taken are ready
  int64_t filled = 0, taken = 0;
  bool stop = false;
  std::exception_ptr error;
  double waited = 0;
  std::thread thread;

  State(const LoaderOptions& o, int64_t first)
      : options(o),
        rows(o.rows ? *o.rows : Positions(o.seq_length)),
        first_sample(first),
        micro_steps(o.global_batch / (o.micro_batch * o.dp_size * o.share.of) * o.share.count),
        all(union_of(o.sources, o.stages)),
        order(all.paths.size(), all.stages),
        files(options, all),
        ring(o.prefetch) {
    if (o.eval) eval_samples = evaluated_samples(o, files.samples());
  }

  /// The first file that a sample of [begin, end) needs and that does not exist; "" if there is none.
  std::string missing_file(int64_t begin, int64_t end) const {
    for (int64_t g = begin; g < end; ++g)
      if (const Blend::Draw draw = order(g); !files.find(draw)) return files.next_file(draw.source);
    return "";
  }

  /// Reads `count` tokens of a source to position `at` of a sample.
  void read_tokens(const IndexedDataset& source, int64_t first, int64_t count, int64_t at, Sample& s) const {
    source.read(first, count, options.vocab_size, s.tokens.data() + at);
    if (source.info().loss_mask)
      source.read_mask(first, count, s.counted.data() + at);
    else
      std::fill_n(s.counted.begin() + at, count, uint8_t{1});
  }

  /// Reads the documents of a sample and notes where they and the padding after them begin.
  void read_documents(const SourceFiles::Found& found, Sample& s) const {
    const int64_t length = options.seq_length;
    files.documents_of(found, s.runs);
    std::fill(s.tokens.begin(), s.tokens.end(), 0);
    std::fill(s.counted.begin(), s.counted.end(), uint8_t{0});
    s.starts.clear();
    int64_t at = 0;
    for (const DocumentSamples::Run& run : s.runs) {
      s.starts.push_back(at);
      read_tokens(*found.data, run.first, run.count + !run.ends_document, at, s);
      at += run.count;
    }
    if (s.runs.back().ends_document) s.starts.push_back(at);
    LT_CHECK(at <= length, "expected documents of at most {} tokens in a sample, got {}", length, at);
  }

  SourceFiles::Found sample_at(const Blend::Draw& draw) const {
    const auto found = files.find(draw);
    LT_CHECK(found, "expected the token files of draw {} of {}, got none", draw.index,
             all.paths[draw.source]);
    return *found;
  }

  /// Tokens of a sequence of a global sample.
  int64_t sequence_at(int64_t sample) const {
    int64_t sequence = options.first_sequence;
    for (const StageSpec& stage : options.stages)
      if (stage.first_sample <= sample) sequence = stage.sequence;
    return sequence > 0 ? sequence : options.seq_length;
  }

  /// Reads a global sample, and returns its source and number.
  ReadSample read_sample(int64_t index, Sample& s) const {
    const int64_t length = options.seq_length;
    s.sequence = sequence_at(index);
    const Blend::Draw draw = order(index);
    const SourceFiles::Found found = sample_at(draw);
    const ReadSample read{draw.source, found.in_source, 0};
    const IndexedDataset& source = *found.data;
    int64_t begin = 0;  // position that `starts` count from
    if (files.packs_documents()) {
      read_documents(found, s);
    } else {
      begin = found.sample * length;
      read_tokens(source, begin, length + 1, 0, s);
      if (options.packing.on()) source.document_starts(begin, length + 1, s.starts);
    }
    if (!options.packing.on()) return read;
    // In conversations the token also ends turns, and documents end where the index says.
    const int64_t eod = source.info().loss_mask  ? -1
                        : source.info().eot >= 0 ? source.info().eot
                                                 : options.packing.eod;
    auto next = s.starts.begin();
    int64_t start = 0;
    for (int64_t t = 0; t <= length; ++t) {
      if (t > 0 && s.tokens[t - 1] == eod) start = t;
      if (next != s.starts.end() && *next == begin + t) start = t, ++next;
      s.documents[t] = static_cast<int32_t>(start);
    }
    if (!options.labels) return read;
    s.labels.assign(length + 1, 0);
    for (int64_t t = 0; t <= length; ++t)
      if (s.documents[t] == t) std::swap(s.labels[t], s.counted[t]);
    return read;
  }

  /// Global index of the first sample of a micro-batch.
  int64_t first_of(int64_t index) const {
    const int64_t step = index / micro_steps, k = index % micro_steps;
    return first_sample + step * options.global_batch +
           options.share.at(k * options.dp_size + options.dp_rank) * options.micro_batch;
  }

  /// Waits until the token files of a micro-batch exist. Returns false if the loader ends before.
  bool wait_for_files(int64_t index) {
    if (options.shuffle_window == 0) return true;
    const int64_t begin = first_of(index);
    while (!missing_file(begin, begin + options.micro_batch).empty()) {
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, kLookForFiles, [&] { return stop; })) return false;
    }
    return true;
  }

  void read_micro_batch(int64_t index, Batch& batch, Sample& sample) const {
    const int64_t length = options.seq_length, samples = options.micro_batch;
    const Packing& packing = options.packing;
    batch.tokens.resize(samples * rows.rows);
    batch.targets.resize(samples * rows.rows);
    batch.sample_index.resize(samples);
    if (packing.attention_mask) batch.documents.resize(samples * length);
    if (packing.position_ids) batch.position_ids.resize(samples * rows.rows);
    for (auto* later : {&batch.mtp_tokens, &batch.mtp_targets})
      later->resize(options.mtp_tokens * samples * rows.rows);
    sample.tokens.resize(length + 1);
    sample.counted.resize(length + 1);
    if (packing.on()) sample.documents.resize(length + 1);
    if (options.ledger) batch.read.assign(samples, {});
    if (options.pairs) {
      batch.segments.resize(samples * rows.rows);
      batch.references.assign(samples * max_segments(length), 0);
      batch.labels.assign(options.labels ? samples * max_segments(length) / 2 : 0, 0);
      batch.pairs = 0;
    }
    if (options.logits) {
      const int64_t k = options.logits->top_k();
      batch.logit_ids.assign(samples * rows.rows * k, 0);
      batch.logit_values.assign(samples * rows.rows * k, 0);
      batch.logit_rest.assign(samples * rows.rows, 0);
    }
    const int64_t base = first_of(index);
    for (int64_t b = 0; b < samples; ++b) {
      const bool padding = options.eval && base + b >= eval_samples;
      batch.sample_index[b] = padding ? -1 : base + b;
      if (padding) {
        std::fill(sample.tokens.begin(), sample.tokens.end(), 0);
        std::fill(sample.documents.begin(), sample.documents.end(), 0);
        sample.sequence = length;
      } else {
        const ReadSample read = read_sample(base + b, sample);
        if (options.ledger) batch.read[b] = with_crc(read, sample.tokens);
        if (options.logits) read_logits(b, with_crc(read, sample.tokens), batch);
      }
      const auto& documents = sample.documents;
      for (int64_t r = 0; r < rows.rows; ++r) {
        const int64_t t = rows.at(r), to = b * rows.rows + r;
        const bool counted =
            !padding && sample.counted[t + 1] && !(packing.mask_loss && documents[t + 1] == t + 1);
        batch.tokens[to] = sample.tokens[t];
        batch.targets[to] = counted ? sample.tokens[t + 1] : -1;
        if (packing.position_ids) batch.position_ids[to] = static_cast<int32_t>(t) - sample.begin(t);
      }
      read_mtp(b, padding, sample, batch);
      if (options.pairs) read_pairs(b, padding ? -1 : base + b, sample, batch);
      for (int64_t t = 0; packing.attention_mask && t < length; ++t)
        batch.documents[b * length + t] = sample.begin(t);
    }
  }

  void read_logits(int64_t b, const ReadSample& read, Batch& batch) const {
    const int64_t first = b * rows.rows, k = options.logits->top_k();
    options.logits->read(read, rows, batch.logit_ids.data() + first * k,
                         batch.logit_values.data() + first * k, batch.logit_rest.data() + first);
  }

  /// Fills the texts of a sample, which is number b of its batch. `index`: its global index; -1: padding.
  void read_pairs(int64_t b, int64_t index, Sample& sample, Batch& batch) const {
    const int64_t length = options.seq_length, most = max_segments(length);
    if (index < 0) return (void)std::fill_n(batch.segments.begin() + b * rows.rows, rows.rows, -1);
    const Blend::Draw draw = order(index);
    const int64_t in_source = sample_at(draw).in_source;
    segments_of(sample.documents, sample.counted,
                fmt::format("{}: sample {}", all.paths[draw.source], in_source), sample.segments);
    const int32_t texts = *std::max_element(sample.segments.begin(), sample.segments.end()) + 1;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int32_t segment = sample.segments[rows.at(r)];
      batch.segments[b * rows.rows + r] = segment < 0 ? -1 : static_cast<int32_t>(b * most) + segment;
      if (!options.scores) continue;
      const int64_t t = rows.at(r);
      const bool ends = segment >= 0 && (t + 1 == length || sample.segments[t + 1] != segment);
      batch.targets[b * rows.rows + r] = ends ? sample.tokens[t] : -1;
    }
    batch.pairs += texts / 2;
    // Only first tokens of examples have a label, and each is the first of an even text.
    for (int64_t t = 0; options.labels && t < length; ++t)
      if (sample.labels[t] && sample.segments[t] >= 0) batch.labels[(b * most + sample.segments[t]) / 2] = 1;
    if (!options.references) return;
    const int64_t first = options.references->first(draw.source, in_source);
    LT_CHECK(options.references->segments(draw.source, in_source) == texts,
             "expected reference values of {} texts, got {}", texts,
             options.references->segments(draw.source, in_source));
    std::copy_n(options.references->values.begin() + first, texts, batch.references.begin() + b * most);
  }

  /// Fills the MTP tensors from a sample, which is number b of its batch.
  void read_mtp(int64_t b, bool padding, const Sample& sample, Batch& batch) const {
    const int64_t length = options.seq_length, all = options.micro_batch * rows.rows;
    const Packing& packing = options.packing;
    const bool apart = packing.attention_mask || packing.mask_loss;
    for (int64_t k = 1; k <= options.mtp_tokens; ++k)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const int64_t t = rows.at(r), at = t + k, to = (k - 1) * all + b * rows.rows + r;
        bool counted = !padding && at < length;
        if (counted && apart) counted = sample.begin(at) == sample.begin(t);
        if (counted) counted = sample.counted[at + 1] != 0;
        if (counted && packing.mask_loss) counted = sample.documents[at + 1] != at + 1;
        batch.mtp_tokens[to] = at <= length ? sample.tokens[at] : 0;
        batch.mtp_targets[to] = counted ? sample.tokens[at + 1] : -1;
      }
  }

  void run() {
    Sample sample;
    try {
      for (int64_t index = 0;; ++index) {
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return stop || filled - taken < static_cast<int64_t>(ring.size()); });
          if (stop) return;
        }
        if (!wait_for_files(index)) return;
        // The slot is not ready yet, so only this thread uses it.
        LT_FAULT_POINT("data.read");
        read_micro_batch(index, ring[index % ring.size()], sample);
        {
          std::lock_guard lock(mutex);
          ++filled;
        }
        changed.notify_all();
      }
    } catch (...) {
      std::lock_guard lock(mutex);
      error = std::current_exception();
      changed.notify_all();
    }
  }
};

BatchLoader::BatchLoader(const LoaderOptions& options, int64_t first_sample) {
  check_options(options, first_sample);
  state_ = std::make_unique<State>(options, first_sample);
  state_->thread = std::thread([s = state_.get()] { s->run(); });
}

BatchLoader::~BatchLoader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void BatchLoader::next(Batch& out) {
  note_progress();
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (s.filled == s.taken && !s.error) {
    const auto start = std::chrono::steady_clock::now();
    s.changed.wait(lock, [&] { return s.filled > s.taken || s.error; });
    s.waited += seconds_since(start);
  }
  if (s.filled == s.taken) std::rethrow_exception(s.error);
  std::swap(out, s.ring[s.taken % s.ring.size()]);
  ++s.taken;
  lock.unlock();
  s.changed.notify_all();
}

int64_t BatchLoader::cursor() const {
  std::lock_guard lock(state_->mutex);
  return state_->first_sample + state_->taken / state_->micro_steps * state_->options.global_batch;
}

const LoaderOptions& BatchLoader::options() const { return state_->options; }

int64_t BatchLoader::micro_steps() const { return state_->micro_steps; }

int64_t BatchLoader::total_samples_per_epoch() const {
  int64_t total = 0;
  for (const int64_t samples : state_->files.samples()) total += samples;
  return total;
}

std::string BatchLoader::missing_file(int64_t first, int64_t end) const {
  return state_->missing_file(first, end);
}

FileCounts BatchLoader::file_counts() const { return state_->files.counts(); }

int64_t BatchLoader::eval_samples() const { return state_->eval_samples; }

double BatchLoader::wait_seconds() const {
  std::lock_guard lock(state_->mutex);
  return state_->waited;
}

int64_t BatchLoader::buffer_bytes() const {
  return loader_buffer_bytes(state_->options) + state_->order.memory_bytes() + state_->files.memory_bytes();
}

int64_t loader_buffer_bytes(const LoaderOptions& o) {
  const int64_t rows = o.rows ? o.rows->rows : o.seq_length;
  const int64_t batch = o.micro_batch * (4 * (2 + o.packing.position_ids + 2 * o.mtp_tokens) * rows + 8 +
                                         (o.packing.attention_mask ? 4 * o.seq_length : 0) +
                                         (o.pairs ? 4 * rows + 8 * max_segments(o.seq_length) : 0) +
                                         (o.labels ? 2 * max_segments(o.seq_length) : 0) +
                                         (o.ledger ? static_cast<int64_t>(sizeof(ReadSample)) : 0));
  const int64_t windows = o.packing.mode == SamplePacking::concatenate ? 0 : kPackingBytes;
  // The ring, the caller's batch, one sample.
  return windows + (o.prefetch + 1) * batch + (o.seq_length + 1) * (o.packing.on() ? 9 : 5);
}

}  // namespace ltrain::data
