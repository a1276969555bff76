#include "runtime/data/input/record_options.h"

#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/tokenizer/unicode.h"

namespace ltrain::data {

void check_record_options(const RecordOptions& options) {
  if (options.field && options.field->empty()) fail(ExitCode::usage, "--field is empty");
  if (options.field && options.format == InputFormat::text)
    fail(ExitCode::usage,
         "--field {} and --input-format text: the field is that of records; leave one of the two out",
         printable(*options.field, 60));
  if (!options.where.empty() && options.format == InputFormat::text)
    fail(ExitCode::usage, "--where {} and --input-format text: text has no fields; leave one of the two out",
         printable(filter_text(options.where), 200));
}

void BadRecords::add(std::string message) {
  if (first.size() < kNamed) first.push_back(std::move(message));
}

void BadRecords::add(const BadRecords& later) {
  skipped += later.skipped;
  replaced += later.replaced;
  for (const std::string& message : later.first) add(message);
}

void skip_record(const std::string& message, const RecordOptions& options, BadRecords& bad) {
  if (options.on_bad == OnBadRecord::stop) fail(ExitCode::data, "{}", message);
  bad.add(message);
  ++bad.skipped;
}

std::optional<std::string> read_text_record(std::string_view text, const RecordOptions& options,
                                            const std::string& path, const std::string& position,
                                            BadRecords& bad) {
  const size_t valid = valid_utf8(text);
  if (valid == text.size()) return std::string(text);
  const std::string message = fmt::format(
      "{}: {}: byte {} of the text is not UTF-8; --on-bad-record skip or replace goes on (in a recipe: "
      "data.on_bad_record)",
      path, position, valid);
  if (options.on_bad == OnBadRecord::replace) {
    bad.add(message);
    ++bad.replaced;
    return replaced_utf8(text);
  }
  skip_record(message, options, bad);
  return std::nullopt;
}

}  // namespace ltrain::data
