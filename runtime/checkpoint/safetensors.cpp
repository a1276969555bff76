#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/json/json.h"
#include "base/printable.h"
#include "runtime/files/strict_json.h"

namespace ltrain {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100000000;
constexpr int kMaxDepth = 8;

struct DtypeInfo {
  const char* name;
  int bits;
};
/// In the order of the reference's enum. The writer sorts by it in descending order.
constexpr DtypeInfo kDtypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};

int dtype_rank(const std::string& name) {
  for (size_t i = 0; i < std::size(kDtypes); ++i)
    if (name == kDtypes[i].name) return static_cast<int>(i);
  return -1;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail(ExitCode::storage, "{}: not a safetensors file: {}", path, why);
}

std::string shown(const std::string& name) { return printable(name, 80); }  // names are untrusted text

/// Parses the header. Checks for duplicate keys, depth and encoding.
json parse_header(const std::string& path, const std::string& text) {
  if (text.find('\0') != std::string::npos) refuse(path, "the header has a NUL byte");
  if (text.size() >= 3 && text.compare(0, 3, "\xEF\xBB\xBF") == 0)
    refuse(path, "the header begins with a byte-order mark");
  std::string error;
  const json root = data::parse_strict(text, kMaxDepth, error);
  if (!error.empty()) refuse(path, (error.starts_with("not ") ? "the header is " : "the header: ") + error);
  if (!root.is_object()) refuse(path, "the header is not a JSON object");
  return root;
}

int64_t unsigned_number(const std::string& path, const std::string& name, const json& v, const char* what) {
  if (!v.is_number_unsigned() || v.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    refuse(path, fmt::format("tensor \"{}\": {} is {}, not a whole number", shown(name), what,
                             v.dump().substr(0, 40)));
  return v.get<int64_t>();
}

SafetensorsEntry read_entry(const std::string& path, const std::string& name, const json& v) {
  if (!v.is_object() || !v.contains("dtype") || !v.contains("shape") || !v.contains("data_offsets"))
    refuse(path, fmt::format("tensor \"{}\" lacks dtype, shape or data_offsets", shown(name)));
  const json &dtype = v["dtype"], &shape = v["shape"], &offsets = v["data_offsets"];
  SafetensorsEntry e;
  e.name = name;
  if (!dtype.is_string() || dtype_rank(dtype) < 0)
    refuse(path,
           fmt::format("tensor \"{}\" has the unknown dtype {}", shown(name), dtype.dump().substr(0, 40)));
  e.dtype = dtype;
  if (!shape.is_array()) refuse(path, fmt::format("tensor \"{}\": shape is not a list", shown(name)));
  uint64_t elements = 1;
  bool overflow = false;
  for (const json& dim : shape) {
    e.shape.push_back(unsigned_number(path, name, dim, "a dim"));
    overflow = overflow || __builtin_mul_overflow(elements, static_cast<uint64_t>(e.shape.back()), &elements);
  }
  uint64_t bits = 0;
  overflow = overflow || __builtin_mul_overflow(
                             elements, static_cast<uint64_t>(kDtypes[dtype_rank(e.dtype)].bits), &bits);
  if (overflow) refuse(path, fmt::format("tensor \"{}\": the size of its shape overflows", shown(name)));
  if (bits % 8 != 0) refuse(path, fmt::format("tensor \"{}\" is not a whole number of bytes", shown(name)));
  if (!offsets.is_array() || offsets.size() != 2)
    refuse(path, fmt::format("tensor \"{}\": data_offsets is not [begin, end]", shown(name)));
  e.begin = unsigned_number(path, name, offsets[0], "data_offsets");
  e.end = unsigned_number(path, name, offsets[1], "data_offsets");
  if (e.end < e.begin || static_cast<uint64_t>(e.end - e.begin) != bits / 8)
    refuse(path, fmt::format("tensor \"{}\": offsets {} to {} do not hold the {} bytes of its shape",
                             shown(name), e.begin, e.end, bits / 8));
  return e;
}

}  // namespace

std::string safetensors_dtype(DType t) {
  switch (t) {
    case DType::f32:
      return "F32";
    case DType::f64:
      return "F64";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
    case DType::u16:
      return "U16";
    case DType::u32:
      return "U32";
    case DType::f8e4m3:
      return "F8_E4M3";
    case DType::f8e5m2:
      return "F8_E5M2";
  }
  return "?";
}

