// Shards of MosaicML's streaming datasets (MDS). Fields are the columns of the shard: str, bytes and json are
// text, arrays of integers are tokens. pkl, which would run code, and images are refused.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/records/fields.h"
#include "runtime/records/format.h"

namespace ltrain::records {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr size_t kMaxDims = 32;

template <class T>
Json scalar(std::string_view bytes) {
  T v{};
  std::memcpy(&v, bytes.data(), sizeof v);
  return v;
}

/// Element type of arrays, with the code that precedes an array without a declared type.
struct Element {
  const char* name;
  int code;
  size_t bytes;
  bool integer;
  Json (*read)(std::string_view);
};
constexpr Element kElements[] = {
    {"uint8", 8, 1, true, scalar<uint8_t>},    {"int8", 9, 1, true, scalar<int8_t>},
    {"uint16", 16, 2, true, scalar<uint16_t>}, {"int16", 17, 2, true, scalar<int16_t>},
    {"uint32", 32, 4, true, scalar<uint32_t>}, {"int32", 33, 4, true, scalar<int32_t>},
    {"uint64", 64, 8, true, scalar<uint64_t>}, {"int64", 65, 8, true, scalar<int64_t>},
    {"float32", 34, 4, false, scalar<float>},  {"float64", 66, 8, false, scalar<double>},
    {"int", -1, 8, true, scalar<int64_t>},
};

const Element* element_named(std::string_view name) {
  for (const Element& e : kElements)
    if (name == e.name) return &e;
  return nullptr;
}

const Element* element_of_code(int code) {
  for (const Element& e : kElements)
    if (code == e.code) return &e;
  return nullptr;
}

struct Column {
  std::string name, encoding;
  int64_t size = -1;  ///< bytes of each value; -1: each has a length
  bool wanted = false;
};

/// Takes values from the front of a column's bytes.
class Front {
 public:
  explicit Front(std::string_view bytes) : bytes_(bytes) {}
  std::string_view take(size_t n) {
    if (n > bytes_.size()) fail(ExitCode::data, "an array that is shorter than its shape");
    const std::string_view out = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return out;
  }
  uint64_t number(size_t bytes) {
    uint64_t v = 0;
    std::memcpy(&v, take(bytes).data(), bytes);
    return v;
  }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

/// Values of `ndarray`, `ndarray:DTYPE` or `ndarray:DTYPE:SHAPE`. A type or shape that the encoding does not
/// give precedes the values.
std::pair<const Element*, std::string_view> read_array(const std::string& encoding, std::string_view bytes) {
  Front front(bytes);
  const size_t colon = encoding.find(':');
  const size_t second = colon == encoding.npos ? encoding.npos : encoding.find(':', colon + 1);
  const Element* element =
      colon == encoding.npos ? element_of_code(static_cast<int>(front.number(1)))
                             : element_named(std::string_view(encoding).substr(
                                   colon + 1, second == encoding.npos ? encoding.npos : second - colon - 1));
  if (!element) fail(ExitCode::data, "an array of an unknown type, encoding {}", printable(encoding, 60));
  if (second == encoding.npos) {
    const auto shape = static_cast<unsigned>(front.number(1));
    const size_t dims = shape >> 2, dim_bytes = size_t{1} << (shape & 3);
    if (dims > kMaxDims) fail(ExitCode::data, "an array of {} dims", dims);
    uint64_t count = 1;
    for (size_t i = 0; i < dims; ++i)
      if (__builtin_mul_overflow(count, front.number(dim_bytes), &count))
        fail(ExitCode::data, "an array too large");
    if (count != front.rest().size() / element->bytes)
      fail(ExitCode::data, "an array that is not as long as its shape");
  }
  if (front.rest().size() % element->bytes) fail(ExitCode::data, "an array that ends inside a value");
  return {element, front.rest()};
}

class MdsSource final : public RecordSource {
 public:
  MdsSource(std::unique_ptr<ByteStream> stream, std::string name, const Selection& selection)
      : in_(std::move(stream), std::move(name)), selection_(selection) {
    read_header();
    std::vector<FieldInfo> fields;
    for (const Column& c : columns_) fields.push_back({c.name, c.encoding});
    for (const size_t i : select_fields(fields, selection_, in_.name())) {
      columns_[i].wanted = true;
      check_encoding(columns_[i]);
    }
  }

