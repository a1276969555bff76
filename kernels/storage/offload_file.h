// File of an offload memory, with blocking calls. Bypasses the page cache if the file system can, since
// cached pages are host memory outside every plan. Uses io_uring if available, else pread and pwrite.
#pragma once
#include <memory>
#include <string>

#include "base/fd.h"
#include "kernels/storage/io_ring.h"
#include "kernels/storage/offload.h"

namespace ltrain {

class OffloadFile {
 public:
  OffloadFile(std::string folder, OffloadUse use);
  ~OffloadFile();
  OffloadFile(const OffloadFile&) = delete;
  OffloadFile& operator=(const OffloadFile&) = delete;

  /// Members of OffloadMemory.
  void reserve(int64_t bytes);
  char* at(int64_t offset) const { return static_cast<char*>(map_) + offset; }
  void release() const;
  const std::string& how() const { return how_; }
  bool holds(const void* p) const { return p >= map_ && p < at(bytes_); }

  /// Transfers host bytes from `offset` of the file, or to it; one thread at a time. Direct if both are at
  /// multiples of kOffloadBlock, else through buffers. Throws Error (storage), with the byte.
  void read(char* data, int64_t bytes, int64_t offset) { move(false, data, bytes, offset); }
  void write(char* data, int64_t bytes, int64_t offset);

 private:
  struct Buffers;
  [[noreturn]] void refuse(const char* what, int error) const;
  [[noreturn]] void broken(bool write, int64_t offset, int error) const;
  void open_direct();
  void move(bool write, char* data, int64_t bytes, int64_t offset);
  void by_calls(int fd, bool write, char* data, int64_t bytes, int64_t offset) const;
  void by_ring(bool write, bool direct, char* data, int64_t bytes, int64_t offset);

  std::string folder_, how_;
  OffloadUse use_;
  int64_t bytes_ = 0;
  Fd fd_, direct_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<IoRing> ring_;
  void* map_ = nullptr;
};

}  // namespace ltrain
