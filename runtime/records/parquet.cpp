#include "runtime/records/parquet.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/records/encodings/json_value.h"
#include "runtime/records/format.h"
#include "runtime/records/parquet_column.h"

namespace ltrain::records {
namespace parquet {
namespace {

using data::InputFile;
using Kind = Node::Kind;

constexpr int64_t kMostFooter = int64_t{1} << 28;
constexpr size_t kMostColumns = 10'000;
struct File {
  std::shared_ptr<const InputFile> file;
  std::string name;
  std::vector<uint8_t> footer;
  int64_t data_end = 0;  // position of the footer
  Footer metadata;
  Schema schema;
  std::vector<FieldInfo> fields;
};

/// Reads the footer's bytes after a check of both magic numbers.
void read_footer_bytes(File& f) {
  constexpr int64_t kTail = 8;  // size of the footer, magic number
  const int64_t size = f.file->size();
  uint8_t tail[kTail], head[4];
  if (size < 4 + kTail) damaged("{} bytes are too short for a Parquet file", size);
  f.file->read(head, 0, 4);
  f.file->read(tail, size - kTail, kTail);
  if (std::memcmp(tail + 4, "PARE", 4) == 0)
    damaged("the footer is encrypted; write the file without encryption");
  if (std::memcmp(head, "PAR1", 4) != 0) damaged("the file does not start with PAR1: not a Parquet file");
  if (std::memcmp(tail + 4, "PAR1", 4) != 0)
    damaged("the file does not end with PAR1: a Parquet file that is incomplete or damaged");
  uint32_t bytes = 0;
  std::memcpy(&bytes, tail, 4);
  if (bytes > size - kTail - 4 || bytes > kMostFooter)
    damaged("the footer has {} bytes, expected at most {}", bytes, std::min(size - kTail - 4, kMostFooter));
  f.data_end = size - kTail - bytes;
  f.footer.resize(bytes);
  f.file->read(f.footer.data(), f.data_end, bytes);
}

/// Reads footer and schema, and counts rows.
File open_file(std::shared_ptr<const InputFile> file, std::string name) {
  File f;
  f.file = std::move(file);
  f.name = std::move(name);
  try {
    read_footer_bytes(f);
    f.metadata = read_footer(f.footer);
    f.schema = make_schema(f.metadata.schema);
    int64_t rows = 0;
    for (const size_t position : f.metadata.row_groups) {
      const int64_t more =
          read_row_group(f.footer, position, {}, static_cast<int>(f.schema.leaves.size())).rows;
      if (__builtin_add_overflow(rows, more, &rows)) damaged("the row groups have more than 2^63 rows");
    }
    f.metadata.rows = rows;  // the footer's own count is wrong in files of some writers
  } catch (const Damage& damage) {
    fail(ExitCode::data, "{}: {}", f.name, damage.what());
  }
  for (const Node& node : f.schema.fields) f.fields.push_back({node.name, type_name(f.schema, node)});
  return f;
}

/// Nanoseconds since 1970 of a timestamp of 12 bytes. Wraps as in other readers.
int64_t timestamp96(const Value& value) {
  int64_t nanoseconds = 0;
  int32_t day = 0;
  std::memcpy(&nanoseconds, value.data, 8);
  std::memcpy(&day, value.data + 8, 4);
  constexpr uint64_t kEpoch = 2440588, kDay = 86400ull * 1'000'000'000;
  return static_cast<int64_t>((static_cast<uint64_t>(int64_t{day}) - kEpoch) * kDay +
                              static_cast<uint64_t>(nanoseconds));
}

void append_value(std::string& to, const Leaf& leaf, const Value& value) {
  switch (leaf.form) {
    case Form::boolean:
      to += value.number ? "true" : "false";
      return;
    case Form::integer:
      return append_json_integer(to, value.number);
    case Form::unsigned_integer:
      return append_json_unsigned(to, leaf.type == Physical::int32 ? static_cast<uint32_t>(value.number)
                                                                   : static_cast<uint64_t>(value.number));
    case Form::float16: {
      uint16_t half = 0;
      std::memcpy(&half, value.data, 2);
      return append_json_float(to, float_of_half(half));
    }
    case Form::float32:
      return append_json_float(to, std::bit_cast<float>(static_cast<uint32_t>(value.number)));
    case Form::float64:
      return append_json_float(to, std::bit_cast<double>(value.number));
    case Form::text:
      return append_json_string(to, value.text());
    case Form::decimal_integer:
      return append_json_decimal(to, value.number, leaf.scale);
    case Form::decimal_bytes:
      return append_json_decimal(to, value.bytes(), leaf.scale);
    case Form::timestamp96:
      return append_json_integer(to, timestamp96(value));
  }
}

class ParquetSource final : public RecordSource {
 public:
  ParquetSource(File file, const Selection& selection) : f_(std::move(file)), as_json_(selection.as_json) {
    std::set<int> wanted;
    for (const size_t i : select_fields(f_.fields, selection, f_.name)) {
      const Node& node = f_.schema.fields[i];
      if (!as_json_) check_type(node, f_.fields[i]);
      fields_.push_back(&node);
      for (int leaf = node.leaf_begin; leaf < node.leaf_end; ++leaf) wanted.insert(leaf);
    }
    wanted_.assign(wanted.begin(), wanted.end());
    if (wanted_.size() > kMostColumns)
      fail(ExitCode::data, "{}: {} columns are selected, expected at most {}; choose fewer fields", f_.name,
           wanted_.size(), kMostColumns);
    columns_.resize(f_.schema.leaves.size());
    for (const Node* node : fields_) make_columns(*node, node->name);
  }

