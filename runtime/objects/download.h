// Download of an object into a file.
#pragma once
#include <atomic>
#include <string>

#include "runtime/objects/object_store.h"

namespace ltrain::objects {

/// Downloads what is missing of `object` at the end of the file `fd`, which may have its beginning: with
/// range requests under the condition that the object is the one of `object.etag`. A request that ends early
/// is followed by another one from there. Returns false once `stop` is set. Throws Error (data) if the object
/// has changed, Error (storage) if the network or the disk fails. `path`: of the file, for messages.
bool download(ObjectStore& store, const Object& object, int fd, const std::string& path,
              const std::atomic<bool>* stop);

/// Compares the file with the checksums that the store has of the object: CRC-32C, CRC-32 or CRC-64/NVME of
/// the full object, and its MD5 where the ETag is one. Returns a description of the difference; empty: none.
std::string checksum_difference(ObjectStore& store, const Object& object, const std::string& path);

}  // namespace ltrain::objects
