#include "runtime/telemetry/tensorboard.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/hash/crc32c.h"
#include "runtime/files/protobuf_fields.h"

namespace ltrain {
namespace {

template <class T>
void append(std::string& s, T v) {
  s.append(reinterpret_cast<const char*>(&v), sizeof(T));
}

std::string framed(const std::string& data) {
  std::string out;
  append(out, static_cast<uint64_t>(data.size()));
  append(out, masked_crc32c(out.data(), 8));
  out += data;
  append(out, masked_crc32c(data.data(), data.size()));
  return out;
}

/// Event { wall_time = 1 double; step = 2 int64; file_version = 3 string; summary = 5 }
std::string event_start(double wall_time) {
  std::string e;
  e += static_cast<char>(1 << 3 | 1);
  append(e, wall_time);
  return e;
}

constexpr std::string_view kEventsName = "events.out.tfevents.";

/// Time in the name of the last events file in `folder`; 0: no file. Readers sort files by name.
int64_t last_events_time(const std::string& folder) {
  int64_t last = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (const std::string name = entry.path().filename().string(); name.starts_with(kEventsName))
      last = std::max<int64_t>(last, std::atoll(name.c_str() + kEventsName.size()));
  return last;
}

double wall_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string tensorboard_version_record(double wall_time) {
  std::string e = event_start(wall_time);
  put_field(e, 3, "brain.Event:2");
  return framed(e);
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder, int64_t restart_step) {
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const double t = wall_clock();
  const std::string path =
      fmt::format("{}/{}{}.{}.{}.0", folder, kEventsName,
                  std::max(static_cast<int64_t>(t), last_events_time(folder) + 1), host, getpid());
  file_ = std::make_unique<AppendFile>(path, true);
  file_->append(tensorboard_version_record(t));
  if (restart_step == 0) return;
  // Event { session_log = 7 { status = 1: START } }: readers drop data of earlier files from this step on.
  std::string e = event_start(t);
  put_field(e, 2, restart_step);
  put_field(e, 7, std::string{1 << 3, 1});
  file_->append(framed(e));
}

void TensorBoardWriter::scalar(const std::string& tag, int64_t step, double value) {
  std::string v;  // Summary.Value { tag = 1; simple_value = 2 float }
  put_field(v, 1, tag);
  v += static_cast<char>(2 << 3 | 5);
  append(v, static_cast<float>(value));
  this->value(step, v);
}

void TensorBoardWriter::image(const std::string& tag, int64_t step, const Image& image) {
  std::string of, v;  // Summary.Image { height = 1; width = 2; colorspace = 3; encoded_image_string = 4 }
  put_field(of, 1, image.height);
  put_field(of, 2, image.width);
  put_field(of, 3, int64_t{3});  // RGB
  put_field(of, 4, png_of(image));
  put_field(v, 1, tag);
  put_field(v, 4, of);
  value(step, v);
}

void TensorBoardWriter::value(int64_t step, const std::string& v) {
  std::string summary;
  put_field(summary, 1, v);
  std::string e = event_start(wall_clock());
  put_field(e, 2, step);
  put_field(e, 5, summary);
  file_->append(framed(e));
}

}  // namespace ltrain
