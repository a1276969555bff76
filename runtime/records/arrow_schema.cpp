#include "runtime/records/arrow_schema.h"

#include <array>

namespace ltrain::records::arrow {
namespace {

constexpr int kMostSchemaDepth = 64;
// Tables of a flatbuffer may be shared, so that a small one can have very many fields.
constexpr size_t kMostFields = 20'000, kMostNames = size_t{1} << 26;

// Numbers of the union Type in Schema.fbs.
enum Type : uint8_t {
  kNull = 1,
  kInt = 2,
  kFloatingPoint = 3,
  kBinary = 4,
  kUtf8 = 5,
  kBool = 6,
  kDecimal = 7,
  kDate = 8,
  kTime = 9,
  kTimestamp = 10,
  kInterval = 11,
  kList = 12,
  kStruct = 13,
  kUnion = 14,
  kFixedSizeBinary = 15,
  kFixedSizeList = 16,
  kMap = 17,
  kDuration = 18,
  kLargeBinary = 19,
  kLargeUtf8 = 20,
  kLargeList = 21,
  kRunEndEncoded = 22,
  kBinaryView = 23,
  kUtf8View = 24,
  kListView = 25,
  kLargeListView = 26,
};

int width_of_int(const FlatTable& type) {
  const auto bits = type.number<int32_t>(0, 0);
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
    damaged("the schema has an integer of {} bits", bits);
  return bits / 8;
}

class Reader {
 public:
  explicit Reader(int version) : version_(version) {}

  std::vector<Field> fields(const FlatTable& parent, int slot, int depth) {
    if (depth > kMostSchemaDepth) damaged("the schema is nested deeper than {} levels", kMostSchemaDepth);
    const FlatVector children = parent.vector(slot, 4);
    std::vector<Field> all;
    for (size_t i = 0; i < children.size; ++i) all.push_back(field(parent.element(children, i), depth));
    return all;
  }

 private:
  Field field(const FlatTable& table, int depth) {
    Field f;
    f.name = table.text(0);
    names_ += f.name.size();
    if (++count_ > kMostFields || names_ > kMostNames)
      damaged("the schema has more than {} fields, or {} bytes of names", kMostFields, kMostNames);
    f.children = fields(table, 5, depth + 1);
    const auto type = table.table(3);
    if (!type) damaged("the schema has a field without a type");
    read_type(f, table.number<uint8_t>(2, 0), *type);
    if (const auto encoding = table.table(4)) {
      f.has_dictionary = true;
      f.dictionary = encoding->number<int64_t>(0, 0);
      if (const auto index = encoding->table(1)) {
        f.index_width = width_of_int(*index);
        f.index_signed = index->number<uint8_t>(1, 0) != 0;
      }
    }
    return f;
  }

  static void set(Field& f, Kind kind, int width, int buffers, std::string type) {
    f.kind = kind;
    f.width = width;
    f.buffers = buffers;
    f.type = type.size() > 1200 ? type.substr(0, 1200) + "..." : std::move(type);
  }

  void read_type(Field& f, uint8_t number, const FlatTable& type) {
    switch (number) {
      case kNull:
        return set(f, Kind::null, 0, 0, "null");
      case kBool:
        return set(f, Kind::boolean, 0, 2, "bool");
      case kInt:
        set(f, Kind::integer, width_of_int(type), 2, "");
        f.is_signed = type.number<uint8_t>(1, 0) != 0;
        f.type = fmt::format("{}int{}", f.is_signed ? "" : "u", f.width * 8);
        return;
      case kFloatingPoint: {
        const auto precision = type.number<int16_t>(0, 0);
        if (precision < 0 || precision > 2) damaged("the schema has the unknown precision {}", precision);
        return set(f, Kind::floating, 2 << precision, 2, fmt::format("float{}", 16 << precision));
      }
      case kDate:
        return set(f, Kind::integer, type.number<int16_t>(0, 1) == 0 ? 4 : 8, 2, "date");
      case kTime:
        return set(f, Kind::integer, type.number<int32_t>(1, 32) == 32 ? 4 : 8, 2, "time");
      case kTimestamp:
        return set(f, Kind::integer, 8, 2, "timestamp");
      case kDuration:
        return set(f, Kind::integer, 8, 2, "duration");
      case kInterval:
        return type.number<int16_t>(0, 0) == 0 ? set(f, Kind::integer, 4, 2, "interval")
                                               : set(f, Kind::other, 0, 2, "interval");
      case kDecimal:
        return read_decimal(f, type);
      case kUtf8:
        return set(f, Kind::text, 4, 3, "string");
      case kLargeUtf8:
        return set(f, Kind::text, 8, 3, "string");
      case kBinary:
        return set(f, Kind::text, 4, 3, "binary");
      case kLargeBinary:
        return set(f, Kind::text, 8, 3, "binary");
      case kFixedSizeBinary:
        set(f, Kind::fixed, type.number<int32_t>(0, 0), 2, "binary");
        if (f.width < 0) damaged("the schema has values of {} bytes", f.width);
        return;
    }
    read_nested_type(f, number, type);
  }

