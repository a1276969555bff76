#include "runtime/checkpoint/piece_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/matmul/nf4.h"
#include "kernels/tensor/fp8.h"
#include "parallel/comm/host_collectives.h"
#include "runtime/checkpoint/convert_elements.h"

namespace ltrain {
namespace {

constexpr int64_t kGap =
    // Largest gap in bytes between two ranges that are read together: one page, which the system reads
    // anyway.
    4096;
constexpr int64_t kBuffer = 8 << 20;

}  // namespace

PieceReader::PieceReader(std::string path, std::vector<std::string> files,
                         std::map<std::string, TensorParts> tensors)
    : path_(std::move(path)), names_(std::move(files)), tensors_(std::move(tensors)), files_(names_.size()) {}

const SafetensorsFile& PieceReader::file(int index) {
  if (!files_[index]) files_[index] = std::make_unique<SafetensorsFile>(path_ + "/" + names_[index]);
  return *files_[index];
}

const SafetensorsEntry& PieceReader::entry(int index, const std::string& key, const std::string& type,
                                           int64_t bytes) {
  const SafetensorsFile& f = file(index);
  const SafetensorsEntry* entry = f.find(key);
  if (!entry || entry->dtype != type || entry->end - entry->begin != bytes)
    fail(ExitCode::storage, "{}: has no piece \"{}\" of the type and size that the manifest gives", f.path(),
         key);
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
      filled += piece.order.kind == FileOrder::rows      ? read_rows(piece, t.dtype, dtype, slice, to)
                : piece.order.kind == FileOrder::strided ? read_strided(piece, t.dtype, dtype, slice, to)
                : piece.order.kind == FileOrder::fp8     ? read_fp8(piece, dtype, slice, to)
                : piece.order.kind == FileOrder::nf4     ? read_nf4(piece, dtype, slice, to)
                                                         : read_mxfp4(piece, dtype, slice, to);
  // The pieces cover the tensor (checked when it was opened), so this is a defect and not damage.
  LT_CHECK(filled == slice.elements(), "{}: expected {} elements of {}, got {}", path_, slice.elements(),
           name, filled);
  elements_read_[name] += filled;
}

/// Ranges close together in the file are read at once and scattered from a buffer.
int64_t PieceReader::read_rows(const Piece& piece, DType stored, DType dtype, const Slice& slice, void* to) {
  const int64_t size = dtype_size(stored), out = dtype_size(dtype);
  const SafetensorsEntry& from =
      entry(piece.file, piece.key, safetensors_dtype(stored), piece.slice.elements() * size);
  const SafetensorsFile& f = file(piece.file);
  struct Copy {
    int64_t from, to, count;
  };
  std::vector<Copy> batch;
  const auto flush = [&] {
    if (batch.empty()) return;
    const int64_t begin = batch.front().from * size, end = (batch.back().from + batch.back().count) * size;
    if (batch.size() == 1 && stored == dtype) {
      f.read(from, begin, end - begin, static_cast<char*>(to) + batch[0].to * size);
    } else if (batch.size() == 1) {  // a long range, read in chunks
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
        last.count += count;  // contiguous in the file and in memory
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

namespace {

/// A part of a row of a piece, seen as a matrix, and its offset in the output.
struct RowPart {
  int64_t row, column, count, to;
};

/// Parts of the slice in a piece, row by row.
std::vector<RowPart> row_parts(const Slice& piece, const Slice& slice) {
  const int64_t width = piece.extent[piece.extent.rank - 1];
  std::vector<RowPart> parts;
  for_each_common(piece, slice, [&](int64_t at, int64_t into, int64_t count) {
    while (count > 0) {  // a range may continue over rows
      const int64_t n = std::min(count, width - at % width);
      parts.push_back({at / width, at % width, n, into});
      at += n, into += n, count -= n;
    }
  });
  return parts;
}

int64_t elements_of(const std::vector<RowPart>& parts) {
  int64_t n = 0;
  for (const RowPart& p : parts) n += p.count;
  return n;
}

}  // namespace

/// Reads each column from the first wanted row to the last. Gaps between columns are read too if they are
/// smaller than that.
int64_t PieceReader::read_strided(const Piece& piece, DType stored, DType dtype, const Slice& slice,
                                  void* to) {
  const FileOrder& o = piece.order;
  const int64_t size = dtype_size(stored), out = dtype_size(dtype);
  const SafetensorsEntry& from = entry(piece.file, piece.key, safetensors_dtype(stored), o.elements * size);
  const SafetensorsFile& f = file(piece.file);
  const std::vector<RowPart> parts = row_parts(piece.slice, slice);
  int64_t low = parts[0].row, high = low + 1, begin = parts[0].column, end = begin + 1;
  for (const RowPart& p : parts) {
    low = std::min(low, p.row), high = std::max(high, p.row + 1);
    begin = std::min(begin, p.column), end = std::max(end, p.column + p.count);
  }
  const int64_t height = (high - low - 1) * o.row + 1;  // elements of a column including gaps
  const bool apart = o.column - height > std::max(height, kGap / size);
  const int64_t stride = apart ? height : o.column, band = std::max<int64_t>(1, kBuffer / (stride * size));
  std::vector<char> columns;
  for (int64_t column = begin; column < end; column += band) {
    const int64_t n = std::min(band, end - column), span = (n - 1) * stride + height;
    const int64_t at = (o.first + low * o.row + column * o.column) * size;
    buffer_.resize(static_cast<size_t>(span * size));
    if (!apart) f.read(from, at, span * size, buffer_.data());
    for (int64_t c = 0; apart && c < n; ++c)
      f.read(from, at + c * o.column * size, height * size, buffer_.data() + c * height * size);
    bytes_read_ += span * size;
    columns.resize(static_cast<size_t>(span * out));
    convert_elements(stored, buffer_.data(), dtype, columns.data(), span);
    for (const RowPart& p : parts)
      for (int64_t c = std::max(p.column, column); c < std::min(p.column + p.count, column + n); ++c)
        std::memcpy(static_cast<char*>(to) + (p.to + c - p.column) * out,
                    columns.data() + ((c - column) * stride + (p.row - low) * o.row) * out,
                    static_cast<size_t>(out));
  }
  return elements_of(parts);
}

/// Two numbers per byte, the lower half first: a sign bit, two exponent bits and one mantissa bit (OCP
/// Microscaling Formats 1.0), multiplied by 2^(scale of the block - 127). All values are exact in bf16.
int64_t PieceReader::read_mxfp4(const Piece& piece, DType dtype, const Slice& slice, void* to) {
  constexpr int64_t kColumns = 32, kBytes = 16;  // columns and bytes of a block
  constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  const FileOrder& o = piece.order;
  const SafetensorsEntry& blocks = entry(piece.file, piece.key, "U8", o.elements / 2);
  const SafetensorsEntry& scales = entry(o.scales_file, o.scales, "U8", o.elements / kColumns);
  const int64_t out = dtype_size(dtype),
                row_blocks = piece.slice.extent[piece.slice.extent.rank - 1] / kColumns;
  const std::vector<RowPart> parts = row_parts(piece.slice, slice);
  std::vector<uint8_t> packed, exponents;
  std::vector<float> values;
  for (size_t first = 0, next = 0; first < parts.size(); first = next) {
    // Rows whose blocks are read at once, including gaps; a single row if only a small part of it is wanted.
    const bool whole = 2 * parts[first].count > row_blocks * kColumns;
    const int64_t begin = whole ? 0 : parts[first].column / kColumns,
                  end = whole ? row_blocks
                              : (parts[first].column + parts[first].count + kColumns - 1) / kColumns;
    const int64_t low = o.first + parts[first].row * o.row;
    int64_t rows = 1;
    for (next = first + 1; whole && next < parts.size(); ++next) {
      const int64_t more = o.first + parts[next].row * o.row - low + 1;
      if (more * row_blocks * kBytes > kBuffer) break;
      rows = more;
    }
    const int64_t n = (rows - 1) * row_blocks + end - begin, at = low * row_blocks + begin;
    packed.resize(static_cast<size_t>(n * kBytes));
    exponents.resize(static_cast<size_t>(n));
    file(piece.file).read(blocks, at * kBytes, n * kBytes, packed.data());
    file(o.scales_file).read(scales, at, n, exponents.data());
    bytes_read_ += n * (kBytes + 1);
    for (size_t i = first; i < next; ++i) {
      const RowPart& p = parts[i];
      const int64_t from = p.column / kColumns, to_block = (p.column + p.count + kColumns - 1) / kColumns;
      values.resize(static_cast<size_t>((to_block - from) * kColumns));
      for (int64_t b = from; b < to_block; ++b) {
        const size_t block = static_cast<size_t>((o.first + p.row * o.row - low) * row_blocks + b - begin);
        const double scale = std::ldexp(1.0, exponents[block] - 127);
        const uint8_t* bytes = packed.data() + block * kBytes;
        float* v = values.data() + (b - from) * kColumns;
        for (int64_t c = 0; c < kBytes; ++c) {
          v[2 * c] = static_cast<float>(kValues[bytes[c] & 15] * scale);
          v[2 * c + 1] = static_cast<float>(kValues[bytes[c] >> 4] * scale);
        }
      }
      convert_elements(DType::f32, values.data() + (p.column - from * kColumns), dtype,
                       static_cast<char*>(to) + p.to * out, p.count);
    }
  }
  return elements_of(parts);
}

/// A number is the value of its byte times the fp32 factor of its block, rounded to bf16 like DeepSeek's own
/// conversion. Every layout and precision therefore starts from the same values.
int64_t PieceReader::read_fp8(const Piece& piece, DType dtype, const Slice& slice, void* to) {
  constexpr int64_t kBlock = FileOrder::kFp8Block;
  const FileOrder& o = piece.order;
  const Shape& extent = piece.slice.extent;
  const int64_t width = extent[extent.rank - 1], height = piece.slice.elements() / width,
                row_blocks = (width + kBlock - 1) / kBlock, out = dtype_size(dtype),
                factors = (height + kBlock - 1) / kBlock * row_blocks;
  const SafetensorsEntry& bytes = entry(piece.file, piece.key, "F8_E4M3", o.elements);
  const SafetensorsEntry& scales = entry(o.scales_file, o.scales, "F32", factors * dtype_size(DType::f32));
  std::vector<float> scale(static_cast<size_t>(factors)), values;
  file(o.scales_file).read(scales, 0, scales.end - scales.begin, scale.data());
  bytes_read_ += scales.end - scales.begin;
  const std::vector<RowPart> parts = row_parts(piece.slice, slice);
  std::vector<uint8_t> codes;
  std::vector<char> rounded;
  for (size_t first = 0, next = 0; first < parts.size(); first = next) {
    // Rows that are read at once, including small gaps between their parts.
    const int64_t begin = parts[first].row * width + parts[first].column;
    int64_t end = begin + parts[first].count;
    for (next = first + 1; next < parts.size(); ++next) {
      const int64_t at = parts[next].row * width + parts[next].column;
      if (at - end > kGap || at + parts[next].count - begin > kBuffer) break;
      end = at + parts[next].count;
    }
    codes.resize(static_cast<size_t>(end - begin));
    file(piece.file).read(bytes, begin, end - begin, codes.data());
    bytes_read_ += end - begin;
    for (size_t i = first; i < next; ++i) {
      const RowPart& p = parts[i];
      const uint8_t* code = codes.data() + (p.row * width + p.column - begin);
      const float* factor = scale.data() + p.row / kBlock * row_blocks;
      values.resize(static_cast<size_t>(p.count));
      for (int64_t c = 0; c < p.count; ++c)
        values[static_cast<size_t>(c)] = fp8::from_e4m3(code[c]) * factor[(p.column + c) / kBlock];
      rounded.resize(static_cast<size_t>(p.count * dtype_size(DType::bf16)));
      convert_elements(DType::f32, values.data(), DType::bf16, rounded.data(), p.count);
      convert_elements(DType::bf16, rounded.data(), dtype, static_cast<char*>(to) + p.to * out, p.count);
    }
  }
  return elements_of(parts);
}

/// Reads full blocks, including small gaps between them, and converts the wanted elements.
int64_t PieceReader::read_nf4(const Piece& piece, DType dtype, const Slice& slice, void* to) {
  const FileOrder& o = piece.order;
  const int64_t elements = piece.slice.elements(), out = dtype_size(dtype);
  const SafetensorsEntry& codes = entry(piece.file, piece.key, "U8", elements / kNf4Pair);
  const SafetensorsEntry& scales =
      entry(o.scales_file, o.scales, "F32", elements / kNf4Block * dtype_size(DType::f32));
  struct Run {
    int64_t at, into, count;
  };
  std::vector<Run> runs;
  for_each_common(piece.slice, slice, [&](int64_t at, int64_t into, int64_t count) {
    for (int64_t done = 0; done < count; done += kBuffer)
      runs.push_back({at + done, into + done, std::min(kBuffer, count - done)});
  });
  std::vector<uint8_t> packed;
  std::vector<float> absmax, values;
  int64_t filled = 0;
  for (size_t first = 0, next = 0; first < runs.size(); first = next) {
    const int64_t begin = runs[first].at / kNf4Block;
    int64_t end = begin;
    for (next = first; next < runs.size(); ++next) {
      const int64_t from = runs[next].at / kNf4Block,
                    last = (runs[next].at + runs[next].count + kNf4Block - 1) / kNf4Block;
      if (next > first && ((from - end) * kNf4Block > kGap || (last - begin) * kNf4Block > kBuffer)) break;
      end = last;
    }
    const int64_t n = end - begin;
    packed.resize(static_cast<size_t>(n * kNf4Block / kNf4Pair));
    absmax.resize(static_cast<size_t>(n));
    values.resize(static_cast<size_t>(n * kNf4Block));
    file(piece.file).read(codes, begin * kNf4Block / kNf4Pair, n * kNf4Block / kNf4Pair, packed.data());
    file(o.scales_file)
        .read(scales, begin * dtype_size(DType::f32), n * dtype_size(DType::f32), absmax.data());
    bytes_read_ += n * (kNf4Block / kNf4Pair + dtype_size(DType::f32));
    LT_CPU(nf4_dequantize_cpu)(DType::f32, values.data(), packed.data(), absmax.data(), n * kNf4Block);
    for (size_t i = first; i < next; ++i) {
      convert_elements(DType::f32, values.data() + (runs[i].at - begin * kNf4Block), dtype,
                       static_cast<char*>(to) + runs[i].into * out, runs[i].count);
      filled += runs[i].count;
    }
  }
  return filled;
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
