// Damage, crashes at every point of a save, full disks: a checkpoint is whole or not there.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>

#include "base/fault_point.h"
#include "base/json/json.h"
#include "base/time_scale.h"
#include "runtime/checkpoint/files.h"
#include "runtime/files/write_file.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/outcome.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

const std::string kNewest = "step-00000002";
const std::string kShard = "shard-00001-of-00002.safetensors";

/// Two checkpoints, `damage` done to the newer one: what the loader says of it. It must fall back to the
/// older one.
std::string rejection(const std::function<void(const std::string&)>& damage,
                      const std::string& name = kNewest) {
  const TemporaryFolder folder;
  save_steps(folder.path(), 2, Slicing::flat, {1, 2});
  damage(folder.path() + "/" + kNewest);
  std::vector<std::string> notes;
  CHECK(load_and_check(folder.path(), notes) == 1);
  CHECK(notes.size() == 2);
  CHECK_THAT(notes[0], Contains("newer checkpoints that cannot be used:"));
  const std::string by_name =
      error_of([&] { load_and_check(folder.path(), notes, folder.path() + "/" + name); });
  CHECK_FALSE(by_name.empty());  // a path that was asked for has no fallback
  std::filesystem::remove_all(folder.path() + "/step-00000001");
  CHECK_THAT(error_of([&] { load_and_check(folder.path(), notes); }), Contains("no checkpoint can be used"));
  std::string text = notes[0];
  for (size_t at; (at = text.find(folder.path())) != std::string::npos;)
    text = text.substr(0, at) + std::string(1, 'F') + text.substr(at + folder.path().size());
  return text;
}

void edit_manifest(const std::string& checkpoint, const std::function<void(nlohmann::json&)>& edit) {
  auto manifest = nlohmann::json::parse(read_file(checkpoint + "/manifest.json"));
  edit(manifest);
  const std::string text = manifest.dump(1) + "\n";
  write_file(checkpoint + "/manifest.json", text);
  write_file(checkpoint + "/COMMIT", commit_record(text));  // the damage looks like a written file
}

}  // namespace

TEST_CASE("damage is found, named, and passed over", "[checkpoint][damage]") {
  CHECK_THAT(rejection([](const std::string& c) {
               std::filesystem::resize_file(c + "/" + kShard,
                                            std::filesystem::file_size(c + "/" + kShard) - 1);
             }),
             Contains("F/step-00000002/" + kShard + ": ") && Contains(" bytes, the manifest says "));
  CHECK_THAT(rejection([](const std::string& c) {
               flip_bit(c + "/" + kShard, std::filesystem::file_size(c + "/" + kShard) - 3, 6);
             }),
             Contains("F/step-00000002/" + kShard + ": its xxh3-128 is ") && Contains("the file is damaged"));
  CHECK_THAT(rejection([](const std::string& c) { flip_bit(c + "/" + kShard, 3); }),
             Contains(kShard + ": not a safetensors file"));
  CHECK_THAT(rejection([](const std::string& c) { flip_bit(c + "/" + kShard, 20); }),
             Contains("F/step-00000002/" + kShard));
  CHECK_THAT(rejection([](const std::string& c) { flip_bit(c + "/manifest.json", 300, 2); }),
             Contains("F/step-00000002/COMMIT: does not match manifest.json"));
  CHECK_THAT(rejection([](const std::string& c) { flip_bit(c + "/COMMIT", 50); }),
             Contains("COMMIT: does not match manifest.json"));
  CHECK_THAT(rejection([](const std::string& c) { flip_bit(c + "/COMMIT", 14, 1); }),
             Contains("not a commit record of version 1"));
  CHECK_THAT(rejection([](const std::string& c) { std::filesystem::remove(c + "/COMMIT"); }),
             Contains("F/step-00000002: no COMMIT record: the save was not finished"));
  CHECK_THAT(rejection([](const std::string& c) { std::filesystem::remove(c + "/manifest.json"); }),
             Contains("manifest.json: missing, though the checkpoint is committed"));
  CHECK_THAT(rejection([](const std::string& c) { std::filesystem::remove(c + "/" + kShard); }),
             Contains(kShard + ": missing"));
  CHECK_THAT(rejection([](const std::string& c) {
               std::filesystem::copy_file(c + "/shard-00000-of-00002.safetensors", c + "/" + kShard,
                                          std::filesystem::copy_options::overwrite_existing);
             }),
             Contains(kShard));
}

