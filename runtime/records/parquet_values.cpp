#include "runtime/records/parquet_values.h"

#include <algorithm>
#include <cstring>

#include "runtime/records/encodings/packed_integers.h"

namespace ltrain::records::parquet {
namespace {

constexpr int64_t kBatch = 1024;

/// Values that are left are counted by their bytes, so that a page's false count is found.
int64_t at_most(int64_t n, int64_t left) {
  if (left <= 0) damaged("the page's values end early");
  return std::min(n, left);
}

class PlainBytes final : public ValueDecoder {
 public:
  explicit PlainBytes(Bytes bytes) : p_(bytes.data()), end_(p_ + bytes.size()) {}
  int64_t decode(Value* to, int64_t n) override {
    for (int64_t i = 0; i < n; ++i) {
      uint32_t size = 0;
      if (end_ - p_ < 4) damaged("the page's values end early");
      std::memcpy(&size, p_, 4);
      if (size > end_ - p_ - 4) damaged("a value has {} bytes where {} are left", size, end_ - p_ - 4);
      to[i] = {p_ + 4, size};
      p_ += 4 + int64_t{size};
    }
    return n;
  }

 private:
  const uint8_t *p_, *end_;
};

template <class T>
int64_t number_at(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return static_cast<int64_t>(value);
}

template <class T>
class PlainNumbers final : public ValueDecoder {
 public:
  explicit PlainNumbers(Bytes bytes)
      : p_(bytes.data()), left_(static_cast<int64_t>(bytes.size() / sizeof(T))) {}
  int64_t decode(Value* to, int64_t n) override {
    n = at_most(n, left_);
    for (int64_t i = 0; i < n; ++i, p_ += sizeof(T)) to[i].number = number_at<T>(p_);
    left_ -= n;
    return n;
  }

 private:
  const uint8_t* p_;
  int64_t left_;
};

class PlainFixed final : public ValueDecoder {
 public:
  PlainFixed(Bytes bytes, int width)
      : p_(bytes.data()), width_(width), left_(static_cast<int64_t>(bytes.size()) / width) {}
  int64_t decode(Value* to, int64_t n) override {
    n = at_most(n, left_);
    for (int64_t i = 0; i < n; ++i, p_ += width_) to[i] = {p_, width_};
    left_ -= n;
    return n;
  }

 private:
  const uint8_t* p_;
  int width_;
  int64_t left_;
};

class PlainBooleans final : public ValueDecoder {
 public:
  explicit PlainBooleans(Bytes bytes) : bytes_(bytes) {}
  int64_t decode(Value* to, int64_t n) override {
    n = at_most(n, static_cast<int64_t>(bytes_.size()) * 8 - at_);
    for (int64_t i = 0; i < n; ++i, ++at_)
      to[i].number = bytes_[static_cast<size_t>(at_ / 8)] >> (at_ % 8) & 1;
    return n;
  }

 private:
  Bytes bytes_;
  int64_t at_ = 0;
};

/// Booleans as runs, behind their size of 4 bytes.
class RunBooleans final : public ValueDecoder {
 public:
  explicit RunBooleans(Bytes bytes) {
    uint32_t size = 0;
    if (bytes.size() < 4) damaged("a page of booleans ends early");
    std::memcpy(&size, bytes.data(), 4);
    if (size > bytes.size() - 4) damaged("booleans have {} bytes where {} are left", size, bytes.size() - 4);
    runs_ = RunReader(bytes.subspan(4, size), 1);
  }
  int64_t decode(Value* to, int64_t n) override {
    n = std::min(n, kBatch);
    uint32_t values[kBatch];
    runs_.decode(values, n);
    for (int64_t i = 0; i < n; ++i) to[i].number = values[i];
    return n;
  }

 private:
  RunReader runs_;
};

class DictionaryValues final : public ValueDecoder {
 public:
  DictionaryValues(Bytes bytes, const std::vector<Value>& dictionary) : dictionary_(dictionary) {
    if (!bytes.empty()) runs_ = RunReader(bytes.subspan(1), bytes[0]);
  }
  int64_t decode(Value* to, int64_t n) override {
    n = std::min(n, kBatch);
    uint32_t indices[kBatch];
    runs_.decode(indices, n);
    for (int64_t i = 0; i < n; ++i) {
      if (indices[i] >= dictionary_.size())
        damaged("an index is {}, and the dictionary has {} values", indices[i], dictionary_.size());
      to[i] = dictionary_[indices[i]];
    }
    return n;
  }

