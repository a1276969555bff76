#include "runtime/records/arrow.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/records/arrow_array.h"
#include "runtime/records/encodings/json_value.h"
#include "runtime/records/format.h"

namespace ltrain::records {
namespace arrow {
namespace {

using data::InputFile;

constexpr int64_t kMostMetadata = int64_t{1} << 28;
constexpr std::string_view kMagic = "ARROW1";
enum MessageType : uint8_t { kSchema = 1, kDictionaryBatch = 2, kRecordBatch = 3 };

/// Metadata of a message, and the position of its body.
struct Message {
  std::vector<uint8_t> metadata;
  uint8_t type = 0;
  int version = 0;
  int64_t body = 0, body_bytes = 0;

  FlatTable table() const { return FlatTable::root(metadata); }
  /// The table of the message's type.
  FlatTable header() const {
    const auto header = table().table(2);
    if (!header) damaged("a message has no header");
    return *header;
  }
};

template <class T>
T read_at(const InputFile& file, int64_t offset) {
  T value{};
  if (offset < 0 || offset > file.size() - static_cast<int64_t>(sizeof value))
    damaged("the file ends at byte {}", file.size());
  file.read(&value, offset, sizeof value);
  return value;
}

std::vector<uint8_t> read_metadata(const InputFile& file, int64_t offset, int64_t bytes) {
  if (bytes < 0 || bytes > kMostMetadata || bytes > file.size() - offset)
    damaged("metadata has {} bytes at byte {}, and the file has {}: incomplete or damaged", bytes, offset,
            file.size());
  std::vector<uint8_t> metadata(static_cast<size_t>(bytes));
  file.read(metadata.data(), offset, bytes);
  return metadata;
}

/// Messages of a file in order: those of the stream format, or the blocks of the file format's footer.
class Messages {
 public:
  explicit Messages(const InputFile& file) : file_(file) {
    char magic[8] = {};
    file.read_some(magic, 0, 8);
    if (std::string_view(magic, kMagic.size()) == kMagic)
      read_footer();
    else
      read_schema();
  }

  const std::vector<Field>& fields() const { return fields_; }
  int64_t offset() const { return offset_; }  ///< position of the next message of a stream
  bool is_file() const { return is_file_; }

  /// The next dictionary or record batch; nullopt at the end.
  std::optional<Message> next() {
    while (true) {
      std::optional<Message> message;
      if (is_file_) {
        if (block_ == blocks_.size()) return std::nullopt;
        offset_ = blocks_[block_++];
      }
      message = read_message();
      if (!message && is_file_) damaged("the footer points to byte {}, where no message is", offset_);
      if (!message || message->type == kRecordBatch || message->type == kDictionaryBatch) return message;
      if (message->type == kSchema) damaged("a second schema follows");
    }
  }

 private:
  /// Reads the message at offset_ and goes behind it; nullopt at the end of the stream.
  std::optional<Message> read_message() {
    if (offset_ < 0 || offset_ > file_.size())
      damaged("the footer points to byte {}, and the file has {}", offset_, file_.size());
    if (offset_ == file_.size()) return std::nullopt;
    int64_t at = offset_;
    auto bytes = read_at<int32_t>(file_, at);
    at += 4;
    if (bytes == -1) {  // files before version 0.15 start with the size
      bytes = read_at<int32_t>(file_, at);
      at += 4;
    }
    if (bytes == 0) return std::nullopt;
    Message m;
    m.metadata = read_metadata(file_, at, bytes);
    const FlatTable table = m.table();
    m.version = table.number<int16_t>(0, 0);
    if (m.version < 3 || m.version > 4) damaged("metadata has version V{}, expected V4 or V5", m.version + 1);
    m.type = table.number<uint8_t>(1, 0);
    m.body = at + bytes;
    m.body_bytes = table.number<int64_t>(3, 0);
    if (m.body_bytes < 0 || m.body_bytes > file_.size() - m.body)
      damaged("a message has {} bytes at byte {}, and the file has {}: incomplete or damaged", m.body_bytes,
              m.body, file_.size());
    offset_ = m.body + m.body_bytes;
    offset_ = std::min(offset_ + (8 - m.body_bytes % 8) % 8, file_.size());
    return m;
  }

  void read_schema() {
    const auto message = read_message();
    if (!message || message->type != kSchema)
      damaged("the stream does not start with a schema: not an Arrow file");
    fields_ = read_fields(message->header(), message->version);
  }