TEST_CASE("manifests that should not be believed are not", "[checkpoint][damage]") {
  const auto edited = [](const std::function<void(nlohmann::json&)>& edit) {
    return rejection([&](const std::string& c) { edit_manifest(c, edit); });
  };
  CHECK_THAT(edited([](auto& m) { m["version"] = 3; }),
             Contains("format version 3, this ltrain reads versions 1 to 2; use the ltrain that wrote it, or "
                      "a newer one"));
  CHECK_THAT(edited([](auto& m) { m["version"] = 0; }), Contains("no such version was ever written"));
  CHECK_THAT(edited([](auto& m) { m["format"] = "x"; }),
             Contains("is not the manifest of an ltrain checkpoint"));
  CHECK_THAT(edited([](auto& m) { m.erase("seed"); }), Contains("lacks \"seed\""));
  CHECK_THAT(edited([](auto& m) { m["extra"] = 1; }), Contains("has the unknown key \"extra\""));
  CHECK_THAT(edited([](auto& m) { m["step"] = -1; }),
             Contains("\"step\" is -1, not a whole number from 0 to 1152921504606846976"));
  // Sums of two must fit: what counts steps, samples and tokens is bounded.
  for (const char* key : {"step", "data_cursor", "consumed_samples", "consumed_tokens", "skipped_steps"})
    CHECK_THAT(edited([&](auto& m) { m[key] = INT64_MAX; }),
               Contains(fmt::format("\"{}\" is 9223372036854775807, not a whole number", key)));
  CHECK_THAT(edited([](auto& m) { m["data"]["sources"][0]["content"] = "x"; }),
             Contains("\"content\" is no hash"));
  CHECK_THAT(edited([](auto& m) { m["data"]["sources"][0]["weight"] = -1; }), Contains("\"weight\""));
  CHECK_THAT(edited([](auto& m) { m["data"].erase("seed"); }), Contains("\"data\": lacks \"seed\""));
  CHECK_THAT(edited([](auto& m) { m["data"]["x\x1b"] = 1; }), Contains("has the unknown key \"x\\x1b\""));
  CHECK_THAT(edited([](auto& m) { m["files"][0]["name"] = "../../secret"; }),
             Contains("has an unexpected name"));
  CHECK_THAT(edited([](auto& m) { m["tensors"]["norm"]["pieces"][0]["file"] = 7; }),
             Contains("lies in file number 7 of 2"));
  CHECK_THAT(edited([](auto& m) { m["tensors"]["norm"]["pieces"][0]["end"] = 1000; }),
             Contains("tensor \"norm\": has a bad piece"));
  CHECK_THAT(edited([](auto& m) {
               m["tensors"]["cube"]["shape"] = {4611686018427387904, 4, 5};
             }),
             Contains("tensor \"cube\""));
  CHECK_THAT(edited([](auto& m) { m["tensors"]["embed"]["pieces"].clear(); }),
             Contains("its pieces hold 0 of 42 elements"));
  CHECK_THAT(
      edited([](auto& m) { m["tensors"]["embed"]["pieces"].push_back(m["tensors"]["embed"]["pieces"][0]); }),
      Contains("tensor \"embed\": two pieces overlap"));
  CHECK_THAT(edited([](auto& m) { m["tensors"]["norm"]["dtype"] = "BF16"; }), Contains("the manifest says"));
  CHECK_THAT(edited([](auto& m) { m["tensors"]["norm"]["pieces"][0]["key"] = "nothing"; }),
             Contains("has no tensor \"nothing\""));
}