 private:
  const std::vector<Value>& dictionary_;
  RunReader runs_;
};

class DeltaNumbers final : public ValueDecoder {
 public:
  DeltaNumbers(Bytes bytes, bool narrow) : deltas_(bytes), narrow_(narrow) {}
  int64_t decode(Value* to, int64_t n) override {
    n = std::min(at_most(n, deltas_.left()), kBatch);
    int64_t values[kBatch];
    deltas_.decode(values, n);
    for (int64_t i = 0; i < n; ++i) to[i].number = narrow_ ? static_cast<int32_t>(values[i]) : values[i];
    return n;
  }

 private:
  DeltaReader deltas_;
  bool narrow_;  // sums wrap at 32 bits
};

/// Lengths, then the bytes of all values.
class DeltaLengthBytes final : public ValueDecoder {
 public:
  explicit DeltaLengthBytes(Bytes bytes) : lengths_(bytes), data_(lengths_.rest()) {}
  int64_t decode(Value* to, int64_t n) override {
    n = std::min(at_most(n, lengths_.left()), kBatch);
    int64_t lengths[kBatch];
    lengths_.decode(lengths, n);
    for (int64_t i = 0; i < n; ++i) {
      if (lengths[i] < 0 || lengths[i] > static_cast<int64_t>(data_.size()))
        damaged("a value has {} bytes where {} are left", lengths[i], data_.size());
      to[i] = {data_.data(), lengths[i]};
      data_ = data_.subspan(static_cast<size_t>(lengths[i]));
    }
    return n;
  }

 private:
  DeltaReader lengths_;
  Bytes data_;
};

/// Each value shares a prefix with the one before.
class DeltaBytes final : public ValueDecoder {
 public:
  DeltaBytes(Bytes bytes, int width) : prefixes_(bytes), suffixes_(prefixes_.rest()), width_(width) {}
  int64_t decode(Value* to, int64_t n) override {
    constexpr size_t kEnough = 1 << 20;  // bytes of a batch: prefixes may be much larger than the page
    n = std::min({at_most(n, prefixes_.left()), kBatch, int64_t{64}});
    last_.assign(arena_, last_begin_, std::string::npos);
    arena_.clear();
    size_t begins[65] = {};
    int64_t done = 0;
    while (done < n && (done == 0 || arena_.size() < kEnough)) {
      int64_t prefix = 0;
      Value suffix;
      prefixes_.decode(&prefix, 1);
      suffixes_.decode(&suffix, 1);
      const std::string_view before =
          done == 0 ? std::string_view(last_) : std::string_view(arena_).substr(last_begin_);
      if (prefix < 0 || prefix > static_cast<int64_t>(before.size()))
        damaged("a value shares {} bytes with the one before, which has {}", prefix, before.size());
      append(before.substr(0, static_cast<size_t>(prefix)), suffix.text());
      begins[++done] = arena_.size();
    }
    for (int64_t i = 0; i < done; ++i) {
      to[i] = {reinterpret_cast<const uint8_t*>(arena_.data()) + begins[i],
               static_cast<int64_t>(begins[i + 1] - begins[i])};
      if (width_ > 0 && to[i].number != width_)
        damaged("a value has {} bytes, expected {}", to[i].number, width_);
    }
    return done;
  }

 private:
  /// `prefix` may be in arena_.
  void append(std::string_view prefix, std::string_view suffix) {
    const size_t size = prefix.size() + suffix.size(), begin = arena_.size();
    if (static_cast<int64_t>(size) > kMostBytes)
      damaged("a value has {} bytes, expected at most {}", size, kMostBytes);
    const bool inside = begin > 0 && !prefix.empty();
    if (inside) {
      arena_.resize(begin + size);
      std::memcpy(arena_.data() + begin, arena_.data() + last_begin_, prefix.size());
      if (!suffix.empty()) std::memcpy(arena_.data() + begin + prefix.size(), suffix.data(), suffix.size());
    } else {
      arena_.append(prefix).append(suffix);
    }
    last_begin_ = begin;
  }

