// Choice of records by their fields: `where` of a source, --where of `ltrain data build`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

/// Condition on one field: one of `values`, or a number from `min` to `max`, both included.
struct FieldCondition {
  std::string field;                ///< its name; "a.b": field b of the object a
  std::vector<std::string> values;  ///< texts, numbers, or true and false, as they are written in the recipe
  std::optional<double> min, max;   ///< only without values
  bool operator==(const FieldCondition&) const = default;
};

/// A record is kept if all conditions hold. Empty: every record is kept.
using RecordFilter = std::vector<FieldCondition>;

/// The filter as a flow map of YAML and JSON: `{"language": ["en"], "score": {"min": 0.5}}`.
std::string filter_text(const RecordFilter& filter);

/// Columns that a reader must select for the filter.
std::vector<std::string> filter_fields(const RecordFilter& filter);

/// Returns whether the filter keeps `record`, a JSON object of the fields. null meets no condition, and NaN
/// no bound. Text that is a number meets bounds, since CSV has only texts. Throws Error (data), beginning
/// with `where`, for a missing or duplicate field, for a type that its condition cannot be compared with, and
/// for text other than a JSON object.
bool keeps_record(const RecordFilter& filter, std::string_view record, const std::string& where);

/// Records of a build with a filter, `read` and `kept`, and documents that DocumentChoice leaves out; 0
/// without.
struct FilterCounts {
  int64_t read = 0, kept = 0;
  int64_t duplicates = 0, contaminated = 0;

  int64_t left_out() const { return read - kept + duplicates + contaminated; }
  void add(const FilterCounts& other) {
    read += other.read, kept += other.kept;
    duplicates += other.duplicates, contaminated += other.contaminated;
  }
};

}  // namespace ltrain::data