TEST_CASE("stray files do no harm, and the manifest is believed over the folder's name",
          "[checkpoint][damage]") {
  const TemporaryFolder folder;
  save_steps(folder.path(), 2, Slicing::flat, {1, 2});
  write_file(folder.path() + "/" + kNewest + "/shard-00002-of-00003.safetensors", "stray");
  write_file(folder.path() + "/step-notes.txt", "a file that begins like a checkpoint");
  std::vector<std::string> notes;
  CHECK(load_and_check(folder.path(), notes) == 2);
  std::filesystem::rename(folder.path() + "/step-00000001", folder.path() + "/step-00000900");
  CHECK(load_and_check(folder.path(), notes) == 2);
}

TEST_CASE("pieces are compared in n log n: 60,000 of them in less than a second", "[checkpoint][damage]") {
  const int64_t n = 60000;
  const auto seconds = [](const Manifest& m, std::string& wrong) {
    const auto start = std::chrono::steady_clock::now();
    wrong = untiled(m);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / time_scale();
  };
  const auto of = [](const Shape& shape, std::vector<Slice> slices) {
    Manifest m;
    TensorParts& t = m.tensors["w"];
    t.shape = shape;
    for (Slice& s : slices) t.pieces.push_back({0, "w", s});
    return m;
  };
  const auto shuffled = [](std::vector<Slice> v) {
    std::shuffle(v.begin(), v.end(), std::mt19937(1));
    return v;
  };
  std::vector<Slice> flat, rows, columns, grid;
  const Shape shape{n, 8}, wide{4, n}, square{300, 400};
  for (int64_t i = 0; i < n; ++i) flat.push_back(Slice::flat(shape, 8 * i, 8 * i + 8));
  for (int64_t i = 0; i < n; ++i) rows.push_back(Slice::box(shape, {i, 0}, {1, 8}));
  for (int64_t i = 0; i < n; ++i) columns.push_back(Slice::box(wide, {0, i}, {4, 1}));
  for (int64_t i = 0; i < n; ++i)  // and two ranges of each box
    grid.push_back(
        Slice::box(square, {i / 2 / 200 * 2, i / 2 % 200 * 2}, {2, 2}).part(static_cast<int>(i % 2), 2));
  std::string wrong;
  for (const auto& [name, s, v] : {std::tuple{"flat", shape, &flat},
                                   {"rows", shape, &rows},
                                   {"columns", wide, &columns},
                                   {"grid", square, &grid}}) {
    INFO(name);
    CHECK(seconds(of(s, shuffled(*v)), wrong) < 1);
    CHECK(wrong == "");
    std::vector<Slice> damaged = shuffled(*v);
    damaged[n / 3] = damaged[n / 2];  // one is a duplicate, one is not
    CHECK(seconds(of(s, damaged), wrong) < 1);
    CHECK_THAT(wrong, Contains("two pieces overlap"));
    damaged = shuffled(*v);
    damaged.pop_back();
    CHECK(seconds(of(s, damaged), wrong) < 1);
    CHECK_THAT(wrong, Contains("its pieces hold "));
  }
  // Hostile: all over each other, one a little beyond the next.
  std::vector<Slice> stairs;
  for (int64_t i = 0; i + 1 < n; ++i) stairs.push_back(Slice::box(shape, {i, 0}, {2, 8}));
  CHECK(seconds(of(shape, shuffled(stairs)), wrong) < 1);
  CHECK(wrong != "");
}

