// CSV and TSV with a header line (RFC 4180). Fields are the columns of the first line. A quoted field may
// contain separators, line ends and doubled quotes. A row with another number of columns is a
// Record::problem.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "runtime/records/fields.h"
#include "runtime/records/format.h"

namespace ltrain::records {
namespace {

constexpr size_t kReadBytes = 1 << 17;
constexpr size_t kMaxColumns = 4096;

class CsvSource final : public RecordSource {
 public:
  CsvSource(std::unique_ptr<ByteStream> stream, std::string name, char separator, const Selection& selection)
      : stream_(std::move(stream)), name_(std::move(name)), separator_(separator), selection_(selection) {
    if (!row(header_))
      fail(ExitCode::data, "{}: expected a first line with the names of columns, got none", name_);
    if (!header_[0].compare(0, 3, "\xEF\xBB\xBF")) header_[0].erase(0, 3);
    std::vector<FieldInfo> fields;
    for (const std::string& column : header_) fields.push_back({column, ""});
    columns_ = select_fields(fields, selection_, name_);
  }

  bool next(Record& record) override {
    do {
      if (!row(fields_)) return false;
    } while (fields_.size() == 1 && fields_[0].empty() && header_.size() > 1);  // a blank line
    record = {};
    if (fields_.size() != header_.size()) {
      record.problem =
          fmt::format("expected {} columns as in the first line, got {}", header_.size(), fields_.size());
    } else if (!selection_.as_json) {
      record.text = std::move(fields_[columns_[0]]);
    } else {
      nlohmann::ordered_json object = nlohmann::ordered_json::object();
      for (const size_t c : columns_) object[header_[c]] = fields_[c];
      record.text = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    }
    return true;
  }

  std::string position() const override { return fmt::format("line {}", row_line_); }
  int64_t consumed() const override { return stream_->consumed(); }

 private:
  int get() {
    if (at_ == block_.size()) {
      block_.resize(kReadBytes);
      block_.resize(static_cast<size_t>(stream_->read_some(block_.data(), static_cast<int64_t>(kReadBytes))));
      at_ = 0;
      if (block_.empty()) return -1;
    }
    return static_cast<unsigned char>(block_[at_++]);
  }

  /// Reads one row into `out`. Returns false at the end of the file.
  bool row(std::vector<std::string>& out) {
    row_line_ = line_;
    int c = get();
    if (c < 0) return false;
    out.assign(1, "");
    int64_t bytes = 0;
    bool quoted = false, after_quotes = false;
    for (;; c = get()) {
      if (++bytes > kMaxRecordBytes)
        fail(ExitCode::data, "{}:{}: a row of more than {} MiB{}", name_, row_line_, kMaxRecordBytes >> 20,
             quoted ? ", within quotes: is a closing quote missing?" : "");
      line_ += c == '\n';
      if (quoted) {
        if (c < 0) fail(ExitCode::data, "{}:{}: the file ends within quotes", name_, row_line_);
        quoted = c != '"';
        after_quotes = !quoted;
        if (quoted) out.back() += static_cast<char>(c);
      } else if (c == '"' && (after_quotes || out.back().empty())) {
        if (after_quotes) out.back() += '"';
        quoted = true;
        after_quotes = false;
      } else if (c < 0 || c == '\n') {
        if (!after_quotes && out.back().ends_with('\r')) out.back().pop_back();
        return true;
      } else if (c == separator_) {
        out.emplace_back();
        after_quotes = false;
        if (out.size() > kMaxColumns)
          fail(ExitCode::data, "{}:{}: more than {} columns", name_, row_line_, kMaxColumns);
      } else if (!(after_quotes && c == '\r')) {
        out.back() += static_cast<char>(c);
      }
    }
  }

  std::unique_ptr<ByteStream> stream_;
  std::string name_;
  char separator_;
  Selection selection_;
  std::string block_;
  size_t at_ = 0;
  int64_t line_ = 1, row_line_ = 1;
  std::vector<std::string> header_, fields_;
  std::vector<size_t> columns_;
};

template <char separator>
std::unique_ptr<RecordSource> open_separated(std::unique_ptr<ByteStream> stream, std::string name,
                                             const Selection& selection) {
  return std::make_unique<CsvSource>(std::move(stream), std::move(name), separator, selection);
}

}  // namespace

Format csv_format() {
  return {
      .name = "csv", .default_field = "text", .extension = ".csv", .open = &streamed<&open_separated<','>>};
}
Format tsv_format() {
  return {
      .name = "tsv", .default_field = "text", .extension = ".tsv", .open = &streamed<&open_separated<'\t'>>};
}

}  // namespace ltrain::records
