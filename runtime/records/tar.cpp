// Tar archives in the layout of WebDataset: files with the same path up to the first dot of their name form
// one sample, and the rest of the name is the field: an extension such as txt or cls. `json.KEY` is a key of
// a sample's .json. A sample without the field has Record::null. ustar, GNU long names and pax headers are
// read. Links, folders and devices are skipped. Nothing is unpacked to disk.
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/records/format.h"

namespace ltrain::records {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBlock = 512;
constexpr int64_t kMaxHeaderBytes = 1 << 20;  // pax headers and long names
constexpr size_t kMaxMembers = 256;           // files of one sample

using Header = std::array<char, kBlock>;

std::string_view text_at(const Header& h, size_t at, size_t bytes) {
  const std::string_view field(h.data() + at, bytes);
  return field.substr(0, field.find('\0'));
}

/// A number in octal digits, or in base 256 if the first bit is set; -1 if it is neither.
int64_t number_at(const Header& h, size_t at, size_t bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(h.data()) + at;
  uint64_t value = 0;
  if (p[0] & 0x80) {
    for (size_t i = 1; i < bytes; ++i) {
      if (value >> 55) return -1;
      value = value << 8 | p[i];
    }
    return p[0] == 0x80 ? static_cast<int64_t>(value) : -1;
  }
  size_t i = 0;
  while (i < bytes && p[i] == ' ') ++i;
  for (; i < bytes && p[i] >= '0' && p[i] <= '7'; ++i) value = value << 3 | (p[i] - '0');
  const bool ends = i == bytes || p[i] == '\0' || p[i] == ' ';
  return ends && value < (uint64_t{1} << 62) ? static_cast<int64_t>(value) : -1;
}

bool checksum_holds(const Header& h) {
  constexpr size_t kAt = 148, kBytes = 8;
  int64_t sum = 0;
  for (size_t i = 0; i < h.size(); ++i)
    sum += i >= kAt && i < kAt + kBytes ? ' ' : static_cast<unsigned char>(h[i]);
  return number_at(h, kAt, kBytes) == sum;
}

struct Member {
  std::string sample, field, content;
};

class TarSource final : public RecordSource {
 public:
  TarSource(std::unique_ptr<ByteStream> stream, std::string name, const Selection& selection)
      : in_(std::move(stream), std::move(name)), selection_(selection) {}

  bool next(Record& record) override {
    record = {};
    if (!ahead_) ahead_ = next_member();
    if (!ahead_) return false;
    sample_ = ahead_->sample;
    std::vector<Member> members;
    int64_t bytes = 0;
    while (ahead_ && ahead_->sample == sample_) {
      bytes += static_cast<int64_t>(ahead_->content.size());
      if (bytes > kMaxRecordBytes || members.size() == kMaxMembers)
        fail(ExitCode::data, "{}: sample {}: more than {} MiB or {} files", in_.name(),
             printable(sample_, 100), kMaxRecordBytes >> 20, kMaxMembers);
      members.push_back(std::move(*ahead_));
      ahead_ = next_member();
    }
    selection_.as_json ? fill_json(members, record) : fill_text(members, record);
    return true;
  }

  std::string position() const override { return "sample " + printable(sample_, 200); }
  int64_t consumed() const override { return in_.consumed(); }

 private:
  void fill_text(const std::vector<Member>& members, Record& record) const {
    const std::string& field = selection_.fields.at(0);
    record.null = true;
    for (const Member& m : members) {
      if (m.field == field) {
        record.text = m.content;
        record.null = false;
      } else if (m.field == "json" && field.starts_with("json.")) {
        fill_key(m, field.substr(5), record);
      }
    }
  }

  static void fill_key(const Member& member, const std::string& key, Record& record) {
    const Json object = Json::parse(member.content, nullptr, false);
    if (!object.is_object()) {
      record.problem = "its .json is not a JSON object";
    } else if (const auto found = object.find(key); found != object.end() && found->is_string()) {
      record.text = found->get<std::string>();
      record.null = false;
    } else if (found != object.end() && !found->is_null()) {
      record.problem = fmt::format("\"{}\" of its .json is not a string", printable(key, 60));
    }
  }