  DeltaReader prefixes_;
  DeltaLengthBytes suffixes_;
  int width_;  // bytes of each value, or 0
  std::string arena_, last_;
  size_t last_begin_ = 0;  // start of the last value in arena_
};

/// First bytes of all values, then second bytes, and so on.
class SplitBytes final : public ValueDecoder {
 public:
  SplitBytes(Bytes bytes, const Leaf& leaf)
      : bytes_(bytes), leaf_(leaf), width_(static_cast<size_t>(leaf.width)), values_(bytes.size() / width_) {}
  int64_t decode(Value* to, int64_t n) override {
    n = std::min(at_most(n, static_cast<int64_t>(values_ - at_)), kBatch);
    const auto count = std::min(static_cast<size_t>(n), std::max<size_t>(1, (1u << 20) / width_));
    joined_.resize(count * width_);
    for (size_t b = 0; b < width_; ++b)
      for (size_t i = 0; i < count; ++i) joined_[i * width_ + b] = bytes_[b * values_ + at_ + i];
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* p = joined_.data() + i * width_;
      const bool narrow = leaf_.type == Physical::int32 || leaf_.type == Physical::float32;
      if (leaf_.type == Physical::fixed)
        to[i] = {p, leaf_.width};
      else
        to[i].number = narrow ? number_at<int32_t>(p) : number_at<int64_t>(p);
    }
    at_ += count;
    return static_cast<int64_t>(count);
  }

 private:
  Bytes bytes_;
  const Leaf leaf_;
  size_t width_, values_, at_ = 0;
  std::vector<uint8_t> joined_;
};

std::unique_ptr<ValueDecoder> plain(const Leaf& leaf, Bytes bytes) {
  switch (leaf.type) {
    case Physical::boolean:
      return std::make_unique<PlainBooleans>(bytes);
    case Physical::int32:
    case Physical::float32:
      return std::make_unique<PlainNumbers<int32_t>>(bytes);
    case Physical::int64:
    case Physical::float64:
      return std::make_unique<PlainNumbers<int64_t>>(bytes);
    case Physical::bytes:
      return std::make_unique<PlainBytes>(bytes);
    case Physical::int96:
    case Physical::fixed:
      return std::make_unique<PlainFixed>(bytes, leaf.width);
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<ValueDecoder> make_decoder(int32_t encoding, const Leaf& leaf, Bytes bytes,
                                           const std::vector<Value>* dictionary) {
  const bool integer = leaf.type == Physical::int32 || leaf.type == Physical::int64;
  const bool real = leaf.type == Physical::float32 || leaf.type == Physical::float64;
  switch (static_cast<Encoding>(encoding)) {
    case Encoding::plain:
      return plain(leaf, bytes);
    case Encoding::plain_dictionary:
    case Encoding::rle_dictionary:
      if (!dictionary) damaged("a page has indices, and the column chunk has no dictionary");
      return std::make_unique<DictionaryValues>(bytes, *dictionary);
    case Encoding::rle:
      if (leaf.type == Physical::boolean) return std::make_unique<RunBooleans>(bytes);
      break;
    case Encoding::delta_binary_packed:
      if (integer) return std::make_unique<DeltaNumbers>(bytes, leaf.type == Physical::int32);
      break;
    case Encoding::delta_length_byte_array:
      if (leaf.type == Physical::bytes) return std::make_unique<DeltaLengthBytes>(bytes);
      break;
    case Encoding::delta_byte_array:
      if (leaf.type == Physical::bytes || leaf.type == Physical::fixed)
        return std::make_unique<DeltaBytes>(bytes, leaf.width);
      break;
    case Encoding::byte_stream_split:
      if (integer || real || leaf.type == Physical::fixed) return std::make_unique<SplitBytes>(bytes, leaf);
      break;
    case Encoding::bit_packed:
      break;
  }
  damaged("values have the encoding {}, which cannot be read for this type", encoding_name(encoding));
}

}  // namespace ltrain::records::parquet
