// One column chunk of a Parquet file, read page by page.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/files/file.h"
#include "runtime/records/encodings/packed_integers.h"
#include "runtime/records/parquet_values.h"

namespace ltrain::records::parquet {

/// Cursor over the entries of a leaf: values, nulls and empty lists, with their levels. Holds one page and
/// the dictionary in memory. Throws Error (data) with file, row group and column for damage.
class ColumnReader {
 public:
  /// `name`: "messages.content", for messages. `data_end`: position of the footer.
  /// `memory`: bytes of the pages of all columns of the file, which is bounded.
  ColumnReader(std::shared_ptr<const data::InputFile> file, std::string path, std::string name,
               const Leaf& leaf, int64_t data_end, std::shared_ptr<int64_t> memory);

  /// Starts a column chunk. Nothing is read.
  void open(const ColumnChunk& chunk, size_t row_group);

  /// An entry is there. Reads the next page where necessary.
  bool has_entry() {
    if (entry_ == entries_) fill();
    return entry_ < entries_;
  }
  // The present entry, after has_entry() was true.
  int def() const { return static_cast<int>(def_[entry_]); }
  int rep() const { return static_cast<int>(rep_[entry_]); }
  bool has_value() const { return def() == leaf_.max_def; }
  /// The value, if has_value(). Valid until advance().
  const Value& value() {
    if (value_ == values_end_) fill_values();
    return values_[value_];
  }
  /// Goes to the next entry. value() was called before if there is one.
  void advance() {
    value_ += has_value() ? 1 : 0;
    ++entry_;
  }
  /// Repetition level of the entry, or 0 at the end.
  int next_rep() { return has_entry() ? rep() : 0; }

  const Leaf& leaf() const { return leaf_; }
  const std::string& name() const { return name_; }

 private:
  static constexpr size_t kBatch = 1024;

  void fill();
  void fill_values();
  bool read_page();
  PageHeader read_header(Bytes& body);
  void check_crc(const PageHeader& page, Bytes body) const;
  void read_dictionary(const PageHeader& page, Bytes body);
  void read_data(const PageHeader& page, Bytes body);
  void read_data_v2(const PageHeader& page, Bytes body);
  Bytes take_levels(Bytes& bytes, int32_t encoding, int most, int64_t values, bool& packed) const;
  void decode_levels(RunReader& runs, LevelBitsReader& bits, bool packed, int most, uint32_t* to,
                     size_t n) const;
  void start_values(const PageHeader& page, Bytes bytes);
  Bytes view(int64_t offset, int64_t bytes);
  void take_memory(int64_t& held, int64_t bytes);
  std::string where() const;
  template <class Action>
  auto guarded(Action&& action);

  std::shared_ptr<const data::InputFile> file_;
  std::string path_, name_;
  Leaf leaf_;
  int64_t data_end_;
  std::shared_ptr<int64_t> memory_;
  int64_t page_memory_ = 0, dictionary_memory_ = 0;  // shares of this column

  ColumnChunk chunk_;
  Codec codec_ = Codec::none;
  size_t row_group_ = 0;
  int64_t offset_ = 0, end_ = 0;  // next page, end of the chunk
  int64_t page_offset_ = 0;       // present page
  int64_t values_left_ = 0;       // entries of later pages
  int64_t page_left_ = 0;         // entries of the page that are not decoded

  std::vector<uint8_t> window_;  // bytes of the file
  int64_t window_begin_ = 0;
  size_t window_bytes_ = 0;
  Buffer page_, dictionary_page_;
  std::vector<Value> dictionary_;
  bool has_dictionary_ = false;
  std::unique_ptr<ValueDecoder> decoder_;

  RunReader def_runs_, rep_runs_;
  LevelBitsReader def_bits_, rep_bits_;
  bool def_packed_ = false, rep_packed_ = false;  // BIT_PACKED
  std::vector<uint32_t> def_, rep_;
  size_t entry_ = 0, entries_ = 0;
  std::vector<Value> values_;
  size_t value_ = 0, values_end_ = 0;
  int64_t present_ = 0;  // values of the batch of entries that are not decoded
};

}  // namespace ltrain::records::parquet
