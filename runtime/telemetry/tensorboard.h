// TensorBoard event files: TFRecords of Event messages, without a protobuf library: scalars and images.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/telemetry/append_file.h"
#include "runtime/telemetry/png_image.h"

namespace ltrain {

class TensorBoardWriter {
 public:
  /// Opens a new events.out.tfevents file in `folder`, whose name sorts after the existing ones. TensorBoard
  /// then ignores data of earlier files from `restart_step` on; 0: all of it.
  explicit TensorBoardWriter(const std::string& folder, int64_t restart_step = 0);
  void scalar(const std::string& tag, int64_t step, double value);
  void image(const std::string& tag, int64_t step, const Image& image);
  AppendFile& file() { return *file_; }

 private:
  /// Writes a Summary.Value.
  void value(int64_t step, const std::string& v);
  std::unique_ptr<AppendFile> file_;
};

/// First record of a file written at `wall_time`.
std::string tensorboard_version_record(double wall_time);

}  // namespace ltrain