  void fill_json(const std::vector<Member>& members, Record& record) const {
    Json object = Json::object();
    object["__key__"] = sample_;
    for (const Member& m : members) {
      const auto& wanted = selection_.fields;
      const auto names_member = [&](const std::string& field) {
        return field == m.field || field.starts_with(m.field + ".");
      };
      if (!wanted.empty() && std::none_of(wanted.begin(), wanted.end(), names_member)) continue;
      Json parsed =
          m.field == "json" ? Json::parse(m.content, nullptr, false) : Json(Json::value_t::discarded);
      object[m.field] = parsed.is_discarded() ? Json(m.content) : std::move(parsed);
    }
    record.text = object.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  /// Reads the next regular file of the archive.
  std::optional<Member> next_member() {
    std::string long_name;
    std::optional<int64_t> pax_size;
    Header header;
    while (in_.read(header.data(), kBlock, "a header")) {
      if (header[0] == '\0' && std::all_of(header.begin(), header.end(), [](char c) { return c == 0; }))
        return std::nullopt;  // the mark of the end
      if (!checksum_holds(header)) broken("a header with a wrong checksum");
      const int64_t size = pax_size.value_or(number_at(header, 124, 12));
      if (size < 0) broken("a header with a size that is not a number");
      const char type = header[156];
      if (type == 'L' || type == 'x' || type == 'g') {
        const std::string text = header_text(size);
        if (type == 'L') long_name = text.substr(0, text.find('\0'));
        if (type == 'x') read_pax(text, long_name, pax_size);
        continue;
      }
      std::string path = long_name.empty() ? path_of(header) : std::exchange(long_name, "");
      pax_size.reset();
      const bool regular = type == '0' || type == '\0' || type == '7';
      if (regular && wanted(path)) return member(std::move(path), size);
      skip(size);
    }
    return std::nullopt;
  }

  static bool wanted(const std::string& path) {
    const std::string_view file = std::string_view(path).substr(path.rfind('/') + 1);
    return file.find('.', 1) != file.npos && !path.ends_with('/');
  }

  Member member(std::string path, int64_t size) {
    if (size > kMaxRecordBytes)
      fail(ExitCode::data, "{}: {}: {} bytes; a file of a sample has at most {} MiB", in_.name(),
           printable(path, 200), size, kMaxRecordBytes >> 20);
    Member m;
    const size_t dot = path.find('.', path.rfind('/') + 2);
    m.sample = path.substr(0, dot);
    m.field = path.substr(dot + 1);
    in_.read_text(m.content, size, "a file of the archive");
    in_.skip(padding(size), "a file of the archive");
    return m;
  }

  static int64_t padding(int64_t size) { return (kBlock - size % kBlock) % kBlock; }

  void skip(int64_t size) {
    in_.skip(size, "a file of the archive");
    in_.skip(padding(size), "a file of the archive");
  }

  std::string header_text(int64_t size) {
    if (size > kMaxHeaderBytes) broken("a header of more than 1 MiB");
    std::string text;
    in_.read_text(text, size, "a header");
    in_.skip(padding(size), "a header");
    return text;
  }

  static std::string path_of(const Header& h) {
    const std::string name(text_at(h, 0, 100));
    const bool ustar = text_at(h, 257, 5) == "ustar" && h[262] == '\0';
    const std::string prefix(ustar ? text_at(h, 345, 155) : "");
    return prefix.empty() ? name : prefix + "/" + name;
  }

  /// Records "LENGTH KEY=VALUE\n" of a pax header.
  void read_pax(std::string_view text, std::string& path, std::optional<int64_t>& size) const {
    while (!text.empty() && text[0] != '\0') {
      char* end = nullptr;
      const std::string digits(text.substr(0, text.find(' ')));
      const unsigned long long length = std::strtoull(digits.c_str(), &end, 10);
      if (digits.empty() || *end || length <= digits.size() + 2 || length > text.size())
        broken("a broken pax header");
      const std::string_view record = text.substr(digits.size() + 1, length - digits.size() - 2);
      const size_t equal = record.find('=');
      if (equal == record.npos) broken("a broken pax header");
      const std::string_view key = record.substr(0, equal), value = record.substr(equal + 1);
      if (key == "path") path = value;
      if (key == "size") {
        const std::string number(value);
        const unsigned long long n = std::strtoull(number.c_str(), &end, 10);
        if (number.empty() || *end || n >> 62) broken("a pax header with a size that is not a number");
        size = static_cast<int64_t>(n);
      }
      text.remove_prefix(length);
    }
  }

  [[noreturn]] void broken(const char* what) const {
    fail(ExitCode::data, "{}: byte offset {}: {}: not a tar archive, or damaged", in_.name(),
         in_.offset() - kBlock, what);
  }

  StreamReader in_;
  Selection selection_;
  std::optional<Member> ahead_;
  std::string sample_;
};

bool is_tar(std::string_view head) {
  if (head.size() < static_cast<size_t>(kBlock)) return false;
  Header header;
  std::memcpy(header.data(), head.data(), header.size());
  return header[0] != '\0' && checksum_holds(header);
}

}  // namespace

Format tar_format() {
  return {.name = "tar",
          .default_field = "txt",
          .recognise = &is_tar,
          .open = &streamed<&open_stream_of<TarSource>>};
}

}  // namespace ltrain::records
