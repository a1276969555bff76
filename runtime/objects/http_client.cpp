#include "runtime/objects/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/time_scale.h"
#include "base/version.h"

// Names of functions here, and not the checking macros of the header.
#undef curl_easy_setopt
#undef curl_easy_getinfo

namespace ltrain::objects {
namespace {

constexpr size_t kMaxBody = 16 << 20, kMaxHeaders = 256 << 10;
constexpr int kMaxRedirects = 5;
constexpr double kMaxWait = 20, kMaxRetryAfter = 60;  // seconds

/// Functions of libcurl.
struct Curl {
  decltype(&::curl_global_init) global_init = nullptr;
  decltype(&::curl_easy_init) easy_init = nullptr;
  decltype(&::curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&::curl_easy_reset) easy_reset = nullptr;
  decltype(&::curl_easy_setopt) easy_setopt = nullptr;
  decltype(&::curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&::curl_easy_perform) easy_perform = nullptr;
  decltype(&::curl_easy_strerror) easy_strerror = nullptr;
  decltype(&::curl_slist_append) slist_append = nullptr;
  decltype(&::curl_slist_free_all) slist_free_all = nullptr;
  std::string why;

  Curl() {
    void* library = nullptr;
    for (const char* file : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
      if ((library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL))) break;
      if (why.empty()) why = ::dlerror();
    }
    if (!library) return;
    why.clear();
    get(library, global_init, "curl_global_init"), get(library, easy_init, "curl_easy_init");
    get(library, easy_cleanup, "curl_easy_cleanup"), get(library, easy_reset, "curl_easy_reset");
    get(library, easy_setopt, "curl_easy_setopt"), get(library, easy_getinfo, "curl_easy_getinfo");
    get(library, easy_perform, "curl_easy_perform"), get(library, easy_strerror, "curl_easy_strerror");
    get(library, slist_append, "curl_slist_append"), get(library, slist_free_all, "curl_slist_free_all");
    if (why.empty() && global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) why = "it could not be started";
  }

  template <class F>
  void get(void* library, F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    if (!function) why = std::string("it has no ") + name;
  }
};

const Curl& curl(const std::string& name) {
  static const Curl loaded;
  if (!loaded.why.empty())
    fail(ExitCode::usage,
         "{}: URLs are read through libcurl.so.4, which cannot be used here: {}. Install it (Debian: apt-get "
         "install libcurl4; Fedora: libcurl), or copy the files",
         name, loaded.why);
  return loaded;
}

/// A handle of this thread, which keeps connections between requests.
CURL* handle_of(const Curl& c) {
  thread_local const std::unique_ptr<CURL, decltype(c.easy_cleanup)> handle(c.easy_init(), c.easy_cleanup);
  if (!handle) fail(ExitCode::internal, "libcurl gives no handle: out of memory");
  return handle.get();
}

/// State of a transfer, for the callbacks.
struct Transfer {
  HttpResponse response;
  const HttpSink* sink = nullptr;
  const std::atomic<bool>* stop = nullptr;
  size_t header_bytes = 0;
  curl_off_t sent = 0;
  bool begun = false;
  std::string refused;  // why a callback ended the transfer
};

size_t take_header(char* bytes, size_t size, size_t count, void* user) {
  Transfer& t = *static_cast<Transfer*>(user);
  const size_t n = size * count;
  if ((t.header_bytes += n) > kMaxHeaders) {
    t.refused = fmt::format("more than {} KiB of headers", kMaxHeaders >> 10);
    return 0;
  }
  const std::string_view line(bytes, n);
  if (line.starts_with("HTTP/")) t.response.headers.clear();  // an earlier response had them
  const size_t colon = line.find(':');
  if (colon == line.npos) return n;
  std::string name(line.substr(0, colon));
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  std::string_view value = line.substr(colon + 1);
  const size_t first = value.find_first_not_of(" \t\r\n");
  value = first == value.npos ? "" : value.substr(first, value.find_last_not_of(" \t\r\n") + 1 - first);
  t.response.headers[name] = value;
  return n;
}

size_t take_body(char* bytes, size_t size, size_t count, void* user) {
  Transfer& t = *static_cast<Transfer*>(user);
  const size_t n = size * count;
  note_progress();
  if (t.sink && t.response.status >= 200 && t.response.status < 300) {
    const bool go_on = (t.begun || t.sink->begin(t.response)) && t.sink->take(bytes, n);
    t.begun = true;
    t.response.stopped = !go_on;
    return go_on ? n : 0;
  }
  if (t.response.body.size() + n > kMaxBody) {
    t.refused = fmt::format("an answer of more than {} MiB", kMaxBody >> 20);
    return 0;
  }
  t.response.body.append(bytes, n);
  return n;
}

int check_stop(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t sent) {
  Transfer& t = *static_cast<Transfer*>(user);
  if (std::exchange(t.sent, sent) != sent) note_progress();
  if (!t.stop || !*t.stop) return 0;
  t.response.stopped = true;
  return 1;
}

bool may_help(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_WRITE_ERROR:
    case CURLE_ABORTED_BY_CALLBACK:
      return false;
    default:
      return true;
  }
}

/// Stores the text of a failed transfer. `why`: libcurl's own, or empty.
void take_failure(const Curl& c, CURLcode code, const char* why, Transfer& t) {
  // The buffer may name a URL of a redirect with its secrets, so that messages have the general text.
  const bool names_url = std::string_view(why).find("://") != std::string_view::npos || !*why;
  t.response.failure = !t.refused.empty() ? t.refused
                       : names_url        ? c.easy_strerror(code)
                                          : printable(why, 300);
  t.response.can_retry = t.refused.empty() && !t.response.stopped && may_help(code);
}

