#include "runtime/records/parquet_metadata.h"

#include <array>

namespace ltrain::records::parquet {
namespace {

using Type = ThriftReader::Type;
using enum ThriftReader::Type;

constexpr size_t kMostParts = 1'000'000;  // keeps memory near the footer's size

/// A count or size that may not be negative.
int64_t count(ThriftReader& in, Type type, const char* what) {
  const int64_t value = in.integer(type);
  if (value < 0) damaged("metadata has {} {}, expected 0 or more", what, value);
  return value;
}

int32_t count32(ThriftReader& in, Type type, const char* what) {
  const int64_t value = count(in, type, what);
  if (value != static_cast<int32_t>(value))
    damaged("metadata has {} {}, expected less than 2^31", what, value);
  return static_cast<int32_t>(value);
}

void read_converted_type(int32_t type, SchemaElement& e) {
  constexpr std::array kTypes{Logical::string,      Logical::map,       Logical::map,       Logical::list,
                              Logical::enumeration, Logical::decimal,   Logical::date,      Logical::time,
                              Logical::time,        Logical::timestamp, Logical::timestamp, Logical::integer,
                              Logical::integer,     Logical::integer,   Logical::integer,   Logical::integer,
                              Logical::integer,     Logical::integer,   Logical::integer,   Logical::json,
                              Logical::bson,        Logical::other};
  if (type < 0 || type >= static_cast<int32_t>(kTypes.size())) return;
  e.logical = kTypes[static_cast<size_t>(type)];
  if (type == 2) e.logical = Logical::none;  // MAP_KEY_VALUE, on the group within a map
  if (e.logical == Logical::integer) {       // UINT_8, 16, 32, 64, then INT_8, 16, 32, 64
    e.is_signed = type >= 15;
    e.bits = 8 << ((type - 11) % 4);
  }
}

/// LogicalType, a union: a struct with one field.
void read_logical_type(ThriftReader& in, SchemaElement& e) {
  in.read_struct([&](int id, Type type) {
    constexpr std::array kTypes{Logical::none,        Logical::string,  Logical::map,     Logical::list,
                                Logical::enumeration, Logical::decimal, Logical::date,    Logical::time,
                                Logical::timestamp,   Logical::none,    Logical::integer, Logical::null,
                                Logical::json,        Logical::bson,    Logical::uuid,    Logical::float16};
    e.logical =
        id > 0 && id < static_cast<int>(kTypes.size()) ? kTypes[static_cast<size_t>(id)] : Logical::other;
    if (type != kStruct) return false;
    in.read_struct([&](int field, Type t) {
      if (e.logical == Logical::decimal && (field == 1 || field == 2)) {
        (field == 1 ? e.scale : e.precision) = in.int32(t);
        return true;
      }
      if (e.logical == Logical::integer && (field == 1 || field == 2)) {
        if (field == 1)
          e.bits = in.int32(t);
        else
          e.is_signed = in.boolean(t);
        return true;
      }
      return false;
    });
    return true;
  });
}

SchemaElement read_schema_element(ThriftReader& in) {
  SchemaElement e;
  bool named = false, logical = false;
  in.read_struct([&](int id, Type type) {
    switch (id) {
      case 1: {
        const int32_t number = in.int32(type);
        if (number < 0 || number > 7) damaged("the schema has the unknown physical type {}", number);
        e.type = static_cast<Physical>(number);
        return true;
      }
      case 2:
        e.type_length = in.int32(type);
        return true;
      case 3: {
        const int32_t number = in.int32(type);
        if (number < 0 || number > 2) damaged("the schema has the unknown repetition {}", number);
        e.repetition = static_cast<Repetition>(number);
        return true;
      }
      case 4:
        e.name = in.binary(type);
        return named = true;
      case 5:
        e.children = count32(in, type, "a number of children");
        return true;
      case 6: {
        const int32_t converted = in.int32(type);
        if (!logical) read_converted_type(converted, e);
        return true;
      }
      case 7:
        e.scale = in.int32(type);
        return true;
      case 8:
        e.precision = in.int32(type);
        return true;
      case 10:
        in.expect(type, kStruct);
        read_logical_type(in, e);
        return logical = true;
    }
    return false;
  });
  if (!named) damaged("the schema has an element without a name");
  return e;
}

void read_chunk_metadata(ThriftReader& in, ColumnChunk& chunk) {
  bool typed = false, located = false, counted = false;
  in.read_struct([&](int id, Type type) {
    switch (id) {
      case 1: {
        const int32_t number = in.int32(type);
        if (number < 0 || number > 7) damaged("a column chunk has the unknown physical type {}", number);
        chunk.type = static_cast<Physical>(number);
        return typed = true;
      }
      case 4:
        chunk.codec = in.int32(type);
        return true;
      case 5:
        chunk.values = count(in, type, "a number of values");
        return counted = true;
      case 7:
        chunk.compressed_bytes = count(in, type, "a size of a column chunk");
        return true;
      case 9:
        chunk.data_page = count(in, type, "a position of a data page");
        return located = true;
      case 11:
        chunk.dictionary_page = in.integer(type);  // some writers store -1 or 0 for none
        return true;
    }
    return false;
  });
  if (!typed || !located || !counted) damaged("a column chunk has no type, position, or number of values");
  chunk.has_metadata = true;
}

ColumnChunk read_chunk(ThriftReader& in) {
  ColumnChunk chunk;
  in.read_struct([&](int id, Type type) {
    switch (id) {
      case 1:
        chunk.file = in.binary(type);
        return true;
      case 3:
        in.expect(type, kStruct);
        read_chunk_metadata(in, chunk);
        return true;
      case 8:
      case 9:
        chunk.encrypted = true;
        return false;
    }
    return false;
  });
  return chunk;
}

}  // namespace

std::string encoding_name(int32_t encoding) {
  constexpr std::array kNames{"PLAIN",
                              "number 1",
                              "PLAIN_DICTIONARY",
                              "RLE",
                              "BIT_PACKED",
                              "DELTA_BINARY_PACKED",
                              "DELTA_LENGTH_BYTE_ARRAY",
                              "DELTA_BYTE_ARRAY",
                              "RLE_DICTIONARY",
                              "BYTE_STREAM_SPLIT"};
  if (encoding < 0 || encoding >= static_cast<int32_t>(kNames.size()))
    return fmt::format("number {}", encoding);
  return kNames[static_cast<size_t>(encoding)];
}

std::optional<Codec> codec_of(int32_t number) {
  switch (number) {  // 3 is LZO, without a codec here or in other readers
    case 0:
      return Codec::none;
    case 1:
      return Codec::snappy;
    case 2:
      return Codec::gzip;
    case 4:
      return Codec::brotli;
    case 5:
      return Codec::lz4_hadoop;
    case 6:
      return Codec::zstd;
    case 7:
      return Codec::lz4_raw;
  }
  return std::nullopt;
}

Footer read_footer(Bytes bytes) {
  ThriftReader in(bytes);
  Footer footer;
  in.read_struct([&](int id, Type type) {
    switch (id) {
      case 2:
        footer.schema.clear();
        in.read_list(type, kStruct, [&] {
          if (footer.schema.size() == kMostParts) damaged("the schema has more than {} elements", kMostParts);
          footer.schema.push_back(read_schema_element(in));
        });
        return true;
      case 3:
        footer.rows = count(in, type, "a number of rows");
        return true;
      case 4:
        footer.row_groups.clear();
        in.read_list(type, kStruct, [&] {
          if (footer.row_groups.size() == kMostParts)
            damaged("the file has more than {} row groups", kMostParts);
          footer.row_groups.push_back(in.position());
          in.skip(kStruct);
        });
        return true;
      case 6:
        footer.created_by = in.binary(type);
        return true;
      case 8:
        footer.encrypted = true;
        return false;
    }
    return false;
  });
  if (footer.schema.empty()) damaged("the footer has no schema");
  return footer;
}

RowGroup read_row_group(Bytes footer, size_t position, const std::vector<int>& wanted, int leaves) {
  ThriftReader in(footer.subspan(position));
  RowGroup group;
  int64_t chunks = 0;
  bool counted = false;
  in.read_struct([&](int id, Type type) {
    if (id == 3) {
      group.rows = count(in, type, "a number of rows");
      return counted = true;
    }
    if (id != 1) return false;
    size_t next = 0;
    group.chunks.clear();
    chunks = 0;
    in.read_list(type, kStruct, [&] {
      if (next < wanted.size() && wanted[next] == chunks) {
        group.chunks.push_back(read_chunk(in));
        ++next;
      } else {
        in.skip(kStruct);
      }
      ++chunks;
    });
    return true;
  });
  if (!counted) damaged("the row group has no number of rows");
  if (chunks != leaves)
    damaged("the row group has {} column chunks, expected {} as in the schema", chunks, leaves);
  return group;
}

namespace {

void read_data_header(ThriftReader& in, PageHeader& page) {
  in.read_struct([&](int id, Type type) {
    switch (id) {
      case 1:
        page.values = count32(in, type, "a number of values");
        return true;
      case 2:
        page.encoding = in.int32(type);
        return true;
      case 3:
        page.level_encoding_def = in.int32(type);
        return true;
      case 4:
        page.level_encoding_rep = in.int32(type);
        return true;
    }
    return false;
  });
}

void read_dictionary_header(ThriftReader& in, PageHeader& page) {
  in.read_struct([&](int id, Type type) {
    if (id == 1) page.values = count32(in, type, "a number of values");
    if (id == 2) page.encoding = in.int32(type);
    return id == 1 || id == 2;
  });
}

void read_data_v2_header(ThriftReader& in, PageHeader& page) {
  in.read_struct([&](int id, Type type) {
    switch (id) {
      case 1:
        page.values = count32(in, type, "a number of values");
        return true;
      case 4:
        page.encoding = in.int32(type);
        return true;
      case 5:
        page.def_bytes = count32(in, type, "a size of definition levels");
        return true;
      case 6:
        page.rep_bytes = count32(in, type, "a size of repetition levels");
        return true;
      case 7:
        page.is_compressed = in.boolean(type);
        return true;
    }
    return false;
  });
}

/// Reads one field; false for a field that is not needed.
bool read_page_field(ThriftReader& in, int id, Type type, PageHeader& page) {
  switch (id) {
    case 1: {
      const int32_t number = in.int32(type);
      page.type = number >= 0 && number <= 3 ? static_cast<PageType>(number) : PageType::other;
      return true;
    }
    case 2:
      page.bytes = count32(in, type, "a size of a page");
      return true;
    case 3:
      page.compressed_bytes = count32(in, type, "a size of a page");
      return true;
    case 4:
      page.crc = static_cast<uint32_t>(in.integer(type));
      return true;
    case 5:
      if (type != kStruct) return false;
      read_data_header(in, page);
      return true;
    case 7:
      if (type != kStruct) return false;
      read_dictionary_header(in, page);
      return true;
    case 8:
      if (type != kStruct) return false;
      read_data_v2_header(in, page);
      return true;
  }
  return false;
}

}  // namespace

std::optional<PageHeader> read_page_header(Bytes bytes) {
  ThriftReader in(bytes);
  PageHeader page;
  int last = 0;
  try {
    in.read_struct([&](int id, Type type) {
      last = id;
      return read_page_field(in, id, type, page);
    });
  } catch (const Damage&) {
    if (in.at_end_of_input()) return std::nullopt;
    throw;
  }
  if (last < 3) damaged("the page header has no sizes");
  page.header_bytes = in.position();
  return page;
}

}  // namespace ltrain::records::parquet
