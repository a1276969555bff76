// TensorBoard event files: TFRecords of Event messages, written by hand (scalars only).
#pragma once
#include <fstream>
#include <string>

namespace ltrain {

class TensorBoardWriter {
 public:
  /// Opens a new events.out.tfevents file in `folder`.
  explicit TensorBoardWriter(const std::string& folder);
  void scalar(const std::string& tag, int64_t step, double value);

 private:
  void record(const std::string& event);
  std::ofstream file_;
};

/// CRC-32C (Castagnoli), and TFRecord's mask of it.
uint32_t crc32c(const void* data, size_t size);
uint32_t masked_crc32c(const void* data, size_t size);
/// The first record of a file written at `wall_time`.
std::string tensorboard_version_record(double wall_time);

}  // namespace ltrain
