// Memory that is larger and slower than the device's: where optimizer states lie between updates, and
// activations between forward and backward.
//
// It is a file without a name in a folder of the recipe, or, for a GPU, the host's memory. What lies there
// comes and goes on a stream of its own, through buffers in the arena (ZeRO-Offload, arXiv:2101.06840;
// ZeRO-Infinity, arXiv:2104.07857).
#pragma once
#include <memory>
#include <string>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// Of files: what is laid out in them begins at multiples of it.
inline constexpr int64_t kOffloadBlock = 4096;

/// Transfers between a device with memory of its own and files, by their names in plans and timelines.
inline constexpr std::string_view kFileFetch = "file_fetch", kFileStore = "file_store";

class OffloadMemory {
 public:
  virtual ~OffloadMemory() = default;
  OffloadMemory() = default;
  OffloadMemory(const OffloadMemory&) = delete;
  OffloadMemory& operator=(const OffloadMemory&) = delete;

  /// Once, at set-up: takes all of it, zeros. Error (storage) where there is not as much.
  virtual void reserve(int64_t bytes) = 0;
  /// Where the host and Stream::copy may touch it, for set-up and checkpoints, when nothing is under way.
  /// Null on meta.
  virtual void* at(int64_t offset) = 0;
  /// Likewise for kernels on `on`: `t` where that is theirs, or no part of this memory; else a copy in memory
  /// that they reach, which release() writes back.
  virtual Tensor view(Stream& on, const Tensor& t) { return t; }
  /// Enqueue on stream(): bytes of `t` from `offset`, or to it.
  virtual void fetch(const Tensor& t, int64_t offset) = 0;
  virtual void store(const Tensor& t, int64_t offset) = 0;
  virtual Stream& stream() = 0;
  /// After at() or view() was used: what of it was touched counts as this process's memory no more.
  virtual void release() {}
  /// How bytes get there, in words; empty where there is nothing to say.
  virtual std::string how() const { return ""; }
};

/// What lies somewhere, for messages and plans.
struct OffloadUse {
  std::string key;   ///< of the recipe: "offload.optimizer"
  std::string what;  ///< "optimizer states"
};

/// Bytes that are touched through at() or view() before release() is called, at most.
inline constexpr int64_t kOffloadTouch = 4 << 20;

/// Bytes of the host that a file memory has beside the file; and those that are pinned, for a device with
/// memory of its own.
inline constexpr int64_t kFileBuffers = 1 << 21;
inline constexpr int64_t kPinnedFileBuffers = 2 * kFileBuffers + kOffloadTouch;

/// A file in `folder` that has no name, so that nothing stays behind however a rank ends. Read and written on
/// a worker; for a device with memory of its own through pinned memory, by work of the host on a second
/// stream, so that one transfer's file is read while another one's bytes go to the card.
std::unique_ptr<OffloadMemory> make_file_memory(DeviceKind device, const std::string& folder,
                                                const OffloadUse& use);
/// Pinned memory of the host, for a device with memory of its own.
std::unique_ptr<OffloadMemory> make_host_memory(DeviceKind device, const OffloadUse& use);
/// On meta: a timeline of that name. `file`: of files of a device with memory of its own.
std::unique_ptr<OffloadMemory> make_meta_offload_memory(MetaTrace& trace, const std::string& name, bool file);

/// What of a rank has a place outside of its memory.
struct OffloadTargets {
  OffloadMemory *states = nullptr, *params = nullptr, *activations = nullptr;
  int64_t activation_bytes = INT64_MAX;  ///< of theirs, planned; on meta unlimited
};

}  // namespace ltrain
