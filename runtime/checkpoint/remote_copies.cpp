#include "runtime/checkpoint/remote_copies.h"

#include <atomic>
#include <chrono>

#include "base/bytes_text.h"

namespace ltrain {

RemoteCopies::RemoteCopies(const Options& options)
    : options_(options),
      remote_(options.url),
      uploads_("checkpoint.remote", [this](const std::stop_token& stop, const SavedCheckpoint& checkpoint) {
        return upload(stop, checkpoint);
      }) {
  refuse_pinned(remote_.list(), options_.begun, options_.last_step);
  if (const std::string before = remote_.take(); !before.empty())
    notes_.push_back(fmt::format("{}: taken over from a run on {}", remote_.url(), before));
}

std::vector<std::string> RemoteCopies::upload(const std::stop_token& stop,
                                              const SavedCheckpoint& checkpoint) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<bool> stopped{false};
  const std::stop_callback set(stop, [&] { stopped = true; });
  std::vector<std::string> lines;
  last_error_.clear();
  try {
    const std::string url = remote_.upload(checkpoint.path, options_.begun, stopped, lines);
    if (url.empty()) return lines;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    lines.push_back(fmt::format("uploaded {} in {:.1f} s", url, seconds));
  } catch (const Error& e) {
    last_error_ = e.what();
    return {fmt::format("WARNING: the checkpoint of step {} was not uploaded; it is complete in {}: {}",
                        checkpoint.step, checkpoint.path, last_error_)};
  }
  try {
    for (const std::string& name : remote_.rotate(options_.keep))
      lines.push_back(fmt::format("checkpoint: rotation removed {}/{}", remote_.url(), name));
  } catch (const Error& e) {
    lines.push_back(std::string("checkpoint: rotation of the copies failed: ") + e.what());
  }
  return lines;
}

}  // namespace ltrain