  bool next(Record& record) override {
    record = {};
    if (sample_ == samples_) return false;
    ++sample_;
    int64_t size = 0;
    for (const Column& c : columns_)
      if (c.size < 0) size += 4;
    for (Column& c : columns_) {
      uint32_t bytes = static_cast<uint32_t>(c.size);
      if (c.size < 0 && !in_.read(&bytes, 4, "a sample")) ended();
      if (bytes > kMaxRecordBytes) broken("a value of more than 256 MiB");
      sizes_[c.name] = bytes;
    }
    Json object = Json::object();
    for (const Column& c : columns_) {
      const int64_t bytes = sizes_[c.name];
      size += bytes;
      if (!c.wanted) {
        in_.skip(bytes, "a sample");
        continue;
      }
      in_.read_text(value_, bytes, "a sample");
      try {
        selection_.as_json ? void(object[c.name] = json_of(c)) : fill(c, record);
      } catch (const std::exception& e) {
        record = {};
        record.problem = fmt::format("column {}: {}", printable(c.name, 60), e.what());
      }
    }
    if (size != lengths_[static_cast<size_t>(sample_ - 1)])
      broken("a sample that is not as long as the index says");
    if (selection_.as_json) record.text = object.dump(-1, ' ', false, Json::error_handler_t::replace);
    return true;
  }

  std::string position() const override { return fmt::format("sample {}", sample_); }
  int64_t consumed() const override { return in_.consumed(); }

 private:
  /// u32 number of samples, u32 offsets[n + 1], the JSON text of the settings up to the first offset.
  void read_header() {
    uint32_t n = 0;
    if (!in_.read(&n, 4, "the header")) ended();
    samples_ = n;
    uint32_t before = 0;
    uint32_t block[1024];
    for (int64_t i = 0; i <= samples_;) {
      const int64_t count = std::min<int64_t>(samples_ + 1 - i, 1024);
      if (!in_.read(block, count * 4, "the index of samples")) ended();
      for (int64_t k = 0; k < count; ++k, ++i) {
        if (i == 0) first_ = block[k];
        if (i > 0 && block[k] < before) broken("an index of samples that does not ascend");
        if (i > 0) lengths_.push_back(block[k] - before);
        before = block[k];
      }
    }
    const int64_t config = int64_t{first_} - in_.offset();
    if (config < 2 || config > kMaxConfigBytes) broken("settings of the shard that are not JSON");
    std::string text;
    in_.read_text(text, config, "the settings of the shard");
    read_columns(Json::parse(text, nullptr, false));
  }

  void read_columns(const Json& config) {
    const auto list = [&](const char* key) -> const Json& {
      static const Json none = Json::array();
      const auto found = config.is_object() ? config.find(key) : config.end();
      return config.is_object() && found != config.end() && found->is_array() ? *found : none;
    };
    const Json &names = list("column_names"), &encodings = list("column_encodings"),
               &sizes = list("column_sizes");
    if (names.empty() || names.size() != encodings.size() || names.size() != sizes.size())
      broken("settings of the shard without column_names, column_encodings and column_sizes of one length");
    for (size_t i = 0; i < names.size(); ++i) {
      if (!names[i].is_string() || !encodings[i].is_string())
        broken("settings of the shard with names that are no text");
      Column c{names[i].get<std::string>(), encodings[i].get<std::string>()};
      if (sizes[i].is_number_integer()) c.size = sizes[i].get<int64_t>();
      if (c.size < -1 || c.size > kMaxRecordBytes)
        broken("settings of the shard with an impossible column_sizes");
      columns_.push_back(std::move(c));
    }
  }

