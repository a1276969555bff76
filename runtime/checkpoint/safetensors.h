// Hugging Face's safetensors format: u64 N, N bytes of JSON, the data. The reader refuses the same files as
// the reference. The writer produces the same bytes as the reference (order, padding), so files can be
// compared.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor/dtype.h"
#include "runtime/checkpoint/files.h"

namespace ltrain {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", ...; may have no matching DType
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  ///< byte range in the data part
};

std::string safetensors_dtype(DType t);
std::optional<DType> dtype_from_safetensors(const std::string& name);

class SafetensorsFile {
 public:
  /// Reads and checks the header; throws Error (storage).
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  ///< sorted by offset
  const SafetensorsEntry* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Reads bytes [offset, offset + bytes) of one tensor.
  void read(const SafetensorsEntry& entry, int64_t offset, int64_t bytes, void* to) const;
  const ReadFile& file() const { return file_; }

 private:
  ReadFile file_;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsItem {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  ///< used by write_safetensors
  int64_t bytes() const;
};

/// Size in bytes of a file with these items.
int64_t safetensors_size(const std::vector<SafetensorsItem>& items,
                         const std::map<std::string, std::string>& metadata);

/// Writes a file tensor by tensor and in chunks, so that no tensor has to be in memory in full.
class SafetensorsWriter {
 public:
  /// Allocates the space on the disk and writes the header.
  SafetensorsWriter(NewFile& file, std::vector<SafetensorsItem> items,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  /// Items in the order in which their bytes must be written: by dtype, then name, like the reference.
  const std::vector<SafetensorsItem>& items() const { return items_; }
  void write(const void* data, int64_t bytes);
  /// Syncs and closes the file. `file` then has its size and hash.
  void finish();

 private:
  NewFile& file_;
  std::vector<SafetensorsItem> items_;
  int64_t size_ = 0;
};

/// Writes a new file. The order of `items` does not matter.
void write_safetensors(NewFile& file, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace ltrain