TEST_CASE("tilings: what the fast check says is what comparing all pairs says", "[checkpoint][damage]") {
  std::mt19937 random(3);
  int bad = 0;
  for (int round = 0; round < 4000; ++round) {
    const Shape shape{1 + static_cast<int64_t>(random() % 4), 1 + static_cast<int64_t>(random() % 4),
                      1 + static_cast<int64_t>(random() % 3)};
    // Cut at random, again and again, and then by ranges; one piece in three rounds is moved or doubled.
    std::vector<Slice> pieces{Slice::whole(shape)};
    for (int cut = random() % 6; cut > 0; --cut) {
      const size_t at = random() % pieces.size();
      const Slice s = pieces[at];
      const int d = static_cast<int>(random() % 3);
      if (s.extent[d] < 2) continue;
      const int64_t first = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(s.extent[d] - 1));
      Shape a = s.extent, b = s.extent, offset = s.offset;
      a.dims[d] = first, b.dims[d] -= first, offset.dims[d] += first;
      pieces[at] = Slice::box(shape, s.offset, a);
      pieces.push_back(Slice::box(shape, offset, b));
    }
    const size_t whole = random() % pieces.size();
    const Slice part = pieces[whole];
    pieces[whole] = part.part(0, 2), pieces.push_back(part.part(1, 2));
    if (random() % 3 == 0) {
      Slice& s = pieces[random() % pieces.size()];
      s = pieces[random() % pieces.size()];
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    Manifest m;
    TensorParts& t = m.tensors["w"];
    t.shape = shape;
    int64_t sum = 0;
    bool overlap = false;
    for (size_t i = 0; i < pieces.size(); ++i) {
      sum += pieces[i].elements();
      for (size_t j = 0; j < i; ++j) overlap = overlap || common_elements(pieces[i], pieces[j]) > 0;
      t.pieces.push_back({0, "w", pieces[i]});
    }
    const bool tiles = !overlap && sum == shape.elements();
    bad += !tiles;
    REQUIRE((untiled(m) == "") == tiles);
  }
  CHECK(bad > 500);
}

TEST_CASE("killed at any point of a save, the loader finds the checkpoint before or after, whole",
          "[checkpoint][faults]") {
  int points = 0;
  for (std::string_view point : kFaultPoints) {
    if (point.compare(0, 11, "checkpoint.") != 0) continue;
    ++points;
    // Files of another run have the names of the saves, so that each save sets something aside.
    const bool occupied = point.ends_with("set_aside");
    for (int occurrence : {1, 2, 3}) {
      const TemporaryFolder folder;
      // Three saves with two to keep: the third deletes. Points that every rank passes are passed twice a
      // save.
      INFO(point << " number " << occurrence);
      for (int step = 1; step <= 5 && occupied; ++step) {
        std::filesystem::create_directory(folder.path() + "/" + checkpoint_name(step));
        write_file(folder.path() + "/" + checkpoint_name(step) + "/mine", std::to_string(step));
      }
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        arm_faults(fmt::format("{}:*:{}:kill", point, occurrence));
        try {
          save_steps(folder.path(), 2, Slicing::flat, {1, 2, 3, 4, 5}, 2);
        } catch (...) {
        }
        _exit(0);
      }
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(WIFSIGNALED(status));
      std::vector<std::string> notes;
      int64_t step = -1;
      if (occupied && occurrence == 1)  // nothing is committed yet, and what is there is no checkpoint
        CHECK_THROWS(load_and_check(folder.path(), notes));
      else
        step = load_and_check(folder.path(), notes);
      if (occurrence == 3) CHECK(step >= 1);
      int64_t newest = -1;
      for (const Candidate& c : list_checkpoints(folder.path())) {
        CHECK((c.error.empty() || occupied));  // nothing half-made has a name
        if (c.error.empty()) newest = std::max(newest, c.manifest.info.step);
      }
      CHECK(newest == step);
      // The next run sweeps what is left and goes on.
      step = std::max<int64_t>(step, 0);
      save_steps(folder.path(), 3, Slicing::rows, {step + 1});
      CHECK(load_and_check(folder.path(), notes) == step + 1);
      for (const std::string& name : list_folder(folder.path()))
        CHECK(name.find(".tmp-") == std::string::npos);
      // And what was there before is still there, under one name or the other.
      for (int i = 1; i <= 5 && occupied; ++i) {
        const std::string name = checkpoint_name(i), one = folder.path() + "/" + name + "/mine",
                          other = folder.path() + "/uncommitted-" + name + "/mine";
        CHECK(path_exists(one) + path_exists(other) == 1);
        CHECK(read_file(path_exists(one) ? one : other) == std::to_string(i));
      }
    }
  }
  CHECK(points == 15);
}