  bool next(Record& record) override {
    while (row_ == rows_) {
      if (row_group_ == f_.metadata.row_groups.size()) return false;
      open_row_group();
    }
    record.text.clear();
    record.tokens.clear();
    record.has_tokens = record.null = false;
    try {
      for (const int leaf : wanted_)
        if (!column(leaf).has_entry())
          damaged("column {} ends, and the row group has {} rows", printable(column(leaf).name(), 100),
                  rows_);
      read_row(record);
      if (row_ + 1 == rows_) check_end();
    } catch (const Damage& damage) {
      ++row_;
      fail(ExitCode::data, "{}: {}: {}", f_.name, position(), damage.what());
    }
    ++row_;
    ++done_;
    return true;
  }

  std::string position() const override {
    return fmt::format("row group {}, row {}", row_group_ > 0 ? row_group_ - 1 : 0, row_ > 0 ? row_ - 1 : 0);
  }
  /// Columns lie one behind the other, so that the position in the file says nothing: rows count.
  int64_t consumed() const override {
    const double share =
        f_.metadata.rows > 0 ? static_cast<double>(done_) / static_cast<double>(f_.metadata.rows) : 1;
    return static_cast<int64_t>(share * static_cast<double>(f_.file->size()));
  }

 private:
  ColumnReader& column(int leaf) { return *columns_[static_cast<size_t>(leaf)]; }
  const Leaf& leaf_of(const Node& node) const {
    return f_.schema.leaves[static_cast<size_t>(node.leaf_begin)];
  }

  void check_type(const Node& node, const FieldInfo& field) const {
    const bool list = node.kind == Kind::list && node.children[0].kind == Kind::leaf;
    const Form form = leaf_of(node).form;
    const bool integers = form == Form::integer || form == Form::unsigned_integer;
    const bool null = node.kind == Kind::leaf && leaf_of(node).logical == Logical::null;
    if (!(list && integers) && !(node.kind == Kind::leaf && form == Form::text) && !null)
      refuse_type(field, f_.name);
  }

