#include "runtime/objects/download.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/hash/crc32c.h"
#include "base/limits.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/objects/md5.h"

namespace ltrain::objects {
namespace {

int64_t file_size(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 ? st.st_size : 0;
}

[[noreturn]] void changed(const Object& o, const std::string& what) {
  fail(ExitCode::data, "{}: the object changed while it was read: {}. Start again", o.name(), what);
}

/// Begin of the range of a response, "bytes 5-9/10"; -1: none. `total`: the size of the object.
int64_t range_begin(const std::string& text, int64_t& total) {
  int64_t begin = -1;
  total = -1;
  if (!text.starts_with("bytes ")) return -1;
  std::from_chars(text.data() + 6, text.data() + text.size(), begin);
  const size_t slash = text.rfind('/');
  if (slash != text.npos) std::from_chars(text.data() + slash + 1, text.data() + text.size(), total);
  return begin;
}

/// Writes the body of a response to the file.
class Receiver {
 public:
  Receiver(const Object& object, int fd, const std::string& path)
      : object_(object), fd_(fd), path_(path), at_(std::min(file_size(fd), object.size)) {}

  int64_t at() const { return at_; }

  /// Checks that a response is of the object, and of the range from at().
  bool begin(const HttpResponse& r) {
    const std::string etag = r.header("etag");
    if (!object_.etag.empty() && !etag.empty() && etag != object_.etag)
      changed(object_,
              fmt::format("its ETag was {} and is {}", printable(object_.etag, 80), printable(etag, 80)));
    const std::string modified = r.header("last-modified");
    if (object_.etag.empty() && !object_.modified.empty() && modified != object_.modified)
      changed(object_, fmt::format("its time was {} and is {}", printable(object_.modified, 60),
                                   printable(modified, 60)));
    if (r.status == 200) {  // a server without ranges
      at_ = 0;
      return true;
    }
    int64_t total = -1;
    const int64_t begin = range_begin(r.header("content-range"), total);
    if (total >= 0 && total != object_.size)
      changed(object_, fmt::format("it had {} bytes and has {}", object_.size, total));
    if (begin != at_)
      fail(ExitCode::data, "{}: the server was asked for bytes from {} and sends \"{}\"", object_.name(), at_,
           printable(r.header("content-range"), 100));
    return true;
  }

  bool take(const char* bytes, size_t count) {
    if (static_cast<int64_t>(count) > object_.size - at_)
      changed(object_, fmt::format("it had {} bytes, and the server sends more", object_.size));
    for (size_t done = 0; done < count;) {
      const ssize_t n = ::pwrite(fd_, bytes + done, count - done, at_);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        fail_system(path_ + ": the copy of " + object_.name() +
                        " cannot be written; data.cache and "
                        "LTRAIN_CACHE_DIR choose another folder",
                    n < 0 ? errno : ENOSPC, ExitCode::storage);
      done += static_cast<size_t>(n);
      at_ += n;
    }
    return true;
  }

 private:
  const Object& object_;
  int fd_;
  const std::string& path_;
  int64_t at_;
};

/// CRC-64/NVME: reflected, polynomial 0xad93d23594c93659.
class Crc64 {
 public:
  void add(const unsigned char* p, size_t n) {
    static const std::vector<uint64_t> table = [] {
      std::vector<uint64_t> t(256);
      for (uint64_t i = 0; i < 256; ++i) {
        t[i] = i;
        for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x9a6c9329ac4bc9b5u : 0);
      }
      return t;
    }();
    for (size_t i = 0; i < n; ++i) value_ = table[(value_ ^ p[i]) & 0xff] ^ value_ >> 8;
  }
  uint64_t value() const { return ~value_; }

 private:
  uint64_t value_ = ~uint64_t{0};
};

/// Bytes, highest first, in base 64.
std::string base64(uint64_t value, int bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (int bit = bytes * 8; bit > 0; bit -= 6) {
    const uint64_t rest = bit >= 6 ? value >> (bit - 6) : value << (6 - bit);
    text += kDigits[rest & 63];
  }
  while (text.size() % 4) text += '=';
  return text;
}

/// The ETag as an MD5: 32 hexadecimal digits, of an object that is not encrypted with keys of its own.
std::string md5_of(const Object& o, const HttpResponse& head) {
  if (!o.url.is_bucket() || o.etag.size() != 34) return "";
  const std::string digits = o.etag.substr(1, 32);
  if (digits.find_first_not_of("0123456789abcdef") != digits.npos) return "";
  const std::string encryption = head.header("x-amz-server-side-encryption");
  const bool own_keys = (!encryption.empty() && encryption != "AES256") ||
                        !head.header("x-amz-server-side-encryption-customer-algorithm").empty();
  return own_keys ? "" : digits;
}

/// A checksum of the full object: without -N, which says that it is of the checksums of N parts. Stores that
/// do not say its type may leave -N out for an object of several parts, whose ETag has it.
std::string full_checksum(const Object& o, const HttpResponse& head, const char* header) {
  const std::string text = head.header(header), type = head.header("x-amz-checksum-type");
  const bool parts = text.find('-') != text.npos || o.etag.find('-') != o.etag.npos;
  return type == "FULL_OBJECT" || (type.empty() && !parts) ? text : "";
}

}  // namespace

