#include "runtime/data/input/record_file.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/printable.h"

namespace ltrain::data {
namespace {

constexpr int64_t kMaxRecord = int64_t{256} << 20;
constexpr int kSniffedLines = 100;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

int64_t block_for(const records::Source& source, int64_t block_bytes) {
  const int64_t most = std::max<int64_t>(block_bytes, 4096);
  if (source.compression != records::Compression::none) return most;
  return std::clamp<int64_t>(source.file->size() + 1, 4096, most);
}

RecordReader::RecordReader(const records::Source& source, RecordForm form, int64_t block_bytes)
    : stream_(records::open_stream(source.file, source.name, source.compression)),
      name_(source.name),
      form_(form),
      block_bytes_(block_for(source, block_bytes)) {
  LT_CHECK(form != RecordForm::none, "expected a form of records for {}, got none", name_);
}

bool RecordReader::fill() {
  const size_t old = buffer_.size();
  buffer_.resize(old + static_cast<size_t>(block_bytes_));
  const int64_t n = stream_->read_some(buffer_.data() + old, block_bytes_);
  buffer_.resize(old + static_cast<size_t>(n));
  if (first_block_ && buffer_.starts_with(kByteOrderMark)) buffer_at_ = kByteOrderMark.size();
  first_block_ = false;
  return n > 0;
}

bool RecordReader::next(std::string& record) {
  return form_ == RecordForm::array ? next_element(record) : next_line(record);
}

/// Reads the next non-blank line, without its line end.
bool RecordReader::next_line(std::string& record) {
  for (size_t searched = 0;;) {
    const size_t end = buffer_.find('\n', buffer_at_ + searched);
    record_line_ = line_;
    if (end == std::string::npos) {
      buffer_.erase(0, buffer_at_);
      buffer_at_ = 0;
      searched = buffer_.size();
      if (static_cast<int64_t>(searched) > kMaxRecord)
        fail(ExitCode::data, "{}:{}: a line of more than {} MiB; a JSONL record is one line of at most that",
             name_, line_, kMaxRecord >> 20);
      if (fill()) continue;
      if (buffer_at_ >= buffer_.size()) return false;
      record.assign(buffer_, buffer_at_);
      buffer_.clear();
      buffer_at_ = 0;
    } else {
      record.assign(buffer_, buffer_at_, end - buffer_at_);
      buffer_at_ = end + 1;
    }
    searched = 0;
    ++line_;
    if (record.find_first_not_of(" \t\r") != std::string::npos) return true;
  }
}

int RecordReader::peek() {
  if (buffer_at_ == buffer_.size()) {
    buffer_.clear();
    buffer_at_ = 0;
    if (!fill()) return -1;
    if (buffer_at_ == buffer_.size()) return peek();
  }
  return static_cast<unsigned char>(buffer_[buffer_at_]);
}

int RecordReader::peek_after_blanks() {
  for (int c; (c = peek()) != -1; ++buffer_at_) {
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') return c;
    line_ += c == '\n';
  }
  return -1;
}

void RecordReader::broken(const std::string& why) const {
  fail(ExitCode::data, "{}:{}: {}; a .json file is read as one array of records, [{{...}}, {{...}}]", name_,
       line_, why);
}

bool RecordReader::next_element(std::string& record) {
  if (ended_) return false;
  int c = peek_after_blanks();
  if (!begun_) {
    if (c != '[') broken("expected the [ of an array");
    ++buffer_at_;
    c = peek_after_blanks();
  } else if (c == ',') {
    ++buffer_at_;
    if ((c = peek_after_blanks()) == ']') broken("expected a record after the comma, got ]");
  } else if (c != ']' && c != -1) {
    broken("expected a comma or ] between two records of an array, got \"" +
           printable(std::string(1, static_cast<char>(c)), 8) + "\"");
  }
  begun_ = true;
  if (c == -1) broken("the file ends inside its array");
  if (c == ']') {
    ++buffer_at_;
    if (peek_after_blanks() != -1) broken("expected the end of the file after its array, got more text");
    ended_ = true;
    return false;
  }
  record_line_ = line_;
  take_element(record);
  return true;
}

/// Reads bytes up to the comma or bracket that ends the element. Strings and nested values stay intact.
void RecordReader::take_element(std::string& record) {
  record.clear();
  bool in_string = false;
  for (int64_t depth = 0;;) {
    const int c = peek();
    if (c == -1) broken("the file ends inside its array");
    if (!in_string && depth == 0 && (c == ',' || c == ']')) return;
    ++buffer_at_;
    record += static_cast<char>(c);
    if (static_cast<int64_t>(record.size()) > kMaxRecord)
      fail(ExitCode::data, "{}:{}: a record of more than {} MiB", name_, record_line_, kMaxRecord >> 20);
    line_ += c == '\n';
    if (in_string) {
      if (c == '\\' && peek() != -1) record += buffer_[buffer_at_++];
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return;
    }
  }
}

RecordSniff sniff_records(const records::Source& source, const std::string& key) {
  RecordSniff sniff;
  const std::string head = records::beginning(source.file, source.name, source.compression, 4096);
  const size_t first =
      head.find_first_not_of(" \t\r\n", head.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
  if (first == head.npos || (head[first] != '{' && head[first] != '[')) {
    sniff.why = first == head.npos ? "it begins with blanks alone"
                                   : "it begins with \"" + printable(head.substr(first, 20), 40) + "\"";
    return sniff;
  }
  const RecordForm form = head[first] == '{' ? RecordForm::lines : RecordForm::array;
  try {
    RecordReader reader(source, form, 1 << 16);
    std::string record;
    for (int i = 0; i < kSniffedLines && reader.next(record); ++i) {
      const RecordShape shape = record_shape(record, key);
      if (sniff.form != RecordForm::none) {
        sniff.more = shape.object;
        break;
      }
      if (shape.object) {
        sniff.form = form;
        sniff.first_is_object = i == 0;
        sniff.has_key = shape.has_key;
        sniff.keys = shape.keys;
      } else if (sniff.why.empty()) {
        sniff.why = fmt::format("line {}: {}", reader.line_number(), shape.error);
        if (form == RecordForm::array) return sniff;
      }
    }
    if (sniff.form == RecordForm::none && sniff.why.empty()) sniff.why = "its array is empty";
  } catch (const Error& e) {
    sniff.why = e.what();
  }
  return sniff;
}

}  // namespace ltrain::data
