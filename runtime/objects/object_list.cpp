#include "runtime/objects/object_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "base/secret.h"
#include "runtime/objects/xml.h"

namespace ltrain::objects {
namespace {

constexpr size_t kMaxObjects = 1 << 20;
constexpr size_t kMaxKey = 4096;
constexpr int kNearNames = 3;

/// A key of a list with encoding-type=url.
std::string decoded(const std::string& text, const std::string& name) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    std::string digits = text.substr(i + 1, 2);
    for (char& c : digits)
      if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
    const auto byte = from_hex(digits, 1);
    if (!byte || byte->size() != 1)
      fail(ExitCode::data, "{}: the list of objects has a key that is not encoded as it says: {}", name,
           printable(text, 100));
    out += *byte;
    i += 2;
  }
  return out;
}

bool is_pattern_text(const std::string& key) { return key.find_first_of("*?[") != key.npos; }

Pairs list_query(const std::string& prefix, const std::string& token) {
  Pairs query{{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix}};
  if (!token.empty()) query.emplace_back("continuation-token", token);
  return query;
}

Url bucket_of(const Url& url) {
  Url bucket = url;
  bucket.path.clear();
  return bucket;
}

/// Names near a key that does not exist, from the first page of its folder.
std::string near_names(const Url& url, ObjectStore& store) {
  const std::string key = url.path.substr(0, url.path.find_first_of("*?["));
  const size_t slash = key.rfind('/');
  const std::string folder = slash == key.npos ? "" : key.substr(0, slash + 1);
  const HttpResponse r = store.send("GET", bucket_of(url), list_query(folder, ""));
  if (!r.ok()) return "";
  std::vector<std::string> keys;
  for (const Object& o : read_list_page(r.body, url).objects) keys.push_back(o.url.path);
  if (keys.empty())
    return fmt::format("; nothing begins with {}",
                       folder.empty() ? "it: the bucket is empty" : printable(folder, 300));
  std::string names = nearest_word(url.path, keys);
  if (!names.empty()) return fmt::format("; the nearest one: {}", printable(names, 300));
  for (size_t i = 0; i < keys.size() && i < kNearNames; ++i)
    names += (i ? ", " : "") + printable(keys[i], 200);
  return fmt::format("; there are: {}{}", names, keys.size() > kNearNames ? ", ..." : "");
}

}  // namespace

std::vector<Object> objects_with_prefix(const Url& url, const std::string& prefix, ObjectStore& store) {
  std::vector<Object> all;
  std::set<std::string> tokens;
  for (std::string token;;) {
    const HttpResponse r = store.send("GET", bucket_of(url), list_query(prefix, token));
    if (!r.ok()) store.fail_response(r, url, "the request was a list of objects");
    ListPage page = read_list_page(r.body, url);
    for (Object& o : page.objects) all.push_back(std::move(o));
    if (all.size() > kMaxObjects)
      fail(ExitCode::data, "{}: more than {} objects; give a longer prefix, or a pattern", url.name(),
           kMaxObjects);
    if (page.next.empty()) break;
    if (!tokens.insert(page.next).second)
      fail(ExitCode::data, "{}: the list of objects has no end: a continuation token came twice", url.name());
    token = page.next;
  }
  std::sort(all.begin(), all.end(), [](const Object& a, const Object& b) { return a.url.path < b.url.path; });
  return all;
}

bool matches_pattern(const std::string& pattern, const std::string& key) {
  // Compared folder by folder, with the folders of the key that each ** may take.
  const auto split = [](const std::string& text) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t slash; (slash = text.find('/', begin)) != text.npos; begin = slash + 1)
      parts.push_back(text.substr(begin, slash - begin));
    parts.push_back(text.substr(begin));
    return parts;
  };
  const std::vector<std::string> want = split(pattern), have = split(key);
  // reach[i]: the parts of the pattern so far match the first i parts of the key.
  std::vector<bool> reach(have.size() + 1, false);
  reach[0] = true;
  for (size_t p = 0; p < want.size(); ++p) {
    std::vector<bool> next(have.size() + 1, false);
    if (want[p] == "**" && p + 1 < want.size()) {
      bool any = false;
      for (size_t i = 0; i <= have.size(); ++i) next[i] = any = any || reach[i];
    } else {
      for (size_t i = 0; i < have.size(); ++i)
        next[i + 1] = reach[i] && ::fnmatch(want[p].c_str(), have[i].c_str(), 0) == 0;
    }
    reach = std::move(next);
  }
  return reach[have.size()];
}

ListPage read_list_page(std::string_view xml, const Url& url) {
  ListPage page;
  bool encoded = false, truncated = false, is_list = false;
  std::string key, etag;
  int64_t size = -1;
  const std::string name = url.name();
  read_xml(xml, name, [&](const std::vector<std::string>& path, const std::string& text) {
    if (path[0] != "ListBucketResult") return;
    is_list = true;
    const std::string& last = path.back();
    if (path.size() == 3 && path[1] == "Contents") {
      if (last == "Key") key = text;
      if (last == "ETag") etag = text;
      if (last == "Size") {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
        if (error != std::errc() || end != text.data() + text.size()) size = -1;
      }
    } else if (path.size() == 2 && last == "Contents") {
      if (key.empty() || key.size() > 3 * kMaxKey || size < 0)
        fail(ExitCode::data, "{}: the list of objects has one without a key or a size: {}", name,
             printable(key, 100));
      Object o;
      o.url = url;
      o.url.path = key;
      o.size = size;
      o.etag = etag.empty() || etag[0] == '"' ? etag : "\"" + etag + "\"";
      page.objects.push_back(std::move(o));
      key.clear(), etag.clear();
      size = -1;
    } else if (path.size() == 2) {
      if (last == "EncodingType") encoded = text == "url";
      if (last == "IsTruncated") truncated = text == "true";
      if (last == "NextContinuationToken") page.next = text;
    }
  });
  if (!is_list) fail(ExitCode::data, "{}: expected the list of a bucket, got another answer", name);
  if (encoded)
    for (Object& o : page.objects) o.url.path = decoded(o.url.path, name);
  if (!truncated) page.next.clear();
  if (truncated && page.next.empty())
    fail(ExitCode::data, "{}: the list of objects is cut, and has no continuation token", name);
  return page;
}

ObjectList list_objects(const Url& url, ObjectStore& store) {
  ObjectList list;
  if (!url.is_bucket()) {
    if (url.path.find('*') != std::string::npos)
      fail(ExitCode::usage, "{}: web servers list no files: name each file, or use s3:// or gs://",
           url.name());
    list.objects.push_back(store.head(url));
    return list;
  }
  const std::string& key = url.path;
  const bool pattern = is_pattern_text(key);
  if (!pattern && !key.empty() && key.back() != '/') {
    Object object;
    if (store.try_head(url, object)) return {{object}, false};
  }
  const std::string prefix = pattern                            ? key.substr(0, key.find_first_of("*?["))
                             : key.empty() || key.back() == '/' ? key
                                                                : key + "/";
  for (Object& o : objects_with_prefix(url, prefix, store)) {
    const bool marks_folder = o.size == 0 && o.url.path.ends_with('/');
    if (!marks_folder && (!pattern || o.url.path == key || matches_pattern(key, o.url.path)))
      list.objects.push_back(std::move(o));
  }
  list.is_folder = !pattern;
  if (list.objects.empty())
    fail(ExitCode::data, "{}: {}{}", url.name(),
         pattern ? "no object of the bucket matches the pattern" : "no such object, and none below it",
         near_names(url, store));
  return list;
}

}  // namespace ltrain::objects