TEST_CASE("a FIFO or a folder in the place of a file is refused at once", "[checkpoint][damage]") {
  const auto at_once = [](const std::function<void()>& body) {
    const auto start = std::chrono::steady_clock::now();
    const std::string error = error_of(body);
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 2 * time_scale());
    return error;
  };
  for (const char* name : {"COMMIT", "manifest.json", "shard-00001-of-00002.safetensors"}) {
    const TemporaryFolder folder;
    save_steps(folder.path(), 2, Slicing::flat, {1});
    const std::string path = folder.path() + "/step-00000001/" + name;
    std::filesystem::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0644) == 0);
    INFO(name);
    std::vector<std::string> notes;
    CHECK(at_once([&] { load_and_check(folder.path(), notes, folder.path() + "/step-00000001"); }) != "");
    CHECK_THAT(at_once([&] { read_text_file(path, 100); }), Contains("not a regular file"));
  }
  CHECK_THAT(at_once([] { read_text_file("/dev/zero", 100); }), Contains("not a regular file"));
  CHECK_THAT(at_once([] { read_text_file("/tmp", 100); }), Contains("not a regular file"));
}

TEST_CASE("a rank that fails makes the save fail everywhere, and training goes on", "[checkpoint][faults]") {
  for (const std::string fault : {"checkpoint.before_open:*:3:error", "checkpoint.before_open:*:4:skip",
                                  "checkpoint.mid_write:*:3:error", "checkpoint.before_manifest:*:2:error",
                                  "checkpoint.before_rename:*:2:error"}) {
    INFO(fault);
    const TemporaryFolder folder;
    std::atomic<int> failed{0}, fine{0};
    std::string error;
    arm_faults(fault);
    with_ranks(2, [&](int rank, Communicator& group) {
      auto stream = make_inline_stream("checkpoint");
      State state(rank, 2, Slicing::flat);
      CheckpointOptions options;
      options.folder = folder.path();
      CheckpointWriter writer(options, state.slices(), group, *stream);
      for (int64_t step : {1, 2, 3}) {
        state.fill(step);
        writer.save(make_info(step), state.slices());
      }
      writer.wait();
      for (const SaveReport& r : writer.take_reports()) {
        (r.ok ? fine : failed)++;
        if (!r.ok && r.step != 2) fail(ExitCode::internal, "step {} failed: {}", r.step, r.error);
        if (!r.ok && rank == 0) error = r.error;
      }
    });
    arm_faults("");
    CHECK(failed == 2);  // one save, on both ranks
    CHECK(fine == 4);
    CHECK_FALSE(error.empty());
    if (fault.find("skip") != std::string::npos)
      CHECK_THAT(
          error,
          Contains("rank 0 does not see it: output_dir must be on a file system that all hosts share"));
    CHECK(list_folder(folder.path()) == std::vector<std::string>{".lock", "step-00000001", "step-00000003"});
  }
}

