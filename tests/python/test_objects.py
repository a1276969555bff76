"""Training data by URL: the program against a server of S3 and HTTP on this machine, with its faults."""
import json
import os
import pathlib
import shutil
import subprocess
import time

import pytest
from conftest import ROOT
from object_server import ACCESS, REGION, SECRET, ObjectServer

BINARY = os.environ.get("LTRAIN_BINARY", str(ROOT / "build" / "ltrain"))
TEXT = "".join(f"line {i} of a text that is long enough for several blocks\n" for i in range(4000)).encode()


@pytest.fixture
def server():
    with ObjectServer() as s:
        yield s


class Program:
    def __init__(self, folder, server):
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_") and "proxy" not in k.lower()}
        self.environment.update(HOME=str(folder), LTRAIN_CACHE_DIR=str(folder / "cache"), AWS_ACCESS_KEY_ID=ACCESS,
                                AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION=REGION, AWS_ENDPOINT_URL=server.url)

    def start(self, *arguments):
        return subprocess.Popen([BINARY, *arguments], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def run(self, *arguments, code=0):
        done = self.start(*arguments)
        text = done.communicate(timeout=120)[0]
        assert SECRET not in text and "X-Secret" not in text
        assert done.returncode == code, text
        return text

    def build(self, url, name="out", code=0, *options):
        return self.run("data", "build", "--input", url, "--output", name, "--tokenizer", "byte", "--force", "-q", *options,
                        code=code)

    def tokens(self, name="out"):
        return (self.folder / f"{name}.bin").read_bytes()

    def cached(self):
        return sorted(p for p in (self.folder / "cache" / "objects").iterdir() if p.suffix not in (".lock", ".part"))


@pytest.fixture
def program(tmp_path, server):
    return Program(tmp_path, server)


def expected(program, text=TEXT):
    (program.folder / "local.txt").write_bytes(text)
    program.build("local.txt", "local")
    return program.tokens("local")


def rows(first, count):
    return "".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(first, first + count)).encode()


def test_a_file_of_a_web_server_is_built_as_a_local_one_and_downloaded_once(server, program):
    server.objects["/text.txt"] = TEXT
    program.build(f"{server.url}/text.txt")
    assert program.tokens() == expected(program)
    assert len(server.gets()) == 1
    program.build(f"{server.url}/text.txt")
    assert len(server.gets()) == 1
    server.objects["/text.txt"] = TEXT[:5000]
    program.build(f"{server.url}/text.txt")
    assert program.tokens() == expected(program, TEXT[:5000])


@pytest.mark.parametrize("faults", [["500", "503"], ["cut"], ["cut", "cut", "500", "cut"], ["drop", "drop"]])
def test_a_download_goes_on_where_a_fault_ended_it(server, program, faults):
    server.objects["/bucket/text.txt"] = TEXT
    server.faults = list(faults)
    program.build("s3://bucket/text.txt")
    assert program.tokens() == expected(program)
    assert not server.faults
    if "cut" in faults:
        begins = [int(r[2]["range"].split("=")[1].split("-")[0]) for r in server.gets()]
        assert begins[-1] > len(TEXT) // 3 and begins == sorted(begins)
        assert all(r[2]["if-match"] == server.etag(TEXT) for r in server.gets())


def test_a_server_without_ranges_or_etag_is_read_and_a_cut_begins_again(server, program):
    server.objects["/text.txt"] = TEXT
    server.ranges, server.etag, server.faults = False, lambda body: None, ["cut"]
    program.build(f"{server.url}/text.txt")
    assert program.tokens() == expected(program)


def test_an_object_that_changes_during_the_download_is_refused(server, program):
    server.objects["/bucket/text.txt"] = TEXT
    server.faults = ["change"]
    text = program.build("s3://bucket/text.txt", code=65)
    assert "changed while it was read" in text and "s3://bucket/text.txt" in text
    assert not program.cached()


def test_bytes_that_are_not_those_of_the_checksum_are_downloaded_again_and_then_refused(server, program):
    server.objects["/bucket/text.txt"] = TEXT
    server.faults = ["corrupt"]
    program.build("s3://bucket/text.txt")
    assert program.tokens() == expected(program)
    shutil.rmtree(program.folder / "cache")
    server.faults = ["corrupt"] * 2
    text = program.build("s3://bucket/text.txt", code=73)
    assert "not those of the object" in text and "MD5" in text
    assert not program.cached()