  void read_footer() {
    is_file_ = true;
    const int64_t tail = 4 + static_cast<int64_t>(kMagic.size()), size = file_.size();
    char magic[6] = {};
    if (size < 8 + tail) damaged("{} bytes are too short for an Arrow file", size);
    file_.read(magic, size - static_cast<int64_t>(kMagic.size()), static_cast<int64_t>(kMagic.size()));
    if (std::string_view(magic, kMagic.size()) != kMagic)
      damaged("the file does not end with ARROW1: an Arrow file that is incomplete or damaged");
    const auto bytes = read_at<int32_t>(file_, size - tail);
    if (bytes < 0 || bytes > size - tail) damaged("the footer has {} bytes, and the file {}", bytes, size);
    const auto footer = read_metadata(file_, size - tail - bytes, bytes);
    const FlatTable table = FlatTable::root(footer);
    const auto schema = table.table(1);
    if (!schema) damaged("the footer has no schema");
    fields_ = read_fields(*schema, table.number<int16_t>(0, 0));
    for (const int field : {2, 3}) {  // dictionaries, then record batches
      const FlatVector blocks = table.vector(field, 24);
      for (size_t i = 0; i < blocks.size; ++i)
        blocks_.push_back(FlatTable::read<int64_t>(footer, blocks.position + 24 * i));
    }
  }

  const InputFile& file_;
  bool is_file_ = false;
  int64_t offset_ = 0;
  std::vector<int64_t> blocks_;
  size_t block_ = 0;
  std::vector<Field> fields_;
};

std::vector<FieldInfo> infos(const std::vector<Field>& fields) {
  std::vector<FieldInfo> all;
  for (const Field& f : fields) all.push_back({f.name, f.type});
  return all;
}

bool can_read(const Field& f) {
  return f.kind != Kind::other && std::all_of(f.children.begin(), f.children.end(), can_read);
}

class ArrowSource final : public RecordSource {
 public:
  ArrowSource(std::shared_ptr<const InputFile> file, std::string name, const Selection& selection)
      : file_(std::move(file)), name_(std::move(name)), as_json_(selection.as_json) {
    guarded([&] { messages_.emplace(*file_); });
    const auto fields = infos(messages_->fields());
    const auto chosen = select_fields(fields, selection, name_);
    for (const size_t i : chosen) {
      const Field& f = messages_->fields()[i];
      if (!can_read(f))
        fail(ExitCode::data, "{}: field \"{}\" has the type {}, which cannot be read; choose other fields",
             name_, printable(f.name, 80), printable(f.type, 200));
      if (!as_json_) check_type(f, fields[i]);
      dictionaries_.need(f);
      arrays_.emplace_back(f);
    }
    by_field_.resize(fields.size(), -1);
    for (size_t k = 0; k < chosen.size(); ++k) {
      if (by_field_[chosen[k]] >= 0)
        fail(ExitCode::data, "{}: field \"{}\" is selected twice", name_,
             printable(fields[chosen[k]].name, 80));
      by_field_[chosen[k]] = static_cast<int>(k);
    }
  }

  bool next(Record& record) override {
    record.text.clear();
    record.tokens.clear();
    record.has_tokens = record.null = false;
    return guarded([&] {
      while (row_ + 1 >= rows_)
        if (!next_batch()) return false;
      ++row_;
      as_json_ ? read_json(record) : read_row(record);
      return true;
    });
  }

  std::string position() const override {
    return fmt::format("record batch {}, row {}", std::max<int64_t>(batch_, 0), std::max<int64_t>(row_, 0));
  }
  int64_t consumed() const override {
    const double share = rows_ > 0 ? static_cast<double>(row_ + 1) / static_cast<double>(rows_) : 1;
    return ended_ ? file_->size() : begin_ + static_cast<int64_t>(share * static_cast<double>(end_ - begin_));
  }

 private:
  template <class Action>
  std::invoke_result_t<Action> guarded(Action&& action) {
    try {
      return action();
    } catch (const Damage& damage) {
      if (batch_ < 0) fail(ExitCode::data, "{}: {}", name_, damage.what());
      fail(ExitCode::data, "{}: {}: {}", name_, position(), damage.what());
    }
  }

  static bool is_tokens(const Field& f) {
    return (f.kind == Kind::list || f.kind == Kind::fixed_list) && f.children[0].kind == Kind::integer &&
           !f.children[0].has_dictionary;
  }
  void check_type(const Field& f, const FieldInfo& info) const {
    if (!is_tokens(f) && f.kind != Kind::text && f.kind != Kind::fixed && f.kind != Kind::null)
      refuse_type(info, name_);
  }