  void make_columns(const Node& node, const std::string& path) {
    if (node.kind == Kind::leaf) {
      auto& slot = columns_[static_cast<size_t>(node.leaf_begin)];
      if (!slot)
        slot = std::make_unique<ColumnReader>(f_.file, f_.name, path.substr(0, 1000), leaf_of(node),
                                              f_.data_end, memory_);
      return;
    }
    for (const Node& child : node.children)
      make_columns(child, path.substr(0, 1000) + "." + child.name.substr(0, 1000));
  }

  void open_row_group() {
    try {
      const RowGroup group = read_row_group(f_.footer, f_.metadata.row_groups[row_group_], wanted_,
                                            static_cast<int>(f_.schema.leaves.size()));
      check_overlap(group);
      for (size_t i = 0; i < wanted_.size(); ++i) column(wanted_[i]).open(group.chunks[i], row_group_);
      row_ = 0;
      rows_ = group.rows;
      for (size_t i = 0; i < wanted_.size(); ++i) {
        const int64_t values = group.chunks[i].values;
        ColumnReader& c = column(wanted_[i]);
        if (values < rows_ || (c.leaf().max_rep == 0 && values != rows_))
          damaged("column {} has {} values, and the row group has {} rows", printable(c.name(), 100), values,
                  rows_);
        if (c.next_rep() != 0) damaged("column {} starts in the middle of a row", printable(c.name(), 100));
      }
    } catch (const Damage& damage) {
      fail(ExitCode::data, "{}: row group {}: {}", f_.name, row_group_, damage.what());
    }
    ++row_group_;
  }

  /// Throws Damage if two of the selected column chunks share bytes.
  void check_overlap(const RowGroup& group) const {
    std::vector<std::pair<int64_t, int64_t>> ranges;  // begin and end
    for (const ColumnChunk& c : group.chunks)
      if (c.values > 0) ranges.emplace_back(c.begin(), c.compressed_bytes);
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i)
      if (ranges[i].first - ranges[i - 1].first < ranges[i - 1].second)
        damaged("the column chunks at byte {} and byte {} overlap", ranges[i - 1].first, ranges[i].first);
  }

  void check_end() {
    for (const int leaf : wanted_)
      if (column(leaf).has_entry())
        damaged("column {} has values for more rows than the {} of the row group",
                printable(column(leaf).name(), 100), rows_);
  }

  void read_row(Record& record) {
    if (as_json_) return read_json(record);
    const Node& node = *fields_[0];
    ColumnReader& c = column(node.leaf_begin);
    if (c.def() < node.def) {
      record.null = true;
      c.advance();
    } else if (node.kind == Kind::list) {
      read_tokens(node, c, record);
    } else {
      record.text.assign(c.value().text());
      c.advance();
    }
    if (c.next_rep() != 0) damaged("column {} has a repeated value in a row", printable(c.name(), 100));
  }

  void read_tokens(const Node& node, ColumnReader& c, Record& record) {
    record.has_tokens = true;
    if (c.def() < node.element_def) return c.advance();  // an empty list
    const bool is_signed = c.leaf().form != Form::unsigned_integer, narrow = c.leaf().type == Physical::int32;
    do {
      if (!c.has_value()) damaged("a token is null");
      const int64_t number = c.value().number;
      record.tokens.push_back(
          token_of(!is_signed && narrow ? static_cast<uint32_t>(number) : number, is_signed));
      c.advance();
      if (record.tokens.size() % 4096 == 0) check_record_size(0, record.tokens.size());
    } while (c.next_rep() == node.rep);
  }

  void read_json(Record& record) {
    std::string& out = record.text;
    out += '{';
    for (const Node* node : fields_) {
      if (out.size() > 1) out += ", ";
      append_json_string(out, node->name);
      out += ": ";
      write(*node, out);
      for (int leaf = node->leaf_begin; leaf < node->leaf_end; ++leaf)
        if (column(leaf).next_rep() != 0) levels_disagree(leaf);
    }
    out += '}';
  }

  [[noreturn]] void levels_disagree(int leaf) {
    damaged("column {} has levels that disagree with its neighbours", printable(column(leaf).name(), 100));
  }