bool download(ObjectStore& store, const Object& object, int fd, const std::string& path,
              const std::atomic<bool>* stop) {
  Receiver receiver(object, fd, path);
  // An error of the sink is thrown after the transfer, because libcurl is C.
  std::exception_ptr error;
  const auto guarded = [&](auto work) {
    return [&error, work](auto... arguments) {
      try {
        return work(arguments...);
      } catch (...) {
        error = std::current_exception();
        return false;
      }
    };
  };
  HttpSink sink{
      [&](const HttpResponse& r) { return guarded([&](auto* p) { return receiver.begin(*p); })(&r); },
      guarded([&](const char* bytes, size_t n) { return receiver.take(bytes, n); })};
  for (int attempt = 1; receiver.at() < object.size;) {
    const int64_t before = receiver.at();
    Pairs headers{{"range", fmt::format("bytes={}-{}", before, object.size - 1)}};
    // A weak ETag never fulfils the condition; begin() compares it.
    if (object.etag.starts_with('"')) headers.emplace_back("if-match", object.etag);
    HttpResponse r = send_once(store.request("GET", object.url, {}, headers), &sink, stop);
    if (error) std::rethrow_exception(error);
    if (stop && *stop) return false;
    if (r.failure.empty() && (r.status == 412 || r.status == 416))
      changed(object, r.status == 412 ? fmt::format("its ETag is no longer {}", printable(object.etag, 80))
                                      : fmt::format("it no longer has {} bytes", object.size));
    if (r.ok() && receiver.at() == object.size) break;
    if (r.ok()) {
      r.failure = fmt::format("{} of {} bytes came", receiver.at(), object.size);
      r.can_retry = true;
    }
    if (receiver.at() > before) attempt = 1;
    if (!r.can_retry || attempt >= kAttempts) store.fail_response(r, object.url);
    wait_to_retry(attempt++, r, stop);
  }
  if (::ftruncate(fd, object.size) != 0 || ::fsync(fd) != 0)
    fail_system(path + ": the copy of " + object.name() + " cannot be written", errno, ExitCode::storage);
  return true;
}

std::string checksum_difference(ObjectStore& store, const Object& object, const std::string& path) {
  if (!object.url.is_bucket()) return "";
  const HttpResponse head = store.send("HEAD", object.url, {}, {{"x-amz-checksum-mode", "ENABLED"}});
  if (!head.ok()) store.fail_response(head, object.url);
  std::string crc32c_wanted = full_checksum(object, head, "x-amz-checksum-crc32c");
  if (const std::string hash = head.header("x-goog-hash"); hash.starts_with("crc32c="))
    crc32c_wanted = hash.substr(7, hash.find(',') - 7);
  const std::string md5_wanted = md5_of(object, head),
                    crc32_wanted = full_checksum(object, head, "x-amz-checksum-crc32"),
                    crc64_wanted = full_checksum(object, head, "x-amz-checksum-crc64nvme");
  Md5 md5;
  uint32_t castagnoli = 0;
  Crc64 nvme;
  uint64_t crc = 0;
  const data::InputFile file(path);
  std::vector<unsigned char> block(1 << 20);
  for (int64_t at = 0; at < file.size();) {
    const auto n = static_cast<size_t>(file.read_some(block.data(), at, static_cast<int64_t>(block.size())));
    if (!md5_wanted.empty()) md5.add(block.data(), n);
    if (!crc32c_wanted.empty()) castagnoli = crc32c(block.data(), n, castagnoli);
    if (!crc32_wanted.empty()) crc = ::crc32(crc, block.data(), static_cast<uInt>(n));
    if (!crc64_wanted.empty()) nvme.add(block.data(), n);
    at += static_cast<int64_t>(n);
    if (n == 0) break;
  }
  for (const auto& [what, wanted, got] :
       {std::tuple<const char*, std::string, std::string>{"MD5", md5_wanted, md5.hex()},
        {"CRC-32C", crc32c_wanted, base64(castagnoli, 4)},
        {"CRC-32", crc32_wanted, base64(crc, 4)},
        {"CRC-64/NVME", crc64_wanted, base64(nvme.value(), 8)}})
    if (!wanted.empty() && wanted != got)
      return fmt::format("expected {} {}, got {}", what, printable(wanted, 80), got);
  return "";
}

}  // namespace ltrain::objects
