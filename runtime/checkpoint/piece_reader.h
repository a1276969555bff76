// Reading of tensors stored in pieces in safetensors files, slice by slice. The files are an ltrain
// checkpoint or a Hugging Face folder.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/safetensors.h"

namespace ltrain {

class PieceReader {
 public:
  /// `files`: names in the folder `path`, which pieces refer to by number. The pieces of a tensor must cover
  /// it exactly once.
  PieceReader(std::string path, std::vector<std::string> files, std::map<std::string, TensorParts> tensors);
  virtual ~PieceReader() = default;

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorParts>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  /// Fills `to` with the elements of the slice. Throws Error (storage) if the tensor does not exist or has
  /// another shape or type. Reads only the byte ranges that the slice needs. Ranges closer than 4 KiB are
  /// read together with the gap. For a piece in another order it reads at most twice the slice for each
  /// matrix in it.
  void read(const std::string& name, DType dtype, const Slice& slice, void* to);
  /// Collective. Checks that some rank has read every element of every tensor for which `needed` returns true
  /// (default: all). Throws Error (storage) with the names of the other tensors.
  void finish(Communicator& control, Stream& stream,
              const std::function<bool(const std::string&)>& needed = {});
  int64_t bytes_read() const { return bytes_read_; }  ///< bytes of tensors read by this rank with read()
  /// From now on read() accepts any floating-point type, and rounds to nearest if `dtype` is narrower.
  void take_any_float() { any_float_ = true; }

 private:
  const SafetensorsFile& file(int index);
  const SafetensorsEntry& entry(int file, const std::string& key, const std::string& type, int64_t bytes);
  int64_t read_rows(const Piece& piece, DType stored, DType dtype, const Slice& slice, void* to);
  int64_t read_strided(const Piece& piece, DType stored, DType dtype, const Slice& slice, void* to);
  int64_t read_fp8(const Piece& piece, DType dtype, const Slice& slice, void* to);
  int64_t read_nf4(const Piece& piece, DType dtype, const Slice& slice, void* to);
  int64_t read_mxfp4(const Piece& piece, DType dtype, const Slice& slice, void* to);

  std::string path_;
  std::vector<std::string> names_;
  std::map<std::string, TensorParts> tensors_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // opened at the first read
  std::map<std::string, int64_t> elements_read_;
  std::vector<char> buffer_;
  int64_t bytes_read_ = 0;
  bool any_float_ = false;
};

}  // namespace ltrain
