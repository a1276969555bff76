// Slices that never change: written once a run, and in every checkpoint.
#include <catch2/catch.hpp>
#include <filesystem>

#include <sys/stat.h>

#include "tests/runtime/checkpoint/support.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kElements = 50'000;

/// A rank's halves of a tensor that changes and, with `frozen`, of one that does not.
struct Halves {
  std::vector<float> changing, constant;
  std::vector<StateSlice> slices;
  Halves(int rank, int64_t step, bool frozen = true)
      : changing(kElements / 2, static_cast<float>(step)), constant(kElements / 2, 7.0f) {
    const int64_t begin = rank * kElements / 2, end = begin + kElements / 2;
    slices = {{"w", DType::f32, Slice::flat({kElements}, begin, end), changing.data()}};
    if (frozen)
      slices.push_back({"f", DType::f32, Slice::flat({kElements}, begin, end), constant.data(), true});
  }
};

/// Saves steps with two ranks. `before`: called before each save, on one rank alone.
std::vector<SaveReport> save_steps(const std::string& folder, const std::vector<int64_t>& steps,
                                   const std::function<void(int64_t)>& before = {}) {
  std::vector<SaveReport> reports;
  with_ranks(2, [&](int rank, Communicator& group) {
    auto stream = make_inline_stream("checkpoint");
    CheckpointWriter writer(sync_options(folder), Halves(rank, 0).slices, group, *stream);
    for (const int64_t step : steps) {
      if (rank == 0 && before) before(step);
      const Halves state(rank, step);
      if (!writer.save(make_info(step), state.slices).empty()) fail(ExitCode::internal, "not finite");
      if (rank == 0)
        for (SaveReport& r : writer.take_reports()) reports.push_back(std::move(r));
    }
  });
  return reports;
}

ino_t inode(const std::string& file) {
  struct stat s {};
  REQUIRE(::stat(file.c_str(), &s) == 0);
  return s.st_ino;
}

/// Reads both tensors of the newest checkpoint with one rank, hashes included.
void check_newest(const std::string& folder, int64_t step) {
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  std::vector<std::string> notes;
  ResumeOptions resume;
  resume.folder = folder;
  auto reader = CheckpointReader::open(resume, *group, *stream, notes);
  REQUIRE(reader->info().step == step);
  std::vector<float> w(kElements), f(kElements);
  reader->read("w", DType::f32, Slice::whole({kElements}), w.data());
  reader->read("f", DType::f32, Slice::whole({kElements}), f.data());
  reader->finish(*group, *stream);
  CHECK(std::count(w.begin(), w.end(), static_cast<float>(step)) == kElements);
  CHECK(std::count(f.begin(), f.end(), 7.0f) == kElements);
}

}  // namespace

TEST_CASE("constant slices are written once, and are in every checkpoint after rotation", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::vector<SaveReport> reports = save_steps(folder.path(), {1, 2, 3, 4});
  REQUIRE(reports.size() == 4);
  for (const SaveReport& r : reports) CHECK(r.ok);
  CHECK(reports[0].linked_bytes == 0);
  CHECK(reports[3].linked_bytes >= kElements * 4);
  CHECK(list_checkpoints(folder.path()).size() == 2);
  const std::string a = folder.path() + "/step-00000003/", b = folder.path() + "/step-00000004/";
  for (const int rank : {0, 1}) {
    CHECK(inode(a + shard_name(rank, 4)) != inode(b + shard_name(rank, 4)));
    CHECK(inode(a + shard_name(2 + rank, 4)) == inode(b + shard_name(2 + rank, 4)));
  }
  check_newest(folder.path(), 4);
  std::filesystem::remove_all(folder.path() + "/step-00000003");
  check_newest(folder.path(), 4);
}

TEST_CASE("constant slices are written again where the earlier file is gone", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::vector<SaveReport> reports = save_steps(folder.path(), {1, 2}, [&](int64_t step) {
    if (step == 2) std::filesystem::remove_all(folder.path() + "/step-00000001");
  });
  REQUIRE(reports.size() == 2);
  CHECK(reports[1].ok);
  CHECK(reports[1].linked_bytes == 0);
  check_newest(folder.path(), 2);
}

TEST_CASE("a rank may have no constant slices, and one damaged bit of them is seen", "[checkpoint]") {
  const TemporaryFolder folder;
  with_ranks(2, [&](int rank, Communicator& group) {
    auto stream = make_inline_stream("checkpoint");
    std::vector<float> all(kElements, 7.0f);
    Halves state(rank, 1, false);
    if (rank == 1) state.slices.push_back({"f", DType::f32, Slice::whole({kElements}), all.data(), true});
    CheckpointWriter writer(sync_options(folder.path()), state.slices, group, *stream);
    writer.save(make_info(1), state.slices);
    writer.save(make_info(2), state.slices);
  });
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  std::vector<std::string> notes;
  ResumeOptions resume;
  resume.folder = folder.path();
  CHECK(CheckpointReader::open(resume, *group, *stream, notes)->info().step == 2);
  // Both checkpoints have the one copy.
  flip_bit(folder.path() + "/step-00000002/" + shard_name(3, 4), 9000);
  CHECK_THAT(error_of([&] { CheckpointReader::open(resume, *group, *stream, notes); }),
             Catch::Contains("step-00000001") && Catch::Contains("step-00000002"));
}
