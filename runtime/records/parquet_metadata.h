// Metadata of Parquet files: footer, row groups, column chunks, headers of pages. Throws Damage.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "runtime/records/encodings/codec.h"
#include "runtime/records/encodings/thrift.h"

namespace ltrain::records::parquet {

// Numbers of the format (parquet.thrift).
enum class Physical : uint8_t { boolean, int32, int64, int96, float32, float64, bytes, fixed };
enum class Repetition : uint8_t { required, optional, repeated };
enum class Encoding : uint8_t {
  plain = 0,
  plain_dictionary = 2,
  rle = 3,
  bit_packed = 4,
  delta_binary_packed = 5,
  delta_length_byte_array = 6,
  delta_byte_array = 7,
  rle_dictionary = 8,
  byte_stream_split = 9,
};
enum class PageType : uint8_t { data = 0, index = 1, dictionary = 2, data_v2 = 3, other };

std::string encoding_name(int32_t encoding);

/// Meaning of a field, from its logical type or the older converted type.
enum class Logical : uint8_t {
  none,
  string,
  map,
  list,
  enumeration,
  decimal,
  date,
  time,
  timestamp,
  integer,
  null,
  json,
  bson,
  uuid,
  float16,
  other
};

struct SchemaElement {
  std::string name;
  std::optional<Physical> type;  ///< set for a leaf
  Repetition repetition = Repetition::required;
  Logical logical = Logical::none;
  int32_t type_length = 0, children = 0, scale = 0, precision = 0;
  int bits = 0;           ///< for Logical::integer
  bool is_signed = true;  ///< for Logical::integer
};

struct Footer {
  int64_t rows = 0;
  std::vector<SchemaElement> schema;  ///< depth first
  std::vector<size_t> row_groups;     ///< position of each RowGroup in the footer's bytes
  std::string created_by;
  bool encrypted = false;
};

Footer read_footer(Bytes bytes);

struct ColumnChunk {
  Physical type = Physical::boolean;
  int32_t codec = 0;  ///< number in the file
  int64_t values = 0, compressed_bytes = 0, data_page = 0, dictionary_page = 0;
  bool encrypted = false, has_metadata = false;
  std::string file;  ///< name of another file that contains the data; normally empty

  int64_t begin() const {
    return dictionary_page > 0 && dictionary_page < data_page ? dictionary_page : data_page;
  }
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<ColumnChunk> chunks;  ///< chunks of the leaves in `wanted`, in this order
};

/// Reads the row group at `position` of the footer. `wanted`: rising numbers of leaves. `leaves`: their
/// count.
RowGroup read_row_group(Bytes footer, size_t position, const std::vector<int>& wanted, int leaves);

struct PageHeader {
  PageType type = PageType::other;
  int32_t bytes = 0, compressed_bytes = 0;
  std::optional<uint32_t> crc;
  int32_t values = 0;
  int32_t encoding = 0, level_encoding_def = 0, level_encoding_rep = 0;
  int32_t def_bytes = 0, rep_bytes = 0;  ///< for data_v2
  bool is_compressed = true;             ///< for data_v2
  size_t header_bytes = 0;
};

/// Reads the header at the start of `bytes`; nullopt if it may go on behind them.
std::optional<PageHeader> read_page_header(Bytes bytes);

/// The codec with the file's number; nullopt for an unknown one.
std::optional<Codec> codec_of(int32_t number);

}  // namespace ltrain::records::parquet
