// Schema of an Arrow file. Throws Damage.
#pragma once
#include <string>
#include <vector>

#include "runtime/records/encodings/flatbuffer.h"

namespace ltrain::records::arrow {

enum class Kind : uint8_t {
  null,
  boolean,
  integer,  ///< also dates, times and durations
  floating,
  text,  ///< strings and bytes
  fixed,
  decimal,
  list,
  fixed_list,
  structure,
  map,
  other,  ///< cannot be read, only skipped
};

struct Field {
  std::string name, type;  ///< type as text, "list<int32>"
  Kind kind = Kind::other;
  int width = 0;  ///< bytes of a value, or of an offset of text, lists and maps
  bool is_signed = true;
  int scale = 0;
  int64_t list_size = 0;        ///< elements of a fixed_list
  int buffers = 0;              ///< buffers of the field itself, without children
  bool is_view = false;         ///< text by 16 bytes each; more buffers follow, counted in the record batch
  std::vector<Field> children;  ///< one of a list; the struct of key and value of a map

  bool has_dictionary = false;  ///< values are indices; kind and children are the dictionary's
  int64_t dictionary = 0;       ///< its id
  int index_width = 4;
  bool index_signed = true;

  /// Fields of the record batch below this one.
  const std::vector<Field>& stored_children() const {
    static const std::vector<Field> none;
    return has_dictionary ? none : children;
  }
  int stored_buffers() const { return has_dictionary ? 2 : buffers; }
};

/// `schema`: a table Schema. `version`: 3 for V4, 4 for V5.
std::vector<Field> read_fields(const FlatTable& schema, int version);

}  // namespace ltrain::records::arrow
