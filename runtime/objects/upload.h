// Objects that ltrain writes to a bucket.
#pragma once
#include <atomic>
#include <string>
#include <string_view>

#include "runtime/objects/object_store.h"

namespace ltrain::objects {

/// Connections of an upload; each holds a part of the file in memory.
inline constexpr int kUploadThreads = 4;
/// Bytes of a part of a file of `bytes`: 16 MiB, or more where the 10,000 parts of an object would not do.
int64_t part_bytes(int64_t bytes);

/// Writes an object of these bytes, in the place of one that is there. Throws as
/// ObjectStore::fail_response().
void put_object(ObjectStore& store, const Url& url, std::string_view bytes,
                const std::atomic<bool>* stop = nullptr);

/// Writes a file as an object: at once if it is one part, else in parts by several connections. The object
/// appears when all of its parts are there. Returns false once `stop` is set. Throws Error (storage) if the
/// file cannot be read, and as ObjectStore::fail_response(). A failed or stopped upload removes its parts.
bool upload_file(ObjectStore& store, const Url& url, const std::string& path, const std::atomic<bool>* stop);

/// Removes an object. One that does not exist is not an error.
void delete_object(ObjectStore& store, const Url& url);

/// The object in full, at most `most_bytes` of it.
std::string read_whole(ObjectStore& store, const Object& object, int64_t most_bytes);

}  // namespace ltrain::objects