  static void read_decimal(Field& f, const FlatTable& type) {
    const auto bits = type.number<int32_t>(2, 128);
    if (bits != 32 && bits != 64 && bits != 128 && bits != 256)
      damaged("the schema has a decimal of {} bits", bits);
    f.scale = type.number<int32_t>(1, 0);
    if (f.scale < 0 || f.scale > 1000)
      damaged("the schema has a decimal of scale {}, expected 0 to 1000", f.scale);
    set(f, Kind::decimal, bits / 8, 2, fmt::format("decimal({}, {})", type.number<int32_t>(0, 0), f.scale));
  }

  static std::string list_of(const std::vector<Field>& children) {
    std::string text;
    for (const Field& c : children) {
      if (text.size() > 1000) return text + ", ...";
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", c.name.substr(0, 100), c.type);
    }
    return text;
  }
  static const std::string& only_child(const Field& f) {
    if (f.children.size() != 1)
      damaged("the schema has a list with {} children, expected 1", f.children.size());
    return f.children[0].type;
  }

  void read_nested_type(Field& f, uint8_t number, const FlatTable& type) const {
    switch (number) {
      case kList:
        return set(f, Kind::list, 4, 2, fmt::format("list<{}>", only_child(f)));
      case kLargeList:
        return set(f, Kind::list, 8, 2, fmt::format("list<{}>", only_child(f)));
      case kFixedSizeList:
        set(f, Kind::fixed_list, 0, 1, fmt::format("list<{}>", only_child(f)));
        f.list_size = type.number<int32_t>(0, 0);
        if (f.list_size < 0) damaged("the schema has lists of {} elements", f.list_size);
        return;
      case kStruct:
        return set(f, Kind::structure, 0, 1, fmt::format("struct<{}>", list_of(f.children)));
      case kMap: {
        only_child(f);
        const Field& entry = f.children[0];
        if (entry.kind != Kind::structure || entry.children.size() != 2 || entry.has_dictionary)
          damaged("the schema has a map without a struct of key and value");
        return set(f, Kind::map, 4, 2,
                   fmt::format("map<{}, {}>", entry.children[0].type, entry.children[1].type));
      }
      case kUnion: {
        const int old_validity = version_ < 4 ? 1 : 0;
        return set(f, Kind::other, 0, (type.number<int16_t>(0, 0) == 0 ? 1 : 2) + old_validity, "union");
      }
      case kRunEndEncoded:
        return set(f, Kind::other, 0, 0, "run_end_encoded");
      case kBinaryView:
      case kUtf8View:
        f.is_view = true;
        return set(f, Kind::text, 16, 2, number == kUtf8View ? "string_view" : "binary_view");
      case kListView:
      case kLargeListView:
        return set(f, Kind::other, 0, 3, "list_view");
    }
    damaged("the schema has the unknown type {}", number);
  }

  int version_;
  size_t count_ = 0, names_ = 0;
};

}  // namespace

std::vector<Field> read_fields(const FlatTable& schema, int version) {
  if (schema.number<int16_t>(0, 0) != 0) damaged("the file has big-endian numbers, expected little-endian");
  return Reader(version).fields(schema, 1, 0);
}

}  // namespace ltrain::records::arrow