def test_checksums_other_than_md5_are_compared(server, program):
    body = b"123456789"  # the published check values of the CRCs
    server.objects["/bucket/digits.txt"] = body
    server.etag = lambda b: '"of-parts-2"'
    for header, value in (("x-amz-checksum-crc32c", "4waSgw=="), ("x-amz-checksum-crc32", "y/Q5Jg=="),
                          ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=")):
        server.checksums = {header: value, "x-amz-checksum-type": "FULL_OBJECT"}
        program.build("s3://bucket/digits.txt")
        shutil.rmtree(program.folder / "cache")
        server.checksums[header] = value[:-3] + "A=="
        assert header[15:].upper()[:3] in program.build("s3://bucket/digits.txt", code=73)
        del server.checksums["x-amz-checksum-type"]  # perhaps of the checksums of the parts
        program.build("s3://bucket/digits.txt")
        shutil.rmtree(program.folder / "cache")


def test_more_bytes_than_the_size_are_refused_or_ignored(server, program):
    server.objects["/bucket/text.txt"] = TEXT
    server.faults = ["long"] * 9
    text = program.run("data", "build", "--input", "s3://bucket/text.txt", "--output", "out", "--tokenizer", "byte", "-q",
                       code=65)
    assert "sends more" in text


def test_an_interrupted_download_is_resumed_by_the_next_run(server, program):
    server.objects["/bucket/text.txt"] = TEXT
    server.faults = ["cut"] + ["503"] * 50
    build = program.start("data", "build", "--input", "s3://bucket/text.txt", "--output", "out", "--tokenizer", "byte", "-q")
    while len(server.gets()) < 2:
        time.sleep(0.02)
    build.terminate()
    build.wait(timeout=60)
    server.faults, server.requests = [], []
    program.build("s3://bucket/text.txt")
    assert program.tokens() == expected(program)
    assert int(server.gets()[0][2]["range"].split("=")[1].split("-")[0]) > 0


def test_patterns_and_folders_of_a_bucket_are_listed_page_by_page(server, program):
    for i in range(8):
        server.objects[f"/bucket/data/part {i}+é.jsonl"] = rows(i * 10, 10)
    server.objects["/bucket/data/README.md"] = b"# about"
    server.objects["/bucket/data/deep/x.jsonl"] = rows(100, 5)
    server.objects["/bucket/data/empty/"] = b""
    everything = b"".join(rows(i * 10, 10) for i in range(8))
    (program.folder / "all.jsonl").write_bytes(everything)
    program.build("all.jsonl", "all")
    program.build("s3://bucket/data/*.jsonl")
    assert program.tokens() == program.tokens("all")
    text = program.build("s3://bucket/data", "folder")
    assert "README.md" in text
    (program.folder / "all.jsonl").write_bytes(rows(100, 5) + everything)  # keys in order: deep/ is before part
    program.build("all.jsonl", "all")
    assert program.tokens("folder") == program.tokens("all")
    program.build("s3://bucket/data/**/*.jsonl", "deep")
    assert program.tokens("deep") == program.tokens("all")


def test_a_dataset_folder_of_a_bucket_has_the_split_that_its_readme_names(server, program):
    readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a/*\n  - split: test\n    path: b/*\n---\n"
    server.objects.update({"/bucket/set/README.md": readme.encode(), "/bucket/set/a/0.jsonl": rows(0, 3),
                           "/bucket/set/b/0.jsonl": rows(3, 4)})
    program.build("s3://bucket/set", "out", 0, "--dataset-split", "test")
    (program.folder / "b.jsonl").write_bytes(rows(3, 4))
    program.build("b.jsonl", "b")
    assert program.tokens() == program.tokens("b")
    assert not server.gets("/set/a/")


def test_the_cache_has_a_bound_and_forgets_the_object_opened_longest_ago(server, program):
    for name in "abc":
        server.objects[f"/bucket/{name}.txt"] = name.encode() * 400_000
    bound = ("--object-cache-gb", "0.001")
    for name in "abac":
        program.build(f"s3://bucket/{name}.txt", name, 0, *bound)
        time.sleep(0.02)
    assert sorted(p.read_bytes()[:1] for p in program.cached()) == [b"a", b"c"]
    server.objects["/bucket/large.txt"] = b"x" * 2_000_000
    assert "object_cache_gb" in program.build("s3://bucket/large.txt", "large", 64, *bound)
    # More objects than the bound, in one build.
    for i in range(6):
        server.objects[f"/bucket/many/{i}.txt"] = str(i).encode() * 400_000
    program.build("s3://bucket/many", "many", 0, *bound)
    assert len(program.tokens("many")) >= 2_400_000
    assert sum(p.stat().st_size for p in program.cached()) <= 1_000_000


def test_builds_at_the_same_time_download_an_object_once(server, program):
    server.objects["/bucket/text.txt"] = TEXT * 20
    builds = [program.start("data", "build", "--input", "s3://bucket/text.txt", "--output", f"out{i}", "--tokenizer", "byte",
                            "-q") for i in range(4)]
    assert [b.wait(timeout=300) for b in builds] == [0] * 4
    assert len(server.gets()) == 1
    assert len({program.tokens(f"out{i}") for i in range(4)}) == 1


def test_a_recipe_trains_on_a_bucket_and_a_warm_cache_downloads_nothing(server, program):
    for i in range(3):
        server.objects[f"/bucket/train/{i}.jsonl"] = rows(i * 200, 200)
    options = ("data.train=[{path: 's3://bucket/train/*.jsonl', text: text}]", "data.eval=[]", "train.eval_interval=0",
               "train.train_steps=2", "data.seq_length=64", "data.cache=tokens", "parallel.data=1", "device=cpu",
               "schedule.lr_warmup_steps=1", "train.global_batch_size=2", "train.micro_batch_size=2")
    recipe = str(ROOT / "recipes" / "quickstart.yaml")
    dry = program.run("run", recipe, *options, "--dry-run")
    assert "tokenised before the run trains" in dry and not server.gets()
    assert "tokenising s3://bucket/train" in program.run("run", recipe, *options, "output_dir=first")
    assert len(server.gets()) == 3
    shutil.rmtree(program.folder / "tokens" / "objects")
    assert "tokenising" not in program.run("run", recipe, *options, "output_dir=second")
    assert len(server.gets()) == 3
    for path in (program.folder / "first").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
    # A changed object has other token files.
    server.objects["/bucket/train/1.jsonl"] = rows(900, 200)
    assert "tokenising" in program.run("run", recipe, *options, "output_dir=third")
    query = program.run("run", recipe, *options, "data.train=[{path: 'https://host/x.jsonl?X-Amz-Signature=X-Secret'}]", code=64)
    assert "may hold secrets" in query


def test_the_example_of_the_page_works(server, program):
    page = (ROOT / "docs" / "data.md").read_text()
    commands = page.split("## Object stores")[1].split("```sh\n")[1].split("```")[0].splitlines()
    assert commands.pop(0).startswith("export AWS_ACCESS_KEY_ID")
    for i in range(2):
        server.objects[f"/corpus/fineweb/part-{i}.jsonl"] = rows(i * 300, 300)
    (program.folder / "recipes").symlink_to(ROOT / "recipes")
    small = " data.eval=[] train.eval_interval=0 train.stop_step=1 data.seq_length=32 device=cpu parallel.data=1"
    for command in commands:
        line = command.replace("ltrain", BINARY, 1) + (small if " run " in command else "")
        done = subprocess.run(line, shell=True, cwd=program.folder, env=program.environment, capture_output=True, text=True,
                              check=False, timeout=120)
        assert done.returncode == 0, line + done.stdout + done.stderr
    assert len(program.tokens("tokens/fineweb")) > 5000


def test_inspect_shows_records_behind_a_url_and_keeps_a_query_for_itself(server, program):
    server.objects["/x.jsonl"] = rows(0, 5)
    text = program.run("data", "inspect", f"{server.url}/x.jsonl?X-Amz-Signature=X-Secret")
    assert f"{server.url}/x.jsonl: jsonl" in text and "records    5" in text


def test_errors_name_what_was_found_and_what_would_work(server, program):
    server.objects["/bucket/data/train-0.jsonl"] = rows(0, 1)
    assert "the nearest one: data/train-0.jsonl" in program.build("s3://bucket/data/train-1.jsonl", code=65)
    assert "there are: data/train-0.jsonl" in program.build("s3://bucket/data/*.parquet", code=65)
    assert "HTTP 404 NoSuchBucket" in program.build("s3://other/x", code=65)
    assert "HTTP 404" in program.build(f"{server.url}/x.jsonl", code=65)
    program.environment["AWS_REGION"] = "us-west-2"
    assert f"set AWS_REGION={REGION}" in program.build("s3://bucket/data/*.jsonl", code=65)
    program.environment["AWS_REGION"] = REGION
    program.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
    wrong = program.build("s3://bucket/data/*.jsonl", code=65)
    assert "HTTP 403 SignatureDoesNotMatch" in wrong and "AWS_SECRET_ACCESS_KEY" in wrong and "wrong" not in wrong
    del program.environment["AWS_ACCESS_KEY_ID"], program.environment["AWS_SECRET_ACCESS_KEY"]
    unsigned = program.build("s3://bucket/data/*.jsonl", code=65)
    assert "HTTP 403 AccessDenied" in unsigned and "AWS_ACCESS_KEY_ID is not set" in unsigned
    server.public = True
    program.build("s3://bucket/data/*.jsonl")
    assert "URLs that are read begin with" in program.build("abfs://x/y", code=65)
    assert "user name or password" in program.build("https://user:X-Secret@host/x", code=64)
    server.server.shutdown()
    server.server.server_close()
    assert "attempts were made" in program.build("s3://bucket/data/*.jsonl", code=73)


def test_a_profile_has_the_keys_the_region_and_the_endpoint(server, program):
    server.objects["/bucket/text.txt"] = TEXT
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"):
        del program.environment[name]
    aws = program.folder / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text(f"[work]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")
    (aws / "config").write_text(f"[profile work]\nregion = {REGION}\nendpoint_url = {server.url}\ns3 =\n  x = y\n")
    program.environment["AWS_PROFILE"] = "work"
    program.build("s3://bucket/text.txt")
    assert program.tokens() == expected(program)
    program.environment["AWS_PROFILE"] = "play"
    assert "there are: work" in program.build("s3://bucket/text.txt", code=64)


def test_redirects_are_followed_without_keys_and_have_a_bound(server, program):
    with ObjectServer() as other:
        other.objects["/real.txt"] = TEXT
        server.redirects["/here.txt"] = f"{other.url}/real.txt?sig=X-Secret"
        program.build(f"{server.url}/here.txt")
        assert program.tokens() == expected(program)
        assert all("Authorization" not in r[2] for r in other.requests + server.requests)
        server.redirects["/loop.txt"] = f"{server.url}/loop.txt"
        assert "more than 5 redirects" in program.build(f"{server.url}/loop.txt", code=73)
        # A bucket's redirect is not followed: the signature is of its host.
        server.redirects["/bucket/moved.txt"] = f"{other.url}/real.txt"
        before = len(other.requests)
        assert "HTTP 302" in program.build("s3://bucket/moved.txt", code=65)
        assert len(other.requests) == before


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_certificates_are_checked(program):
    files = {name: str(program.folder / name) for name in ("key.pem", "certificate.pem", "both.pem")}
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", files["key.pem"], "-out",
                    files["certificate.pem"], "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True)
    pathlib.Path(files["both.pem"]).write_text("".join(pathlib.Path(files[n]).read_text() for n in ("key.pem", "certificate.pem")))
    with ObjectServer(files["both.pem"]) as secure, ObjectServer() as plain:
        secure.objects["/text.txt"] = plain.objects["/text.txt"] = TEXT
        assert "certificate" in program.build(f"{secure.url}/text.txt", code=73)
        program.environment["AWS_CA_BUNDLE"] = files["certificate.pem"]
        program.build(f"{secure.url}/text.txt")
        assert program.tokens() == expected(program)
        secure.redirects["/down.txt"] = f"{plain.url}/text.txt"
        assert "from HTTPS to HTTP" in program.build(f"{secure.url}/down.txt", code=73)
