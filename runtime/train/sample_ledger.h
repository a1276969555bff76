// Ledger of samples (data.ledger): what each step was trained on, as the loader read it.
//
// OUTPUT_DIR/ledger/rank-00000.jsonl and so on have a line for each step of each data-parallel rank:
//   {"step": 12, "samples": {"tokens/web": [[88, 1204, 2597382145], ...]}}
// Under the first token file of each source: number of the sample in the run, number in the source, and
// CRC-32 of its tokens (int32, little-endian, one more than data.seq_length).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/batch_loader.h"
#include "runtime/telemetry/append_file.h"

namespace ltrain {

std::string ledger_folder(const std::string& output_dir);

/// Removes the lines of steps after `last_step`, which the run repeats, from all files of a ledger, and a
/// line that a killed rank wrote in part. Creates the folder. Throws Error (storage).
void begin_ledger(const std::string& output_dir, int64_t last_step);

/// Step of a line of a ledger; -1 for another line.
int64_t ledger_step(const std::string& line);

/// Appends the steps of one rank. Lines that find no room on a full disk are written later.
class SampleLedger {
 public:
  /// `files`: the first token file of each source, by its number in the loader. Throws Error (storage).
  SampleLedger(const std::string& output_dir, int rank, std::vector<std::string> files);

  void step(int64_t step, const std::vector<data::Batch>& batches);
  /// Sentences for the user about a full disk.
  std::vector<std::string> notes() { return file_.notes(); }

 private:
  AppendFile file_;
  std::vector<std::string> files_;
};

}  // namespace ltrain