/// Takes a body when the status is known.
struct BodyWriter {
  const Curl& c;
  CURL* h;
  Transfer& t;
  static size_t write(char* bytes, size_t size, size_t count, void* user) {
    BodyWriter& w = *static_cast<BodyWriter*>(user);
    long status = 0;
    w.c.easy_getinfo(w.h, CURLINFO_RESPONSE_CODE, &status);
    w.t.response.status = static_cast<int>(status);
    return take_body(bytes, size, count, &w.t);
  }
};

bool sends_body(const HttpRequest& r) { return r.method == "PUT" || r.method == "POST"; }

/// One request to `url`, without redirects. `target`: the URL that a redirect names.
void perform(const Curl& c, const HttpRequest& request, const std::string& url, Transfer& t,
             std::string& target) {
  CURL* h = handle_of(c);
  c.easy_reset(h);
  const std::unique_ptr<curl_slist, decltype(c.slist_free_all)> headers(
      [&] {
        curl_slist* list = nullptr;
        for (const std::string& header : request.headers) list = c.slist_append(list, header.c_str());
        // Headers that libcurl adds to a body: the form's type, and a wait for the server's consent.
        if (sends_body(request))
          for (const char* left_out : {"Content-Type:", "Expect:"}) list = c.slist_append(list, left_out);
        return list;
      }(),
      c.slist_free_all);
  char why[CURL_ERROR_SIZE] = "";
  const auto set = [&](CURLoption option, auto value) { c.easy_setopt(h, option, value); };
  const std::string agent = fmt::format("ltrain/{}", version());
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_NOBODY, request.method == "HEAD" ? 1L : 0L);
  if (sends_body(request)) {
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
  }
  if (request.method != "GET" && request.method != "HEAD") set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  set(CURLOPT_USERAGENT, agent.c_str());
  set(CURLOPT_ERRORBUFFER, why);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_PATH_AS_IS, 1L);  // a key may hold /../, and its signature has it too
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(15000 * time_scale()));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, std::max(1L, static_cast<long>(60 * time_scale())));
  set(CURLOPT_BUFFERSIZE, 256L << 10);
  if (!request.certificates.empty()) set(CURLOPT_CAINFO, request.certificates.c_str());
  set(CURLOPT_HEADERFUNCTION, &take_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&t));
  BodyWriter writer{c, h, t};
  set(CURLOPT_WRITEFUNCTION, &BodyWriter::write);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&writer));
  set(CURLOPT_XFERINFOFUNCTION, &check_stop);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(&t));
  set(CURLOPT_NOPROGRESS, 0L);
  const CURLcode code = c.easy_perform(h);
  long status = 0;
  c.easy_getinfo(h, CURLINFO_RESPONSE_CODE, &status);
  t.response.status = static_cast<int>(status);
  const char* next = nullptr;
  if (c.easy_getinfo(h, CURLINFO_REDIRECT_URL, &next) == CURLE_OK && next) target = next;
  if (code == CURLE_OK) return;
  take_failure(c, code, why, t);
}

bool is_busy(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

}  // namespace

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpResponse send_once(const HttpRequest& request, const HttpSink* sink, const std::atomic<bool>* stop) {
  const Curl& c = curl(request.name);
  std::string url = request.url;
  for (int redirects = 0;; ++redirects) {
    Transfer t;
    t.sink = sink;
    t.stop = stop;
    std::string target;
    perform(c, request, url, t, target);
    HttpResponse& r = t.response;
    if (!r.failure.empty()) return std::move(r);
    r.can_retry = is_busy(r.status);
    // An empty body calls no callback.
    if (sink && r.ok() && !t.begun) r.stopped = !sink->begin(r);
    const bool redirect = r.status >= 300 && r.status < 400 && !target.empty();
    if (!request.follow_redirects || !redirect) return std::move(r);
    const bool secure = target.starts_with("https://");
    if (redirects == kMaxRedirects)
      r.failure = fmt::format("more than {} redirects", kMaxRedirects);
    else if (!secure && !target.starts_with("http://"))
      r.failure = "a redirect to another protocol than HTTP";
    else if (!secure && url.starts_with("https://"))
      r.failure = "a redirect from HTTPS to HTTP, which is not secure";
    if (!r.failure.empty()) return std::move(r);
    url = target;
  }
}

void wait_to_retry(int attempt, const HttpResponse& response, const std::atomic<bool>* stop) {
  static thread_local std::minstd_rand random(std::random_device{}());
  const double share = std::uniform_real_distribution<double>(0.5, 1)(random);
  double seconds = std::min(kMaxWait, 0.2 * static_cast<double>(1 << std::min(attempt - 1, 10))) * share;
  if (const std::string after = response.header("retry-after"); !after.empty())
    seconds = std::max(seconds, std::clamp(std::atof(after.c_str()), 0.0, kMaxRetryAfter));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < end && !(stop && *stop))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

HttpResponse send(const std::function<HttpRequest()>& make, const std::atomic<bool>* stop) {
  for (int attempt = 1;; ++attempt) {
    HttpResponse response = send_once(make(), nullptr, stop);
    if (!response.can_retry || attempt == kAttempts || (stop && *stop)) return response;
    wait_to_retry(attempt, response, stop);
  }
}

}  // namespace ltrain::objects