  void check_encoding(const Column& c) const {
    const std::string kind = c.encoding.substr(0, c.encoding.find(':'));
    if (kind == "str" || kind == "bytes" || kind == "json" || kind == "ndarray" || element_named(kind))
      return;
    fail(ExitCode::data,
         "{}: column {} has the encoding {}; str, bytes, json, ndarray and numbers are read. Choose another "
         "field, "
         "of: {}",
         in_.name(), printable(c.name, 60), printable(c.encoding, 60), names_text());
  }

  std::string names_text() const {
    std::string s;
    for (const Column& c : columns_) s += (s.empty() ? "" : ", ") + printable(c.name, 60);
    return s;
  }

  void fill(const Column& c, Record& record) {
    if (c.encoding == "str" || c.encoding == "bytes" || c.encoding == "json") {
      record.text = value_;
      return;
    }
    if (!c.encoding.starts_with("ndarray"))
      fail(ExitCode::data, "expected text or token ids, got {}", c.encoding);
    const auto [element, values] = read_array(c.encoding, value_);
    if (!element->integer) fail(ExitCode::data, "expected token ids, got {}", element->name);
    record.has_tokens = true;
    for (size_t at = 0; at < values.size(); at += element->bytes) {
      const Json v = element->read(values.substr(at, element->bytes));
      const bool id = v.is_number_unsigned() ? v.get<uint64_t>() <= INT32_MAX
                                             : v.get<int64_t>() >= 0 && v.get<int64_t>() <= INT32_MAX;
      if (!id) fail(ExitCode::data, "expected token ids from 0, got {}", v.dump());
      record.tokens.push_back(v.get<int32_t>());
    }
  }

  Json json_of(const Column& c) const {
    if (c.encoding == "str" || c.encoding == "bytes") return value_;
    if (c.encoding == "json") return Json::parse(value_);
    if (const Element* e = element_named(c.encoding)) {
      if (value_.size() != e->bytes)
        fail(ExitCode::data, "expected {} bytes, got {}", e->bytes, value_.size());
      return e->read(value_);
    }
    const auto [element, values] = read_array(c.encoding, value_);
    Json list = Json::array();
    for (size_t at = 0; at < values.size(); at += element->bytes)
      list.push_back(element->read(values.substr(at, element->bytes)));
    return list;
  }

  [[noreturn]] void broken(const char* what) const {
    fail(ExitCode::data, "{}: byte offset {}: {}: not an MDS shard, or damaged", in_.name(), in_.offset(),
         what);
  }
  [[noreturn]] void ended() const { broken("the end of the file"); }

  StreamReader in_;
  Selection selection_;
  std::vector<Column> columns_;
  std::vector<uint32_t> lengths_;  // bytes of each sample, from the index
  std::map<std::string, uint32_t> sizes_;
  std::string value_;
  uint32_t first_ = 0;
  int64_t samples_ = 0, sample_ = 0;
};

bool is_mds(std::string_view head) {
  // The first offset is the end of the settings, which follow the offsets.
  uint32_t n = 0, first = 0;
  if (head.size() < 8) return false;
  std::memcpy(&n, head.data(), 4);
  std::memcpy(&first, head.data() + 4, 4);
  const uint64_t config = 4 + 4 * (uint64_t{n} + 1);
  if (first <= config || first - config > static_cast<uint64_t>(kMaxConfigBytes)) return false;
  uint32_t before = first;
  for (size_t at = 8; at + 4 <= std::min<uint64_t>(config, head.size()); at += 4) {
    uint32_t offset = 0;
    std::memcpy(&offset, head.data() + at, 4);
    if (offset < before) return false;
    before = offset;
  }
  return config >= head.size() || head[config] == '{';
}

}  // namespace

Format mds_format() {
  return {.name = "mds",
          .default_field = "text",
          .recognise = &is_mds,
          .open = &streamed<&open_stream_of<MdsSource>>};
}

}  // namespace ltrain::records
