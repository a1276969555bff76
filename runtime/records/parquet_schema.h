// Schema of a Parquet file: a tree of fields with their definition and repetition levels. Throws Damage.
#pragma once
#include <string>
#include <vector>

#include "runtime/records/parquet_metadata.h"

namespace ltrain::records::parquet {

/// Form of a leaf's values.
enum class Form : uint8_t {
  boolean,
  integer,
  unsigned_integer,
  float16,
  float32,
  float64,
  text,             ///< strings and bytes
  decimal_integer,  ///< unscaled value in an integer
  decimal_bytes,    ///< unscaled value in big-endian bytes
  timestamp96,      ///< nanoseconds of the day and Julian day, 12 bytes
};

struct Leaf {
  Physical type = Physical::boolean;
  Form form = Form::integer;
  Logical logical = Logical::none;
  int width = 0;  ///< bytes of a value; 0 for Physical::bytes
  int scale = 0, precision = 0, bits = 0;
  int max_def = 0, max_rep = 0;
};

struct Node {
  enum class Kind : uint8_t { leaf, structure, list, map };
  std::string name;
  Kind kind = Kind::leaf;
  bool nullable = false;
  int def = 0;                 ///< definition level from which the field is not null
  int parent_def = 0;          ///< definition level from which the parent is there
  int element_def = 0;         ///< definition level from which a list or map has elements
  int rep = 0;                 ///< repetition level of further elements of a list or map
  std::vector<Node> children;  ///< one of a list; key and value of a map
  int leaf_begin = 0, leaf_end = 0;
};

struct Schema {
  std::vector<Node> fields;  ///< top level
  std::vector<Leaf> leaves;
};

Schema make_schema(const std::vector<SchemaElement>& elements);

/// "string", "list<int32>", "struct<role: string, content: string>".
std::string type_name(const Schema& schema, const Node& node);

}  // namespace ltrain::records::parquet
