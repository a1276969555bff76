// Hugging Face's safetensors: u64 N, N bytes of JSON, the data. The reader refuses what the reference
// refuses; the writer gives the reference's bytes (order, padding), so files can be compared.
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
  std::string dtype;  ///< "F32", "BF16", ...; some that ltrain has no DType for
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  ///< bytes in the data part
};

std::string safetensors_dtype(DType t);
std::optional<DType> dtype_from_safetensors(const std::string& name);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  ///< reads and checks the header; Error (storage)

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  ///< by offset
  const SafetensorsEntry* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Bytes [offset, offset + bytes) of one tensor.
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
  const void* data = nullptr;  ///< of write_safetensors
  int64_t bytes() const;
};

/// Size of the file that is made of these.
int64_t safetensors_size(const std::vector<SafetensorsItem>& items,
                         const std::map<std::string, std::string>& metadata);

/// A file whose tensors are written part by part, so that none needs to be in memory whole.
class SafetensorsWriter {
 public:
  /// Takes the space on the disk, and writes the header.
  SafetensorsWriter(NewFile& file, std::vector<SafetensorsItem> items,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  /// In the order in which their bytes are to be written: dtype, then name, as the reference does.
  const std::vector<SafetensorsItem>& items() const { return items_; }
  void write(const void* data, int64_t bytes);
  /// Syncs and closes; `file` then has its size and hash.
  void finish();

 private:
  NewFile& file_;
  std::vector<SafetensorsItem> items_;
  int64_t size_ = 0;
};

/// Writes all of a new file. The order of `items` does not matter.
void write_safetensors(NewFile& file, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace ltrain