  /// The entries of all leaves of `node` are nulls or empty lists at definition levels `low` to below `high`.
  /// Goes to the next entries.
  void skip_entries(const Node& node, int low, int high) {
    for (int leaf = node.leaf_begin; leaf < node.leaf_end; ++leaf) {
      ColumnReader& c = column(leaf);
      if (!c.has_entry() || c.def() < low || c.def() >= high) levels_disagree(leaf);
      c.advance();
    }
  }

  /// Appends the present value of a field.
  void write(const Node& node, std::string& out) {
    ColumnReader& first = column(node.leaf_begin);
    if (!first.has_entry()) levels_disagree(node.leaf_begin);
    if (first.def() < node.def) {
      if (!node.nullable) levels_disagree(node.leaf_begin);
      skip_entries(node, node.parent_def, node.def);
      out += "null";
      return;
    }
    switch (node.kind) {
      case Kind::leaf:
        append_value(out, first.leaf(), first.value());
        first.advance();
        return check_record_size(out.size(), 0);
      case Kind::structure:
        return write_structure(node, out);
      case Kind::list:
      case Kind::map:
        return write_elements(node, out);
    }
  }

  void write_structure(const Node& node, std::string& out) {
    out += '{';
    for (size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0) out += ", ";
      append_json_string(out, node.children[i].name);
      out += ": ";
      write(node.children[i], out);
    }
    out += '}';
  }

  /// A list as an array; a map as an object if its keys are strings, and else as an array of key and value.
  void write_elements(const Node& node, std::string& out) {
    const bool map = node.kind == Kind::map;
    const bool object = map && node.children[0].kind == Kind::leaf && leaf_of(node).form == Form::text;
    out += object ? '{' : '[';
    ColumnReader& first = column(node.leaf_begin);
    if (first.def() < node.element_def) {
      skip_entries(node, node.def, node.element_def);
    } else {
      for (bool more = true, comma = false; more; comma = true) {
        if (comma) out += ", ";
        if (object)
          write_pair(node, out);
        else if (map)
          write_structure(node, out);
        else
          write(node.children[0], out);
        more = first.next_rep() == node.rep;
        for (int leaf = node.leaf_begin + 1; leaf < node.leaf_end; ++leaf)
          if ((column(leaf).next_rep() == node.rep) != more) levels_disagree(leaf);
      }
    }
    out += object ? '}' : ']';
  }

  void write_pair(const Node& map, std::string& out) {
    const size_t begin = out.size();
    write(map.children[0], out);
    if (out.compare(begin, std::string::npos, "null") == 0) damaged("a key of a map is null");
    out += ": ";
    write(map.children[1], out);
  }

  File f_;
  bool as_json_;
  std::vector<const Node*> fields_;  // in f_.schema
  std::vector<int> wanted_;          // leaves, rising
  std::shared_ptr<int64_t> memory_ = std::make_shared<int64_t>(0);
  std::vector<std::unique_ptr<ColumnReader>> columns_;
  size_t row_group_ = 0;  // the next
  int64_t row_ = 0, rows_ = 0, done_ = 0;
};

}  // namespace
}  // namespace parquet

namespace {
bool is_parquet(std::string_view head) { return head.starts_with("PAR1"); }
}  // namespace

std::unique_ptr<RecordSource> open_parquet(std::shared_ptr<const data::InputFile> file, std::string name,
                                           const Selection& selection) {
  return std::make_unique<parquet::ParquetSource>(parquet::open_file(std::move(file), std::move(name)),
                                                  selection);
}

FileSchema parquet_schema(std::shared_ptr<const data::InputFile> file, std::string name) {
  parquet::File f = parquet::open_file(std::move(file), std::move(name));
  return {f.metadata.rows, std::move(f.fields)};
}

Format parquet_format() {
  return {.name = "parquet",
          .default_field = "text",
          .recognise = &is_parquet,
          .open = &at_any_offset<&open_parquet>};
}

}  // namespace ltrain::records