  /// Goes to the next record batch with its dictionaries; false at the end of the file.
  bool next_batch() {
    while (true) {
      message_ = messages_->next();
      if (!message_) {
        ended_ = true;
        return false;
      }
      if (message_->type == kRecordBatch) break;
      read_dictionary(*message_);
    }
    ++batch_;
    row_ = -1;
    rows_ = 0;
    Batch batch(*file_, fmt::format("{}: record batch {}", name_, batch_), message_->metadata,
                message_->header(), message_->body, message_->body_bytes);
    const auto& fields = messages_->fields();
    for (size_t i = 0; i < fields.size(); ++i) {
      if (by_field_[i] < 0) {
        batch.skip(fields[i]);
        continue;
      }
      Array& array = arrays_[static_cast<size_t>(by_field_[i])];
      array.bind(batch);
      if (array.length() != batch.rows)
        damaged("column {} has {} values, and the record batch has {} rows", printable(fields[i].name, 100),
                array.length(), batch.rows);
    }
    rows_ = batch.rows;
    begin_ = message_->body;
    end_ = begin_ + message_->body_bytes;
    return true;
  }

  void read_dictionary(const Message& message) {
    const FlatTable table = message.header();
    if (!dictionaries_.needs(table.number<int64_t>(0, 0))) return;
    const auto data = table.table(1);
    if (!data) damaged("a dictionary has no values");
    dictionaries_.read(table, Batch(*file_, name_ + ": a dictionary", message.metadata, *data, message.body,
                                    message.body_bytes));
  }

  void read_row(Record& record) {
    const auto [array, i] = resolve(arrays_[0], row_, dictionaries_);
    record.null = array->is_null(i);
    if (record.null) return;
    if (is_tokens(array->field())) return read_tokens(*array, i, record);
    record.text.assign(array->text(i));
  }

  static void read_tokens(Array& array, int64_t i, Record& record) {
    record.has_tokens = true;
    Array& values = array.child(0);
    const auto [begin, end] = array.elements(i);
    if (end > values.length()) damaged("a list ends at {}, and there are {} values", end, values.length());
    check_record_size(0, static_cast<size_t>(end - begin));
    for (int64_t k = begin; k < end; ++k) {
      if (values.is_null(k)) damaged("a token is null");
      const int64_t id = values.integer(k, values.field().width, values.field().is_signed);
      record.tokens.push_back(token_of(id, values.field().is_signed));
    }
  }

  void read_json(Record& record) {
    record.text += '{';
    for (Array& array : arrays_) {
      if (record.text.size() > 1) record.text += ", ";
      append_json_string(record.text, array.field().name);
      record.text += ": ";
      array.append_json(record.text, row_, dictionaries_, 0);
    }
    record.text += '}';
  }

  std::shared_ptr<const InputFile> file_;
  std::string name_;
  bool as_json_;
  std::optional<Messages> messages_;
  std::vector<Array> arrays_;  // arrays of the selected fields
  std::vector<int> by_field_;  // number of the field's array, or -1
  Dictionaries dictionaries_;
  std::optional<Message> message_;  // the present record batch
  int64_t batch_ = -1, row_ = -1, rows_ = 0;
  int64_t begin_ = 0, end_ = 0;  // its body
  bool ended_ = false;
};

}  // namespace
}  // namespace arrow

namespace {
bool is_arrow(std::string_view head) {
  if (head.starts_with("ARROW1")) return true;
  // A stream begins with a mark, the length of the schema, and the offset of its table.
  uint32_t words[3];
  if (head.size() < sizeof words) return false;
  std::memcpy(words, head.data(), sizeof words);
  return words[0] == 0xFFFFFFFF && words[1] >= 16 && words[1] % 8 == 0 && words[1] < (1u << 26) &&
         words[2] >= 4 && words[2] < words[1];
}
}  // namespace

std::unique_ptr<RecordSource> open_arrow(std::shared_ptr<const data::InputFile> file, std::string name,
                                         const Selection& selection) {
  return std::make_unique<arrow::ArrowSource>(std::move(file), std::move(name), selection);
}

FileSchema arrow_schema(std::shared_ptr<const data::InputFile> file, std::string name) {
  try {
    arrow::Messages messages(*file);
    FileSchema schema{0, arrow::infos(messages.fields())};
    while (const auto message = messages.next())
      if (message->type == arrow::kRecordBatch)
        schema.rows += arrow::Batch(*file, name, message->metadata, message->header(), message->body,
                                    message->body_bytes)
                           .rows;
    return schema;
  } catch (const Damage& damage) {
    fail(ExitCode::data, "{}: {}", name, damage.what());
  }
}

Format arrow_format() {
  return {
      .name = "arrow", .default_field = "text", .recognise = &is_arrow, .open = &at_any_offset<&open_arrow>};
}

}  // namespace ltrain::records
