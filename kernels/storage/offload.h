// Offload memory, larger and slower than the device's: for optimizer states between updates, and activations
// between forward and backward.
//
// It is an unnamed file in a folder of the recipe, or, for a GPU, host memory. Transfers run on a stream of
// their own, through buffers in the arena (ZeRO-Offload, arXiv:2101.06840; ZeRO-Infinity, arXiv:2104.07857).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "kernels/tensor/stream.h"

namespace ltrain {

/// Alignment of data in files.
inline constexpr int64_t kOffloadBlock = 4096;

/// Transfers between a device with its own memory and files, by their names in plans and timelines.
inline constexpr std::string_view kFileFetch = "file_fetch", kFileStore = "file_store";
/// Work of the host's cores on offload memory, likewise; its bytes are those of its kernels.
inline constexpr std::string_view kHostUpdate = "host_update";

class OffloadMemory {
 public:
  virtual ~OffloadMemory() = default;
  OffloadMemory() = default;
  OffloadMemory(const OffloadMemory&) = delete;
  OffloadMemory& operator=(const OffloadMemory&) = delete;

  /// Called once, at set-up: allocates all bytes, zeroed. Throws Error (storage) if there are not enough.
  virtual void reserve(int64_t bytes) = 0;
  /// Address for the host and Stream::copy, for set-up and checkpoints, when no transfer is in flight. Null
  /// on meta.
  virtual void* at(int64_t offset) = 0;
  /// A tensor for kernels on `on`: `t` if they can reach it, or if it is outside this memory; else a copy
  /// that they can reach. release() writes the copy back.
  virtual Tensor view(Stream& on, const Tensor& t) { return t; }
  /// Enqueue on stream() a transfer of the bytes at `offset` to `t`, or back.
  virtual void fetch(const Tensor& t, int64_t offset) = 0;
  virtual void store(const Tensor& t, int64_t offset) = 0;
  virtual Stream& stream() = 0;
  /// Blocks until all transfers and work on the host are done; throws what failed.
  virtual void synchronize() { stream().synchronize(); }
  /// Host memory of a device with its own memory only: enqueues on host_stream() work of the host's cores on
  /// this memory. `work` gets a stream for kernels on the host, runs on another thread with as many threads
  /// as the caller has, and may not use the device.
  virtual void run_on_host(std::function<void(Stream&)> work);
  virtual Stream& host_stream();
  /// Called after use of at() or view(): touched pages no longer count as this process's memory.
  virtual void release() {}
  /// Transfer method in words; may be empty.
  virtual std::string how() const { return ""; }
};

/// Use of an offload memory, for messages and plans.
struct OffloadUse {
  std::string key;   ///< recipe key: "offload.optimizer"
  std::string what;  ///< "optimizer states"
};

/// Most bytes touched through at() or view() before a release().
inline constexpr int64_t kOffloadTouch = 4 << 20;

/// Host bytes of a file memory beside the file; and pinned bytes, for a device with its own memory.
inline constexpr int64_t kFileBuffers = 1 << 21;
inline constexpr int64_t kPinnedFileBuffers = 2 * kFileBuffers + kOffloadTouch;

/// An unnamed file in `folder`, so that nothing stays behind however a rank ends. On the CPU a worker reads
/// and writes it. For a device with its own memory, bytes go through pinned memory, and host work on a second
/// stream accesses the file: the file read of one transfer overlaps with the device copy of another.
std::unique_ptr<OffloadMemory> make_file_memory(DeviceKind device, const std::string& folder,
                                                const OffloadUse& use);
/// Pinned host memory, for a device with its own memory.
std::unique_ptr<OffloadMemory> make_host_memory(DeviceKind device, const OffloadUse& use);
/// Meta version: a timeline of that name. `file`: files for a device with its own memory.
std::unique_ptr<OffloadMemory> make_meta_offload_memory(MetaTrace& trace, const std::string& name, bool file);

/// Offload memories of a rank.
struct OffloadTargets {
  OffloadMemory *states = nullptr, *params = nullptr, *activations = nullptr;
  int64_t activation_bytes = INT64_MAX;  ///< planned bytes of activations; unlimited on meta
};

}  // namespace ltrain