TEST_CASE("a file-size limit fails the save with path and errno, at every byte", "[checkpoint][faults]") {
  const TemporaryFolder folder;
  save_steps(folder.path(), 1, Slicing::flat, {1});
  const int64_t shard = file_size(folder.path() + "/step-00000001/shard-00000-of-00001.safetensors");
  const int64_t manifest = file_size(folder.path() + "/step-00000001/manifest.json");
  for (int64_t limit : {int64_t{1}, int64_t{100}, shard / 2, shard - 1, shard, manifest - 1}) {
    INFO("limit " << limit);
    int channel[2];
    REQUIRE(pipe(channel) == 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string text;
      try {
        auto group = make_single_group("checkpoint", Axis::data);
        auto stream = make_inline_stream("checkpoint");
        State state(0, 1, Slicing::flat);
        CheckpointWriter writer(sync_options(folder.path()), state.slices(), *group, *stream);
        rlimit r{static_cast<rlim_t>(limit), RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &r);
        state.fill(2);
        writer.save(make_info(2), state.slices());
        r.rlim_cur = RLIM_INFINITY;
        setrlimit(RLIMIT_FSIZE, &r);
        text = writer.take_reports().at(0).error;
      } catch (const std::exception& e) {
        text = std::string("thrown: ") + e.what();
      }
      (void)!::write(channel[1], text.data(), text.size());
      _exit(0);
    }
    close(channel[1]);
    std::string text(4096, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(channel[0], text.data(), text.size()))));
    close(channel[0]);
    waitpid(child, nullptr, 0);
    CHECK_THAT(text, Contains("File too large (errno 27)") && Contains("ulimit -f") &&
                         Contains(folder.path() + "/step-00000002.tmp-"));
    std::vector<std::string> notes;
    CHECK(load_and_check(folder.path(), notes) == 1);
    CHECK(list_folder(folder.path()) == std::vector<std::string>{".lock", "step-00000001"});
  }
}

TEST_CASE("a full disk is foreseen at start, and survived later", "[checkpoint][faults]") {
  const TemporaryFolder mount_point;
  if (mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=20m") != 0) {
    skip_test("a full disk is foreseen at start, and survived later: cannot mount a tmpfs (not root)");
    return;
  }
  {
    const std::string folder = mount_point.path() + "/checkpoints";
    auto group = make_single_group("checkpoint", Axis::data);
    auto stream = make_inline_stream("checkpoint");
    std::vector<float> values(2 << 20, 1.0f);  // 8 MiB: two fit, three do not
    const std::vector<StateSlice> slices{{"w", DType::f32, Slice::whole({2 << 20}), values.data()}};
    CHECK_THAT(error_of([&] { CheckpointWriter(sync_options(folder), slices, *group, *stream); }),
               Contains(folder +
                        ": 3 checkpoints of 8.0 MiB need 27.0 MiB, and 20.0 MiB are free; free space there"));
    CheckpointOptions options = sync_options(folder);
    options.planned_saves = 2;
    CheckpointWriter writer(options, slices, *group, *stream);
    const auto save = [&](int64_t step) {
      writer.save(make_info(step), slices);
      return writer.take_reports().at(0);
    };
    CHECK(save(1).ok);
    CHECK(save(2).ok);
    const SaveReport third = save(3);  // more than was planned
    CHECK_FALSE(third.ok);
    CHECK_THAT(third.error, Contains("a checkpoint of 8.0 MiB does not fit into the"));
    CHECK(list_folder(folder) == std::vector<std::string>{".lock", "step-00000001", "step-00000002"});
    // Others fill the disk between the check and the write.
    std::filesystem::remove_all(folder + "/step-00000001");
    arm_faults(fmt::format("checkpoint.before_open:*:1:sleep={:.0f}", 500 * time_scale()));
    CheckpointOptions background = options;
    background.folder = folder + "2";
    background.async_save = true;
    background.planned_saves = 1;
    CheckpointWriter second(background, slices, *group, *stream);
    second.save(make_info(4), slices);
    usleep(static_cast<useconds_t>(2e5 * time_scale()));
    write_file(mount_point.path() + "/hog", std::string(10 << 20, 'x'));
    second.wait();
    arm_faults("");
    const SaveReport full = second.take_reports().at(0);
    CHECK_FALSE(full.ok);
    CHECK_THAT(full.error, Contains("No space left on device (errno 28)") && Contains("free space there") &&
                               Contains(".safetensors: "));
    CHECK(list_folder(folder + "2") == std::vector<std::string>{".lock"});
    std::filesystem::remove(mount_point.path() + "/hog");
    CHECK(save(5).ok);  // and training goes on
  }
  CHECK(umount(mount_point.path().c_str()) == 0);
}
