// TFRecord files of tf.train.Example. Fields are the features of an Example: a bytes_list of one value is
// text, an int64_list is tokens. The checksums of lengths and data are checked. An Example without the
// feature has Record::null.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/hash/crc32c.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/files/protobuf.h"
#include "runtime/records/format.h"

namespace ltrain::records {
namespace {

using Json = nlohmann::ordered_json;
using data::ProtobufFields;

constexpr size_t kHeadBytes = 12;  // length (u64) and its checksum (u32)
constexpr size_t kMaxFeatures = 4096;

/// Values of one feature. One of the lists is used.
struct Feature {
  std::vector<std::string> bytes;
  std::vector<float> floats;
  std::vector<int64_t> integers;
};

/// BytesList, FloatList and Int64List: the values are field 1, packed or not.
void read_bytes(ProtobufFields list, Feature& feature) {
  while (list.next())
    if (list.number() == 1) feature.bytes.emplace_back(list.text());
}

void read_floats(ProtobufFields list, Feature& feature) {
  while (list.next()) {
    if (list.number() != 1) continue;
    if (list.type() != ProtobufFields::bytes) {
      feature.floats.push_back(list.real());
      continue;
    }
    const std::string_view packed = list.text();
    if (packed.size() % 4) list.fail_at("packed floats that end inside a value");
    const size_t before = feature.floats.size();
    feature.floats.resize(before + packed.size() / 4);
    if (!packed.empty()) std::memcpy(feature.floats.data() + before, packed.data(), packed.size());
  }
}

void read_integers(ProtobufFields list, Feature& feature) {
  while (list.next()) {
    if (list.number() != 1) continue;
    if (list.type() == ProtobufFields::bytes) {
      for (ProtobufFields packed = list.message(); packed.more();)
        feature.integers.push_back(static_cast<int64_t>(packed.read_varint()));
    } else {
      feature.integers.push_back(static_cast<int64_t>(list.integer()));
    }
  }
}

Feature read_feature(ProtobufFields message) {
  Feature feature;
  while (message.next()) {
    if (message.number() == 1) read_bytes(message.message(), feature);
    if (message.number() == 2) read_floats(message.message(), feature);
    if (message.number() == 3) read_integers(message.message(), feature);
  }
  return feature;
}

Json json_of(const Feature& f) {
  const auto list = [](const auto& values) { return values.size() == 1 ? Json(values[0]) : Json(values); };
  return !f.integers.empty() ? list(f.integers) : !f.floats.empty() ? list(f.floats) : list(f.bytes);
}

/// Returns whether the file begins with a length and its checksum.
bool is_tfrecord(std::string_view head) {
  if (head.size() < kHeadBytes) return false;
  uint32_t sum = 0;
  std::memcpy(&sum, head.data() + 8, 4);
  return sum == masked_crc32c(head.data(), 8);
}

class TfrecordSource final : public RecordSource {
 public:
  TfrecordSource(std::unique_ptr<ByteStream> stream, std::string name, const Selection& selection)
      : in_(std::move(stream), std::move(name)), selection_(selection) {}

  bool next(Record& record) override {
    record = {};
    if (!read_data()) return false;
    ++record_;
    const std::string message = fmt::format("{}: record {}", in_.name(), record_);
    try {
      selection_.as_json ? fill_json(message, record) : fill_field(message, record);
    } catch (const Error& e) {
      record = {};
      record.problem = e.what();
    }
    return true;
  }

  std::string position() const override { return fmt::format("record {}", record_); }
  int64_t consumed() const override { return in_.consumed(); }

 private:
  bool read_data() {
    char head[kHeadBytes];
    const int64_t offset = in_.offset();
    if (!in_.read(head, kHeadBytes, "the length of a record")) return false;
    if (!is_tfrecord({head, kHeadBytes}))
      fail(ExitCode::data,
           "{}: byte offset {}: the length of record {} has a wrong checksum: the file is damaged",
           in_.name(), offset, record_ + 1);
    int64_t length = 0;
    std::memcpy(&length, head, 8);
    if (length < 0 || length > kMaxRecordBytes)
      fail(ExitCode::data, "{}: byte offset {}: a record of {} bytes; at most {} MiB are read", in_.name(),
           offset, static_cast<uint64_t>(length), kMaxRecordBytes >> 20);
    in_.read_text(data_, length, "a record");
    uint32_t sum = 0;
    if (!in_.read(&sum, 4, "the checksum of a record") || sum != masked_crc32c(data_.data(), data_.size()))
      fail(ExitCode::data, "{}: byte offset {}: record {} has a wrong checksum: the file is damaged",
           in_.name(), offset, record_ + 1);
    return true;
  }

  /// Calls `take(name, feature)` for each entry of the map: Example.features = 1, Features.feature = 1.
  template <class Take>
  void each_feature(const std::string& message, Take take) const {
    size_t count = 0;
    ProtobufFields example(data_, message, "a tf.train.Example");
    while (example.next()) {
      if (example.number() != 1) continue;
      ProtobufFields features = example.message();
      while (features.next()) {
        if (features.number() != 1) continue;
        if (++count > kMaxFeatures) features.fail_at("more than 4096 features");
        ProtobufFields entry = features.message();
        std::string_view key;
        std::optional<ProtobufFields> value;
        while (entry.next()) {
          if (entry.number() == 1) key = entry.text();
          if (entry.number() == 2) value.emplace(entry.message());
        }
        if (value) take(key, *value);
      }
    }
  }

  void fill_field(const std::string& message, Record& record) const {
    const std::string& field = selection_.fields.at(0);
    record.null = true;
    each_feature(message, [&](std::string_view key, const ProtobufFields& value) {
      if (key == field) set(read_feature(value), record);
    });
  }

  static void set(const Feature& feature, Record& record) {
    record.null = false;
    if (!feature.integers.empty()) {
      record.has_tokens = true;
      for (const int64_t v : feature.integers) {
        if (v < 0 || v > INT32_MAX) {
          record.problem = fmt::format("expected token ids from 0, got {}", v);
          return;
        }
        record.tokens.push_back(static_cast<int32_t>(v));
      }
    } else if (feature.bytes.size() == 1) {
      record.text = feature.bytes[0];
    } else if (feature.bytes.empty() && feature.floats.empty()) {
      record.null = true;
    } else {
      record.problem = fmt::format("expected one text or a list of token ids, got {} {}",
                                   feature.floats.size() + feature.bytes.size(),
                                   feature.floats.empty() ? "texts" : "floats");
    }
  }

  void fill_json(const std::string& message, Record& record) const {
    Json object = Json::object();
    const auto& wanted = selection_.fields;
    each_feature(message, [&](std::string_view key, const ProtobufFields& value) {
      if (wanted.empty() || std::find(wanted.begin(), wanted.end(), key) != wanted.end())
        object[std::string(key)] = json_of(read_feature(value));
    });
    record.text = object.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  StreamReader in_;
  Selection selection_;
  std::string data_;
  int64_t record_ = 0;
};

}  // namespace

Format tfrecord_format() {
  return {.name = "tfrecord",
          .default_field = "text",
          .recognise = &is_tfrecord,
          .open = &streamed<&open_stream_of<TfrecordSource>>};
}

}  // namespace ltrain::records
