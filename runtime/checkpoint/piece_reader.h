// Tensors that lie in pieces in safetensors files, read slice by slice: a checkpoint of ltrain, or a folder
// of Hugging Face's.
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
  /// `files`: names in the folder `path`, which pieces have by number. The pieces of a tensor make it up
  /// exactly once.
  PieceReader(std::string path, std::vector<std::string> files, std::map<std::string, TensorParts> tensors);
  virtual ~PieceReader() = default;

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorParts>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }

  /// Fills `to` with the slice's elements. Error (storage) when there is no such tensor, or its shape or type
  /// differ. Reads the byte ranges that the slice needs: those closer than 4 KiB with the gap
  /// between them, and of a piece in another order at most twice the slice for each matrix that lies in it.
  void read(const std::string& name, DType dtype, const Slice& slice, void* to);
  /// Collective: every element of every tensor that `needed` names (default: all) has been read by some rank;
  /// Error (storage) naming the tensors that were not.
  void finish(Communicator& control, Stream& stream,
              const std::function<bool(const std::string&)>& needed = {});
  int64_t bytes_read() const { return bytes_read_; }  ///< by this rank, by read()
  /// From here on read() takes any floating type, and rounds to nearest where `dtype` is narrower.
  void take_any_float() { any_float_ = true; }

 private:
  const SafetensorsFile& file(int index);
  const SafetensorsEntry& entry(int file, const std::string& key, const std::string& type, int64_t bytes);
  int64_t read_rows(const Piece& piece, DType stored, DType dtype, const Slice& slice, void* to);
  int64_t read_strided(const Piece& piece, DType stored, DType dtype, const Slice& slice, void* to);
  int64_t read_fp8(const Piece& piece, DType dtype, const Slice& slice, void* to);
  int64_t read_mxfp4(const Piece& piece, DType dtype, const Slice& slice, void* to);

  std::string path_;
  std::vector<std::string> names_;
  std::map<std::string, TensorParts> tensors_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;  // opened when first read
  std::map<std::string, int64_t> elements_read_;
  std::vector<char> buffer_;
  int64_t bytes_read_ = 0;
  bool any_float_ = false;
};

}  // namespace ltrain
