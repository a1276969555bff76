"""An object store and web server for tests, by the standard library: signatures are checked, requests are counted, and
faults happen when a test asks for them."""
import hashlib
import hmac
import http.server
import re
import ssl
import threading
import urllib.parse

ACCESS, SECRET, REGION = "AKIDTEST", "secret/of+tests", "eu-test-1"


def signature(secret, method, path, query, headers, signed, date, scope):
    """The signature of a request by the rules of AWS, written a second time for the tests."""
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    quote = lambda t: urllib.parse.quote(t, safe="-_.~")
    canonical = "\n".join([method, path, "&".join(f"{quote(k)}={quote(v)}" for k, v in pairs),
                           *(f"{h}:{' '.join(headers[h].split())}" for h in signed.split(";")), "", signed,
                           headers["x-amz-content-sha256"]])
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code, message, **headers):
        self.answer(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode(),
                    **headers)

    def refused(self, path, query):
        """Whether the signature is wrong, which is answered."""
        store = self.server.store
        given = self.headers.get("Authorization")
        if store.public or not path.startswith(("/bucket", "/corpus")):
            return False
        if not given:
            self.error(403, "AccessDenied", "Access Denied")
            return True
        m = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})", given)
        headers = {k.lower(): v for k, v in self.headers.items()}
        if not m or m[1] != ACCESS:
            self.error(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
            return True
        right = signature(SECRET, self.command, path, query, headers, m[3], headers["x-amz-date"], m[2])
        signed = set(m[3].split(";"))
        if m[4] != right or not {"host", "x-amz-date", "x-amz-content-sha256"} <= signed:
            self.error(403, "SignatureDoesNotMatch", "The request signature we calculated does not match.")
            return True
        if m[2].split("/")[1] != REGION:
            self.error(400, "AuthorizationHeaderMalformed", "the region is wrong", x_amz_bucket_region=REGION)
            return True
        return False

    def do_GET(self):
        store = self.server.store
        path, _, query = self.path.partition("?")
        with store.lock:
            store.requests.append((self.command, self.path, dict(self.headers)))
            fault = store.faults.pop(0) if store.faults and self.command == "GET" and "list-type" not in query else None
        if fault == "500" or fault == "503":
            return self.error(int(fault), "SlowDown", "Please reduce your request rate.")
        if fault == "drop":
            self.close_connection = True
            return None
        if self.refused(path, query):
            return None
        if path in store.redirects:
            return self.answer(302, Location=store.redirects[path])
        parts = urllib.parse.unquote(path).split("/", 2)
        values = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if "list-type" in values:
            return self.list(parts[1], values)
        found = store.objects.get(urllib.parse.unquote(path))
        if found is None:
            return self.error(404, "NoSuchKey", "The specified key does not exist.")
        return self.send_object(path, found, fault)

    do_HEAD = do_GET

    def do_PUT(self):
        """PUT and POST of objects, whole, in parts, or as copies; DELETE."""
        store = self.server.store
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name, values = urllib.parse.unquote(path), dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        with store.lock:
            store.requests.append((self.command, self.path, dict(self.headers)))
            fault = store.write_faults.pop(0) if store.write_faults else None
        if fault in ("500", "503"):
            return self.error(int(fault), "SlowDown", "Please reduce your request rate.")
        if fault == "drop":
            self.close_connection = True
            return None
        if fault == "denied":
            return self.error(403, "AccessDenied", "Access Denied")
        if self.refused(path, query):
            return None
        if "Authorization" in self.headers and hashlib.sha256(body).hexdigest() != self.headers["x-amz-content-sha256"]:
            return self.error(400, "XAmzContentSHA256Mismatch", "The provided header does not match what was computed.")
        if self.command == "DELETE":
            store.uploads.pop(values["uploadId"], None) if "uploadId" in values else store.objects.pop(name, None)
            return self.answer(204)
        if self.command == "POST" and "uploads" in values:
            store.uploads[f"upload{len(store.requests)}"] = {}
            return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>upload{len(store.requests)}</UploadId>"
                                    "</InitiateMultipartUploadResult>".encode())
        if self.command == "POST":
            fault = store.end_faults.pop(0) if store.end_faults else None
            if fault == "late":  # the status comes before the work is done
                return self.answer(200, b"<Error><Code>InternalError</Code><Message>Try again.</Message></Error>")
            parts = store.uploads.pop(values["uploadId"], None)
            if parts is None:
                return self.error(404, "NoSuchUpload", "The specified upload does not exist.")
            listed = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>", body.decode())
            if [(n, store.etag(parts[int(n)])) for n, _ in listed] != listed or len(listed) != len(parts):
                return self.error(400, "InvalidPart", "One or more of the specified parts could not be found.")
            store.objects[name] = b"".join(parts[int(n)] for n, _ in listed)
            if fault == "lost":  # done, and the answer does not arrive
                self.close_connection = True
                return None
            return self.answer(200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
        if "partNumber" in values:
            if values["uploadId"] not in store.uploads:
                return self.error(404, "NoSuchUpload", "The specified upload does not exist.")
            store.uploads[values["uploadId"]][int(values["partNumber"])] = body
        elif "x-amz-copy-source" in self.headers:
            body = store.objects[urllib.parse.unquote(self.headers["x-amz-copy-source"])]
            store.objects[name] = body
            return self.answer(200, b"<CopyObjectResult></CopyObjectResult>")
        else:
            store.objects[name] = body
        return self.answer(200, ETag=store.etag(body))

    do_POST = do_DELETE = do_PUT

    def send_object(self, path, body, fault):
        store = self.server.store
        etag = store.etag(body)
        headers = {} if etag is None else {"ETag": etag}
        if store.checksums and "x-amz-checksum-mode" in self.headers:
            headers.update(store.checksums)
        condition = self.headers.get("If-Match")
        if condition and condition != etag:
            return self.error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
        first, last, status = 0, len(body) - 1, 200
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if m and store.ranges:
            first, last, status = int(m[1]), min(int(m[2] or last), last), 206
            headers["Content_Range"] = f"bytes {first}-{last}/{len(body)}"
        part = body[first:last + 1]
        if fault == "corrupt":
            part = b"X" * len(part)
        if fault in ("cut", "change"):
            headers["Content_Length"] = str(len(part))
            self.answer(status, part[:len(part) // 2], **headers)
            self.close_connection = True
            if fault == "change":
                store.objects[urllib.parse.unquote(path)] = body[::-1]
            return None
        if fault == "long":
            part += b"more"
        return self.answer(status, part, **headers)

    def list(self, bucket, values):
        store = self.server.store
        prefix = values.get("prefix", "")
        keys = sorted(k.split("/", 2)[2] for k in store.objects if k.startswith(f"/{bucket}/"))
        keys = [k for k in keys if k.startswith(prefix)]
        if not keys and bucket not in {k.split("/")[1] for k in store.objects}:
            return self.error(404, "NoSuchBucket", "The specified bucket does not exist")
        start = int(values.get("continuation-token", "t0")[1:])
        page = keys[start:start + store.page]
        quote = urllib.parse.quote_plus if values.get("encoding-type") == "url" else lambda t: t
        entries = "".join(
            f"<Contents><Key>{quote(k)}</Key><ETag>{store.etag(store.objects[f'/{bucket}/{k}'])}</ETag>"
            f"<Size>{len(store.objects[f'/{bucket}/{k}'])}</Size></Contents>" for k in page).replace('"', "&quot;")
        more = start + store.page < len(keys)
        text = ('<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
                + (f"<NextContinuationToken>t{start + store.page}</NextContinuationToken>" if more else "")
                + entries + "</ListBucketResult>")
        return self.answer(200, text.encode())


class ObjectServer:
    """`objects`: path to bytes; /bucket/KEY and /corpus/KEY need a signature. `faults`: of the next GET requests of objects,
    in order; `write_faults`: of the next PUT, POST and DELETE requests, `end_faults`: of the
    next ends of uploads in parts. `uploads`: parts of those that are not completed."""

    def __init__(self, certificate=None):
        self.objects, self.faults, self.requests, self.redirects = {}, [], [], {}
        self.uploads, self.write_faults, self.end_faults = {}, [], []
        self.page, self.ranges, self.public, self.checksums = 3, True, False, {}
        self.etag = lambda body: f'"{hashlib.md5(body).hexdigest()}"'
        self.lock = threading.Lock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.store = self
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def gets(self, path=""):
        """Requests for bytes of objects whose path contains `path`."""
        return [r for r in self.requests if r[0] == "GET" and "list-type" not in r[1] and path in r[1]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
