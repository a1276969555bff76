#include "runtime/objects/upload.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/file.h"
#include "runtime/objects/xml.h"

namespace ltrain::objects {
namespace {

constexpr int64_t kUploadPart = 16 << 20, kMostParts = 9000;
constexpr int64_t kReadPiece = 8 << 20;  // below the largest body of a response
constexpr const char* kRights =
    "an upload needs s3:PutObject, s3:GetObject, s3:ListBucket, s3:DeleteObject and "
    "s3:AbortMultipartUpload";

/// Text of an element below the root of an answer; empty: none.
std::string text_of(const HttpResponse& response, const Url& url, const char* element) {
  std::string found;
  read_xml(response.body, url.name(), [&](const std::vector<std::string>& path, const std::string& text) {
    if (path.size() == 2 && path[1] == element) found = text;
  });
  return found;
}

/// An upload in parts. The destructor removes the parts of one that was not completed.
class MultipartUpload {
 public:
  MultipartUpload(ObjectStore& store, const Url& url, int64_t bytes, const std::atomic<bool>* stop)
      : store_(store), url_(url), bytes_(bytes), stop_(stop) {
    const HttpResponse r = store_.send("POST", url_, {{"uploads", ""}}, {}, stop_);
    if (!r.ok()) store_.fail_response(r, url_, kRights);
    id_ = text_of(r, url_, "UploadId");
    if (id_.empty())
      fail(ExitCode::data, "{}: the store begins an upload in parts without an UploadId", url_.name());
  }
  ~MultipartUpload() {
    if (id_.empty()) return;
    try {
      store_.send("DELETE", url_, {{"uploadId", id_}});
    } catch (const Error&) {  // the bucket's lifecycle removes it
    }
  }
  MultipartUpload(const MultipartUpload&) = delete;
  MultipartUpload& operator=(const MultipartUpload&) = delete;

  /// Sends part `number`, from 1. By any thread with a store of its own. Returns its ETag.
  std::string send_part(ObjectStore& store, int64_t number, std::string_view bytes) const {
    const HttpResponse r = store.send(
        "PUT", url_, {{"partNumber", std::to_string(number)}, {"uploadId", id_}}, {}, stop_, bytes);
    if (!r.ok() && !(stop_ && *stop_)) store.fail_response(r, url_, kRights);
    return r.header("etag");
  }

  void complete(const std::vector<std::string>& etags) {
    std::string body = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < etags.size(); ++i)
      body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etags[i]);
    body += "</CompleteMultipartUpload>";
    for (int attempt = 1;; ++attempt) {
      HttpResponse r = store_.send("POST", url_, {{"uploadId", id_}}, {}, stop_, body);
      // The status is sent before the work is done: an error is in the body then.
      const StoreError error = store_error(r);
      if (r.ok() && error.code.empty()) break;
      // A lost answer to an attempt that succeeded.
      Object there;
      if (error.code == "NoSuchUpload" && store_.try_head(url_, there) && there.size == bytes_) break;
      if (r.ok()) r.status = 500, r.can_retry = true;
      if (!r.can_retry || attempt == 3) store_.fail_response(r, url_, kRights);
      wait_to_retry(attempt, r, stop_);
    }
    id_.clear();
  }

 private:
  ObjectStore& store_;
  const Url& url_;
  int64_t bytes_;
  const std::atomic<bool>* stop_;
  std::string id_;
};

void read_part(const data::InputFile& file, int64_t from, int64_t bytes, std::string& to) {
  to.resize(static_cast<size_t>(bytes));
  file.read(to.data(), from, bytes);
}

}  // namespace

int64_t part_bytes(int64_t bytes) {
  constexpr int64_t kMiB = 1 << 20;
  return std::max(kUploadPart, (bytes / kMostParts / kMiB + 1) * kMiB);
}

void put_object(ObjectStore& store, const Url& url, std::string_view bytes, const std::atomic<bool>* stop) {
  const HttpResponse r = store.send("PUT", url, {}, {}, stop, bytes);
  if (!r.ok() && !(stop && *stop)) store.fail_response(r, url, kRights);
}

bool upload_file(ObjectStore& store, const Url& url, const std::string& path, const std::atomic<bool>* stop) {
  const data::InputFile file(path);
  const int64_t bytes = file.size(), part = part_bytes(bytes), parts = (bytes + part - 1) / part;
  const auto stopped = [&] { return stop && *stop; };
  if (parts <= 1) {
    std::string all;
    read_part(file, 0, bytes, all);
    put_object(store, url, all, stop);
    return !stopped();
  }
  MultipartUpload upload(store, url, bytes, stop);
  std::vector<std::string> etags(static_cast<size_t>(parts));
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      ObjectStore own = store;
      std::string buffer;
      for (int64_t i; (i = next++) < parts && !stopped();) {
        read_part(file, i * part, std::min(part, bytes - i * part), buffer);
        etags[static_cast<size_t>(i)] = upload.send_part(own, i + 1, buffer);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = parts;  // the others end, too
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < std::min<int64_t>(kUploadThreads, parts); ++i) threads.emplace_back(work);
  }
  if (error) std::rethrow_exception(error);
  if (stopped()) return false;
  upload.complete(etags);
  return true;
}

void delete_object(ObjectStore& store, const Url& url) {
  const HttpResponse r = store.send("DELETE", url);
  if (!r.ok() && r.status != 404) store.fail_response(r, url, kRights);
}

std::string read_whole(ObjectStore& store, const Object& object, int64_t most_bytes) {
  if (object.size > most_bytes)
    fail(ExitCode::data, "{}: expected at most {} bytes, got {}", object.name(), most_bytes, object.size);
  std::string all;
  while (static_cast<int64_t>(all.size()) < object.size) {
    const int64_t at = static_cast<int64_t>(all.size()), n = std::min(kReadPiece, object.size - at);
    Pairs headers{{"range", fmt::format("bytes={}-{}", at, at + n - 1)}};
    if (object.etag.starts_with('"')) headers.emplace_back("if-match", object.etag);
    const HttpResponse r = store.send("GET", object.url, {}, headers);
    if (!r.ok()) store.fail_response(r, object.url);
    if (static_cast<int64_t>(r.body.size()) != n)
      fail(ExitCode::storage, "{}: expected {} bytes from {}, got {}", object.name(), n, at, r.body.size());
    all += r.body;
  }
  return all;
}

}  // namespace ltrain::objects
