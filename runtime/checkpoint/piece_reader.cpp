#include "runtime/checkpoint/piece_reader.h"

#include <algorithm>
#include <cstring>

#include "parallel/comm/host_collectives.h"
#include "runtime/checkpoint/convert_elements.h"

namespace ltrain {
namespace {

constexpr int64_t kGap =
    4096;  // bytes between two runs that are read too: a page, which the system reads anyway
constexpr int64_t kBuffer = 8 << 20;

}  // namespace

PieceReader::PieceReader(std::string path, std::vector<std::string> files,
                         std::map<std::string, TensorParts> tensors)
    : path_(std::move(path)), names_(std::move(files)), tensors_(std::move(tensors)), files_(names_.size()) {}

const SafetensorsFile& PieceReader::file(int index) {
  if (!files_[index]) files_[index] = std::make_unique<SafetensorsFile>(path_ + "/" + names_[index]);
  return *files_[index];
}

const SafetensorsEntry& PieceReader::entry(const Piece& piece, DType stored) {
  const SafetensorsFile& f = file(piece.file);
  const SafetensorsEntry* entry = f.find(piece.key);
  if (!entry || entry->dtype != safetensors_dtype(stored) ||
      entry->end - entry->begin != piece.slice.elements() * dtype_size(stored))
    fail(ExitCode::storage, "{}: has no piece \"{}\" of the type and size that the manifest gives", f.path(),
         piece.key);
  return *entry;
}

void PieceReader::read(const std::string& name, DType dtype, const Slice& slice, void* to) {
  auto it = tensors_.find(name);
  if (it == tensors_.end()) fail(ExitCode::storage, "{}: has no tensor \"{}\"", path_, name);
  const TensorParts& t = it->second;
  if (!(t.shape == slice.global) ||
      !(t.dtype == dtype || (any_float_ && is_floating(t.dtype) && is_floating(dtype))))
    fail(ExitCode::storage, "{}: tensor \"{}\" is {} {}, and {} {} is wanted", path_, name,
         dtype_name(t.dtype), to_string(t.shape), dtype_name(dtype), to_string(slice.global));
  int64_t filled = 0;
  for (const Piece& piece : t.pieces)
    if (common_elements(piece.slice, slice) > 0)
      filled += piece.transposed ? read_transposed(piece, t.dtype, dtype, slice, to)
                                 : read_rows(piece, t.dtype, dtype, slice, to);
  // The pieces tile the tensor (checked when it was opened), so this is a defect and not damage.
  LT_CHECK(filled == slice.elements(), "{}: {} of {} elements of {}", path_, filled, slice.elements(), name);
  elements_read_[name] += filled;
}

/// Runs that lie close together in the file are fetched by one read and scattered from a buffer.
int64_t PieceReader::read_rows(const Piece& piece, DType stored, DType dtype, const Slice& slice, void* to) {
  const SafetensorsEntry& from = entry(piece, stored);
  const SafetensorsFile& f = file(piece.file);
  const int64_t size = dtype_size(stored), out = dtype_size(dtype);
  struct Copy {
    int64_t from, to, count;
  };
  std::vector<Copy> batch;
  const auto flush = [&] {
    if (batch.empty()) return;
    const int64_t begin = batch.front().from * size, end = (batch.back().from + batch.back().count) * size;
    if (batch.size() == 1 && stored == dtype) {
      f.read(from, begin, end - begin, static_cast<char*>(to) + batch[0].to * size);
    } else if (batch.size() == 1) {  // a long run, by buffers
      const int64_t most = kBuffer / size;
      buffer_.resize(static_cast<size_t>(std::min(most, batch[0].count) * size));
      for (int64_t done = 0; done < batch[0].count; done += most) {
        const int64_t n = std::min(most, batch[0].count - done);
        f.read(from, begin + done * size, n * size, buffer_.data());
        convert_elements(stored, buffer_.data(), dtype, static_cast<char*>(to) + (batch[0].to + done) * out,
                         n);
      }
    } else {
      buffer_.resize(static_cast<size_t>(end - begin));
      f.read(from, begin, end - begin, buffer_.data());
      for (const Copy& c : batch)
        convert_elements(stored, buffer_.data() + c.from * size - begin, dtype,
                         static_cast<char*>(to) + c.to * out, c.count);
    }
    bytes_read_ += end - begin;
    batch.clear();
  };
  int64_t filled = 0;
  for_each_common(piece.slice, slice, [&](int64_t at, int64_t into, int64_t count) {
    filled += count;
    if (!batch.empty()) {
      Copy& last = batch.back();
      if (last.from + last.count == at && last.to + last.count == into && batch.size() == 1) {
        last.count += count;  // one run for the file and for memory
        return;
      }
      const int64_t gap = (at - last.from - last.count) * size,
                    span = (at + count - batch.front().from) * size;
      if (gap > kGap || span > kBuffer) flush();
    }
    batch.push_back({at, into, count});
  });
  flush();
  return filled;
}

/// A piece whose file has (columns, rows) of the whole matrix that it is. Bands of the file's rows are read,
/// each from the first wanted element to the last.
int64_t PieceReader::read_transposed(const Piece& piece, DType stored, DType dtype, const Slice& slice,
                                     void* to) {
  const SafetensorsEntry& from = entry(piece, stored);
  const SafetensorsFile& f = file(piece.file);
  LT_CHECK(slice.global.rank == 2 && piece.slice == Slice::whole(slice.global),
           "{}: a transposed piece of {}", piece.key, to_string(piece.slice));
  const int64_t rows = slice.global[0], size = dtype_size(stored), out = dtype_size(dtype);
  const int64_t width = slice.extent[1], first_column = slice.offset[1];
  // Rows of the slice's range; of the first and the last not all columns.
  const int64_t low = slice.begin / width, high = (slice.end + width - 1) / width, height = high - low;
  const int64_t band = std::max<int64_t>(1, kBuffer / (height * size));
  std::vector<char> line(static_cast<size_t>(height * out));
  for (int64_t column = 0; column < width; column += band) {
    const int64_t n = std::min(band, width - column);
    const int64_t begin = ((first_column + column) * rows + slice.offset[0] + low) * size;
    const bool apart = rows - height > height;  // less is wanted of each row of the file than lies between
    const int64_t span = ((n - 1) * rows + height) * size;
    buffer_.resize(static_cast<size_t>(apart ? n * height * size : span));
    if (!apart) {
      f.read(from, begin, span, buffer_.data());
      bytes_read_ += span;
    } else {
      for (int64_t c = 0; c < n; ++c)
        f.read(from, begin + c * rows * size, height * size, buffer_.data() + c * height * size);
      bytes_read_ += n * height * size;
    }
    for (int64_t c = 0; c < n; ++c) {
      convert_elements(stored, buffer_.data() + c * (apart ? height : rows) * size, dtype, line.data(),
                       height);
      for (int64_t r = 0; r < height; ++r) {
        const int64_t at = (low + r) * width + column + c;
        if (at >= slice.begin && at < slice.end)
          std::memcpy(static_cast<char*>(to) + (at - slice.begin) * out, line.data() + r * out,
                      static_cast<size_t>(out));
      }
    }
  }
  return slice.elements();
}

void PieceReader::finish(Communicator& control, Stream& stream,
                         const std::function<bool(const std::string&)>& needed) {
  std::vector<int64_t> counts;
  for (const auto& [name, t] : tensors_) counts.push_back(elements_read_[name]);
  sum_over(control, stream, counts);
  std::string left;
  int64_t n = 0, i = 0;
  for (const auto& [name, t] : tensors_) {
    const int64_t count = counts[static_cast<size_t>(i++)], all = t.shape.elements();
    if (count >= all || (needed && !needed(name))) continue;
    if (++n <= 5)
      left += fmt::format("{}\"{}\" {} ({} of {} elements read)", left.empty() ? "" : ", ", name,
                          to_string(t.shape), count, all);
  }
  if (n > 0)
    fail(ExitCode::storage, "{}: {} tensors of the checkpoint have no place in this run: {}{}", path_, n,
         left, n > 5 ? ", ..." : "");
}

}  // namespace ltrain
