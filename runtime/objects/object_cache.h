// Local copies of objects, which readers open as files.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/files/file.h"
#include "runtime/objects/object_store.h"

namespace ltrain::objects {

struct CacheOptions {
  std::string folder;      ///< empty: `objects` in the cache folder ($LTRAIN_CACHE_DIR)
  int64_t most_bytes = 0;  ///< 0: half of what is free on its disk and what it has

  void set_gb(double gb) { most_bytes = static_cast<int64_t>(std::min(gb * 1e9, 1e18)); }
};

/// Opens the local copy of an object, and downloads it if there is none: into NAME.part, which a later
/// download goes on with, and which gets its name when its size and its checksum are right. NAME is a hash of
/// the object's identity. Several processes, also on several nodes with the same folder, download an object
/// once. Before a download, copies that nobody reads are deleted, the least recently opened first, until the
/// object fits. Objects that are being read may together exceed the bound.
///
/// `optional`: returns nothing where the object would exceed the bound, where another process is downloading
/// it, and once `stop` is set. Throws Error (usage) for an object larger than the bound, Error (data) if the
/// object has changed, Error (storage) if the network or the disk fails.
std::shared_ptr<data::InputFile> open_object(const Object& object, const CacheOptions& options,
                                             bool optional = false, const std::atomic<bool>* stop = nullptr);

/// Deletes copies that nobody reads, the least recently opened first, until `bytes` more fit into the folder.
/// Returns whether they do. `keep`: name of a copy that stays.
bool make_room(const std::string& folder, int64_t most_bytes, int64_t bytes, const std::string& keep);

}  // namespace ltrain::objects