std::optional<DType> dtype_from_safetensors(const std::string& name) {
  for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8,
                  DType::u16, DType::u32})
    if (safetensors_dtype(t) == name) return t;
  return std::nullopt;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  if (file_.size() < 8) refuse(path, fmt::format("{} bytes; the header length alone takes 8", file_.size()));
  unsigned char raw[8];
  file_.read(raw, 0, 8);
  uint64_t n = 0;
  for (int i = 7; i >= 0; --i) n = n << 8 | raw[i];
  if (n > kMaxHeader)
    refuse(path, fmt::format("a header of {} bytes; at most {} are allowed", n, kMaxHeader));
  if (static_cast<int64_t>(n) > file_.size() - 8)
    refuse(path, fmt::format("a header of {} bytes in a file of {}", n, file_.size()));
  std::string text(n, '\0');
  file_.read(text.data(), 8, static_cast<int64_t>(n));
  data_begin_ = 8 + static_cast<int64_t>(n);
  const json header = parse_header(path, text);
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      entries_.push_back(read_entry(path, name, value));
      continue;
    }
    if (!value.is_object()) refuse(path, "__metadata__ is not an object");
    for (const auto& [key, v] : value.items()) {
      if (!v.is_string()) refuse(path, fmt::format("__metadata__ \"{}\" is not a text", shown(key)));
      metadata_[key] = v;
    }
  }
  std::sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t at = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const SafetensorsEntry& e = entries_[i];
    if (e.begin != at)
      refuse(path, fmt::format("tensor \"{}\" begins at byte {} of the data, where {} ends: {}",
                               shown(e.name), e.begin, at, e.begin > at ? "a gap" : "an overlap"));
    at = e.end;
    by_name_[e.name] = i;
  }
  if (at != file_.size() - data_begin_)
    refuse(path, fmt::format("the tensors take {} bytes and the file has {} after the header", at,
                             file_.size() - data_begin_));
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, int64_t offset, int64_t bytes, void* to) const {
  LT_CHECK(offset >= 0 && bytes >= 0 && bytes <= entry.end - entry.begin - offset,
           "expected a byte range within {} bytes of tensor {}, got offset {} and {} bytes",
           entry.end - entry.begin, entry.name, offset, bytes);
  file_.read(to, data_begin_ + entry.begin + offset, bytes);
}

int64_t SafetensorsItem::bytes() const {
  int64_t n = dtype_size(dtype);
  for (int64_t d : shape) n *= d;
  return n;
}

namespace {

std::vector<SafetensorsItem> in_reference_order(std::vector<SafetensorsItem> items) {
  std::sort(items.begin(), items.end(), [](const SafetensorsItem& a, const SafetensorsItem& b) {
    const int ra = dtype_rank(safetensors_dtype(a.dtype)), rb = dtype_rank(safetensors_dtype(b.dtype));
    return ra != rb ? ra > rb : a.name < b.name;
  });
  return items;
}

/// Builds the text item by item, with keys in the order of the bytes. nlohmann's ordered_json searches all
/// keys before it adds one, which is quadratic in the number of tensors.
std::string make_header(const std::vector<SafetensorsItem>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump() + (order.empty() ? "" : ",");
  int64_t at = 0;
  std::set<std::string> names;
  for (size_t i = 0; i < order.size(); ++i) {
    const SafetensorsItem& item = order[i];
    LT_CHECK(names.insert(item.name).second && item.name != "__metadata__",
             "expected distinct tensor names, got {} twice", item.name);
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", i ? "," : "",
                        json(item.name).dump(), safetensors_dtype(item.dtype), json(item.shape).dump(), at,
                        at + item.bytes());
    at += item.bytes();
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

int64_t size_with(const std::string& header, const std::vector<SafetensorsItem>& items) {
  int64_t bytes = 8 + static_cast<int64_t>(header.size());
  for (const SafetensorsItem& item : items) bytes += item.bytes();
  return bytes;
}

}  // namespace

int64_t safetensors_size(const std::vector<SafetensorsItem>& items,
                         const std::map<std::string, std::string>& metadata) {
  return size_with(make_header(in_reference_order(items), metadata), items);
}

SafetensorsWriter::SafetensorsWriter(NewFile& file, std::vector<SafetensorsItem> items,
                                     const std::map<std::string, std::string>& metadata)
    : file_(file), items_(in_reference_order(std::move(items))) {
  const std::string header = make_header(items_, metadata);
  size_ = size_with(header, items_);
  file_.reserve(size_);
  unsigned char raw[8];
  for (int i = 0; i < 8; ++i)
    raw[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  file_.write(raw, 8);
  file_.write(header.data(), static_cast<int64_t>(header.size()));
}

void SafetensorsWriter::write(const void* data, int64_t bytes) { file_.write(data, bytes); }

void SafetensorsWriter::finish() {
  LT_CHECK(file_.bytes() == size_, "{}: expected {} bytes to be written, got {}", file_.path(), size_,
           file_.bytes());
  LT_FAULT_POINT("checkpoint.before_fsync");
  file_.sync();
  LT_FAULT_POINT("checkpoint.after_fsync");
  file_.close();
}

void write_safetensors(NewFile& file, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer(file, items, metadata);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i == items.size() / 2) LT_FAULT_POINT("checkpoint.mid_write");
    writer.write(writer.items()[i].data, writer.items()[i].bytes());
  }
  writer.finish();
}

}  // namespace ltrain
