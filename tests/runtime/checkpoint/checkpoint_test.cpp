// Saving under one layout and loading under another; resume rules; rotation; asynchronous saves.
#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "base/fault_point.h"
#include "base/time_scale.h"
#include "runtime/checkpoint/finite.h"
#include "runtime/files/write_file.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;
using Catch::Contains;

namespace {

struct ArmedFaults {
  explicit ArmedFaults(const std::string& specification) { arm_faults(specification); }
  ~ArmedFaults() { arm_faults(""); }
};

std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> all;
  for (const std::string& name : list_folder(folder))
    if (name[0] != '.') all.push_back(name);
  return all;
}

}  // namespace

TEST_CASE("a checkpoint of any layout loads under any other", "[checkpoint]") {
  for (Slicing written : {Slicing::flat, Slicing::rows, Slicing::columns, Slicing::replicated_parts})
    for (int writers : {1, 2, 3}) {
      const TemporaryFolder folder;
      save_steps(folder.path(), writers, written, {5});
      for (Slicing wanted : {Slicing::flat, Slicing::rows, Slicing::columns})
        for (int readers : {1, 2, 4}) {
          INFO("written " << static_cast<int>(written) << " by " << writers << ", read "
                          << static_cast<int>(wanted) << " by " << readers);
          std::atomic<int> wrong{0}, elements{0};
          with_ranks(readers, [&](int rank, Communicator& group) {
            auto stream = make_inline_stream("checkpoint");
            ResumeOptions options;
            options.folder = folder.path();
            std::vector<std::string> notes;
            auto reader = CheckpointReader::open(options, group, *stream, notes);
            if (!reader) fail(ExitCode::storage, "nothing found");
            State state(rank, readers, wanted), right(rank, readers, wanted);
            right.fill(5);
            for (size_t i = 0; i < state.slices().size(); ++i) {
              const StateSlice& s = state.slices()[i];
              reader->read(s.name, s.dtype, s.slice, state.data(i));
              for (int64_t k = 0; k < s.slice.elements(); ++k) wrong += state.data(i)[k] != right.data(i)[k];
              elements += static_cast<int>(s.slice.elements());
            }
            reader->finish(group, *stream);
            if (reader->info().recipe != make_info(5).recipe || reader->info().loss != make_info(5).loss)
              ++wrong;
          });
          CHECK(wrong == 0);
          CHECK(elements == 7 * 6 + 6 * 12 + 6 + 1 + 60);
        }
    }
}

TEST_CASE("a rank reads its byte ranges and little more", "[checkpoint]") {
  const TemporaryFolder folder;
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  const Shape shape{1024, 256};
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<StateSlice> slices{{"w", DType::f32, Slice::whole(shape), values.data()}};
  CheckpointWriter writer(sync_options(folder.path()), slices, *group, *stream);
  writer.save(make_info(1), slices);
  REQUIRE(writer.take_reports().at(0).ok);
  std::vector<std::string> notes;
  ResumeOptions options;
  options.folder = folder.path();
  auto reader = CheckpointReader::open(options, *group, *stream, notes);
  const Slice part = Slice::shard(shape, 0, 3, 8);
  std::vector<float> read(static_cast<size_t>(part.elements()));
  reader->read("w", DType::f32, part, read.data());
  CHECK(reader->bytes_read() == part.elements() * 4);
  CHECK(read[0] == 3 * 128 * 256);
  // A part of the tensor is not all of it.
  CHECK_THAT(error_of([&] { reader->finish(*group, *stream); }),
             Contains("1 tensors of the checkpoint have no place in this run: \"w\" [1024, 256] (32768 of "
                      "262144 elements read)"));
  CHECK_NOTHROW(reader->finish(*group, *stream, [](const std::string& name) { return name != "w"; }));
  CHECK_THAT(error_of([&] { reader->read("v", DType::f32, part, read.data()); }),
             Contains("has no tensor \"v\""));
  CHECK_THAT(error_of([&] { reader->read("w", DType::bf16, part, read.data()); }),
             Contains("is f32 [1024, 256], and bf16"));
  CHECK_THAT(error_of([&] {
               reader->read("w", DType::f32, Slice::whole({2, 2}), read.data());
             }),
             Contains("and f32 [2, 2] is wanted"));
}

TEST_CASE("slices that do not make up the state are refused before training", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto plan = [&](const Slice& a, const Slice& b) {
    return error_of([&] {
      with_ranks(2, [&](int rank, Communicator& group) {
        auto stream = make_inline_stream("checkpoint");
        std::vector<float> values(64);
        CheckpointWriter writer(sync_options(folder.path()), {{"w", DType::f32, rank ? b : a, values.data()}},
                                group, *stream);
      });
    });
  };
  const Shape shape{4, 4};
  CHECK(plan(Slice::flat(shape, 0, 7), Slice::flat(shape, 7, 16)) == "");  // negative control
  CHECK_THAT(plan(Slice::flat(shape, 0, 7), Slice::flat(shape, 8, 16)),
             Contains("its pieces hold 15 of 16 elements"));
  CHECK_THAT(plan(Slice::whole(shape), Slice::whole(shape)), Contains("two pieces overlap"));
  CHECK_THAT(plan(Slice::shard(shape, 0, 0, 2), Slice::shard(shape, 1, 1, 2)),
             Contains("two pieces overlap"));
}

TEST_CASE("what resume finds decides between a start, a resume and an error", "[checkpoint]") {
  const TemporaryFolder folder;
  std::vector<std::string> notes;
  CHECK(load_and_check(folder.path(), notes) == -1);
  CHECK_THAT(notes.at(0), Contains("no checkpoints: a fresh start"));
  CHECK(load_and_check(folder.path() + "/absent", notes) == -1);
  CHECK(load_and_check(folder.path(), notes, "never") == -1);
  CHECK_THAT(error_of([&] { load_and_check(folder.path(), notes, folder.path()); }),
             Contains("there is no checkpoint in it"));
  CHECK_THAT(error_of([&] { load_and_check(folder.path(), notes, folder.path() + "/step-00000007"); }),
             Contains("there is no such file or folder"));

  save_steps(folder.path(), 2, Slicing::rows, {1, 2, 3}, 0);
  CHECK(load_and_check(folder.path(), notes) == 3);
  CHECK(load_and_check(folder.path(), notes, folder.path() + "/step-00000002") == 2);
  CHECK(load_and_check(folder.path(), notes, folder.path() + "/step-00000002/") == 2);
  CHECK(load_and_check("/nowhere", notes, folder.path()) == 3);
  CHECK_THAT(notes.back(), Contains("step-00000003, step 3, all hashes verified"));

  std::filesystem::create_directory(folder.path() + "/step-00000009");  // made, and never filled
  notes.clear();
  CHECK(load_and_check(folder.path(), notes) == 3);
  for (int step : {1, 2, 3}) std::filesystem::remove(folder.path() + "/" + checkpoint_name(step) + "/COMMIT");
  // All that is there is unusable: not a fresh start.
  CHECK_THAT(error_of([&] { load_and_check(folder.path(), notes); }),
             Contains("no checkpoint can be used") &&
                 Contains("step-00000009: no COMMIT record: the save was not finished") &&
                 Contains("To start afresh, set checkpoint.resume: never"));
}

TEST_CASE("a checkpoint of another model is refused by key", "[checkpoint]") {
  CHECK(model_mismatch({{"a", "1"}, {"attn_pdrop", "0.1"}}, {{"a", "1"}, {"attn_pdrop", "0.0"}}) == "");
  CHECK(model_mismatch({{"hidden_size", "64"}}, {{"hidden_size", "128"}}) ==
        "hidden_size is 64 in the checkpoint and 128 in the recipe");
  CHECK(
      model_mismatch({{"a", "1"}}, {{"b", "2"}}) ==
      "a is 1 in the checkpoint and absent in the recipe; b is absent in the checkpoint and 2 in the recipe");
  const std::string rate = "moe.router.bias_update_rate";  // with a bias, or without
  CHECK(model_mismatch({{rate, "0.1"}}, {{rate, "0.2"}}) == "");
  CHECK(model_mismatch({{rate, "0.1"}}, {{rate, "0"}}) ==
        rate + " is 0.1 in the checkpoint and 0 in the recipe");
  CHECK(model_mismatch({{"moe.balance.kind", "none"}}, {{"moe.balance.coeff", "0.1"}}) == "");
  const TemporaryFolder folder;
  save_steps(folder.path(), 1, Slicing::rows, {1});
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  ResumeOptions options;
  options.folder = folder.path();
  // The checkpoint has no hidden_act and no attention_bias, as those from before these keys.
  options.model = {{"hidden_size", "128"},
                   {"attn_pdrop", "0.5"},
                   {"architecture", "llama"},
                   {"hidden_act", "silu"},
                   {"attention_bias", "false"}};
  std::vector<std::string> notes;
  CHECK_THAT(error_of([&] { CheckpointReader::open(options, *group, *stream, notes); }),
             Contains("is of another model: hidden_size is 64 in the checkpoint and 128 in the recipe; make "
                      "the recipe agree"));
  options.model[0].second = "64";
  CHECK(CheckpointReader::open(options, *group, *stream, notes));
  options.model[3].second = "gelu";
  options.model[4].second = "true";
  CHECK_THAT(error_of([&] { CheckpointReader::open(options, *group, *stream, notes); }),
             Contains("attention_bias is false in the checkpoint and true in the recipe") &&
                 Contains("hidden_act is silu in the checkpoint and gelu in the recipe"));
}

TEST_CASE("rotation keeps healthy checkpoints, not young ones", "[checkpoint]") {
  const TemporaryFolder folder;
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  State state(0, 1, Slicing::rows);
  CheckpointWriter writer(sync_options(folder.path(), 2), state.slices(), *group, *stream);
  const auto save = [&](int64_t step, double loss) {
    CheckpointInfo info = make_info(step);
    info.loss = loss;
    state.fill(step);
    writer.save(info, state.slices());
    REQUIRE(writer.take_reports().at(0).ok);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinite = std::numeric_limits<double>::infinity();
  for (int64_t step : {1, 2, 3}) save(step, 1.0);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-00000002", "step-00000003"});
  save(4, nan);
  save(5, infinite);
  save(6, nan);  // a run that has diverged: the two healthy ones stay, one sick one for whoever wants to look
  CHECK(names(folder.path()) == std::vector<std::string>{"step-00000002", "step-00000003", "step-00000006"});
  std::vector<std::string> notes;
  CHECK(load_and_check(folder.path(), notes) == 3);
  CHECK_THAT(notes.at(0), Contains("step-00000006: its loss or gradient norm is not finite"));
  CHECK(load_and_check(folder.path(), notes, folder.path() + "/step-00000006") ==
        6);  // a path by name is taken
  save(7, 1.0);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-00000003", "step-00000007"});
  write_file(folder.path() + "/step-00000003/KEEP", "");
  for (int64_t step : {8, 9, 10}) save(step, 1.0);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-00000003", "step-00000009", "step-00000010"});
  // Unreadable entries are neither counted nor deleted.
  flip_bit(folder.path() + "/step-00000010/manifest.json", 20);
  save(11, 1.0);
  CHECK(names(folder.path()) ==
        std::vector<std::string>{"step-00000003", "step-00000009", "step-00000010", "step-00000011"});
}

TEST_CASE("rotation keeps the checkpoint of the lowest held-out loss, and a link names it", "[checkpoint]") {
  const TemporaryFolder folder;
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  const auto save = [&](bool keep_best,
                        const std::vector<std::pair<int64_t, std::optional<double>>>& losses) {
    State state(0, 1, Slicing::rows);
    CheckpointOptions options = sync_options(folder.path(), 2);
    options.begun = losses.front().first - 1;
    options.keep.best = keep_best;
    CheckpointWriter writer(options, state.slices(), *group, *stream);
    for (const auto& [step, loss] : losses) {
      state.fill(step);
      CheckpointInfo info = make_info(step);
      info.eval_loss = loss;
      writer.save(info, state.slices());
      for (const SaveReport& report : writer.take_reports()) REQUIRE(report.ok);
    }
  };
  const auto there = [&] {
    std::vector<int64_t> steps;
    for (const Candidate& c : list_checkpoints(folder.path())) steps.push_back(c.step());
    return steps;  // newest first
  };
  const auto linked = [&] { return read_checkpoint(folder.path() + "/" + kBestLink); };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  save(true, {{1, 3.0}, {2, 2.0}, {3, 2.5}, {4, std::nullopt}, {5, 2.0}, {6, nan}});
  CHECK(there() == std::vector<int64_t>{6, 5, 2});  // the earlier one of equal losses
  CHECK(linked().step() == 2);
  CHECK(linked().manifest.info.eval_loss == 2.0);
  // A later run knows it by the manifests, and a lower loss takes its place.
  save(true, {{7, 2.25}});
  CHECK(there() == std::vector<int64_t>{7, 6, 2});
  save(true, {{8, 1.5}, {9, 1.75}, {10, 1.75}});
  CHECK(there() == std::vector<int64_t>{10, 9, 8});
  CHECK(linked().step() == 8);
  // Without the key rotation goes by age, and leaves no link to what is gone.
  save(false, {{11, 1.75}});
  CHECK(there() == std::vector<int64_t>{11, 10});
  CHECK(!std::filesystem::is_symlink(folder.path() + "/" + kBestLink));
}

TEST_CASE("rotation keeps the healthy checkpoints of every n-th step", "[checkpoint]") {
  const TemporaryFolder folder;
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  State state(0, 1, Slicing::rows);
  CheckpointOptions options = sync_options(folder.path(), 2);
  options.keep.every = 3;
  options.last_step = 12;
  CheckpointWriter writer(options, state.slices(), *group, *stream);
  for (int64_t step = 1; step <= 10; ++step) {
    state.fill(step);
    CheckpointInfo info = make_info(step);
    info.healthy = step != 6;
    writer.save(info, state.slices());
    for (const SaveReport& report : writer.take_reports()) REQUIRE(report.ok);
  }
  CHECK(names(folder.path()) == std::vector<std::string>{"step-00000003", "step-00000009", "step-00000010"});
  const std::vector<Candidate> found = list_checkpoints(folder.path());
  const int64_t one = found[0].manifest.bytes();
  CHECK(removable_bytes(found, 10, options.keep) == one);  // the one of step 10
  CHECK(removable_bytes(found, 10, {.latest = 2}) == 3 * one);
  CHECK(removable_bytes(found, 10, {.latest = 0}) == 0);
}

TEST_CASE("what has the name of a save gets another one, and nothing is lost", "[checkpoint]") {
  const TemporaryFolder folder;
  save_steps(folder.path(), 2, Slicing::rows, {1, 2});
  const std::string shard = "/shard-00001-of-00002.safetensors";
  flip_bit(folder.path() + "/step-00000002" + shard, 600);
  const std::string flipped = read_file(folder.path() + "/step-00000002" + shard);
  std::vector<std::string> notes;
  CHECK(load_and_check(folder.path(), notes) == 1);
  save_steps(folder.path(), 1, Slicing::rows, {2});  // another layout, the same name
  CHECK(load_and_check(folder.path(), notes) == 2);
  // Only hashes show the damage, and this writer was not told of it.
  CHECK(names(folder.path()) ==
        std::vector<std::string>{"step-00000001", "step-00000002", "superseded-step-00000002"});
  CHECK(read_file(folder.path() + "/superseded-step-00000002" + shard) == flipped);
  CHECK(names(folder.path() + "/step-00000002") ==
        std::vector<std::string>{"COMMIT", "manifest.json", "shard-00000-of-00001.safetensors"});
  const auto aside = list_set_aside(folder.path());
  REQUIRE(aside.size() == 1);
  CHECK(aside[0].aside == Aside::superseded);
  CHECK(aside[0].step() == 2);
  // Rotation neither counts nor removes it.
  save_steps(folder.path(), 1, Slicing::rows, {3, 4, 5});
  CHECK(names(folder.path()) ==
        std::vector<std::string>{"step-00000004", "step-00000005", "superseded-step-00000002"});
}

TEST_CASE("a folder gets the name of what is wrong with it", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto aside = [&](const std::function<void(const std::string&)>& damage, bool told = false) {
    save_steps(folder.path(), 1, Slicing::rows, {1}, 0);
    damage(folder.path() + "/step-00000001");
    const std::string name = set_aside(list_checkpoints(folder.path()).at(0), told);
    CHECK(list_checkpoints(folder.path()).empty());
    return name;
  };
  const auto remove = [](const char* file) {
    return [file](const std::string& c) { std::filesystem::remove(c + "/" + file); };
  };
  CHECK(aside([](const std::string&) {}) == "superseded-step-00000001");
  CHECK(aside([](const std::string&) {}) == "superseded-step-00000001-2");
  CHECK(aside([](const std::string&) {}, true) == "damaged-step-00000001");
  CHECK(aside(remove("COMMIT")) == "uncommitted-step-00000001");
  CHECK(aside(remove("manifest.json")) == "damaged-step-00000001-2");
  CHECK(aside(remove("shard-00000-of-00001.safetensors")) == "damaged-step-00000001-3");
  CHECK(list_set_aside(folder.path()).size() == 6);
}

TEST_CASE("a pinned checkpoint is never replaced, not even one that appears while the run is on its way",
          "[checkpoint]") {
  const TemporaryFolder folder;
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  State state(0, 1, Slicing::rows);
  const auto writer = [&](int64_t begun, int64_t last) {
    CheckpointOptions o = sync_options(folder.path());
    o.begun = begun;
    o.last_step = last;
    return std::make_unique<CheckpointWriter>(o, state.slices(), *group, *stream);
  };
  save_steps(folder.path(), 1, Slicing::rows, {1, 2, 3}, 0);
  write_file(folder.path() + "/step-00000003/KEEP", "");
  CHECK_THAT(error_of([&] { writer(1, 5); }), Contains("step-00000003: is pinned by its file KEEP"));
  CHECK_NOTHROW(writer(1, 2));
  CHECK_NOTHROW(writer(3, 5));
  std::filesystem::remove(folder.path() + "/step-00000003/KEEP");
  auto w = writer(1, 5);
  CHECK(w->notes().size() == 2);  // 2 and 3 are of the branch that is left
  write_file(folder.path() + "/step-00000003/KEEP", "");
  const std::string before = read_file(folder.path() + "/step-00000003/manifest.json");
  state.fill(3);
  CHECK(w->save(make_info(3), state.slices()) == "");
  const SaveReport r = w->take_reports().at(0);
  CHECK_FALSE(r.ok);
  CHECK_THAT(r.error, Contains("is pinned by its file KEEP"));
  CHECK(read_file(folder.path() + "/step-00000003/manifest.json") == before);
  CHECK(path_exists(folder.path() + "/step-00000003/KEEP"));
}

TEST_CASE("a state with one element that is not finite is not saved, wherever it is", "[checkpoint]") {
  const TemporaryFolder folder;
  const double infinite = std::numeric_limits<double>::infinity();
  int saves = 0;
  for (const double bad : {std::nan(""), infinite, -infinite})
    for (const size_t element : {size_t{0}, size_t{30000}, size_t{69999}})
      for (const bool is_last_rank : {false, true}) {
        std::vector<std::string> said(2);
        with_ranks(2, [&](int rank, Communicator& group) {
          auto stream = make_inline_stream("checkpoint");
          std::vector<float> values(70000, 3.0e38f);  // finite, if only just
          const Shape shape{140000};
          const std::vector<StateSlice> slices{
              {"w", DType::f32, Slice::flat(shape, rank * 70000, rank * 70000 + 70000), values.data()}};
          CheckpointWriter writer(sync_options(folder.path()), slices, group, *stream);
          if (is_last_rank == (rank == 1)) values[element] = static_cast<float>(bad);
          said[static_cast<size_t>(rank)] = writer.save(make_info(1), slices);
          if (!writer.take_reports().empty()) fail(ExitCode::internal, "a report of what was not saved");
        });
        CHECK(said[0] == "1 of 140000 elements are not finite, the first in w");
        CHECK(said[1] == said[0]);
        ++saves;
      }
  CHECK(saves == 18);
  CHECK(list_folder(folder.path()) == std::vector<std::string>{".lock"});
}

TEST_CASE("numbers of every type are told finite from not, at every place of a block", "[checkpoint]") {
  const auto check = [](DType type, auto bits, std::vector<uint64_t> finite,
                        std::vector<uint64_t> not_finite) {
    using Bits = decltype(bits);
    INFO(dtype_name(type));
    std::mt19937_64 random(1);
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{300}, int64_t{70001}, int64_t{200000}}) {
      std::vector<Bits> from(static_cast<size_t>(n)), to(from.size());
      for (Bits& b : from) b = static_cast<Bits>(finite[random() % finite.size()]);
      CHECK(count_not_finite(type, from.data(), n) == 0);
      CHECK(copy_and_check(type, to.data(), from.data(), n) == 0);
      CHECK(to == from);
      int64_t bad = 0;
      for (size_t i = 0; i < from.size(); i += 1 + random() % 97, ++bad)
        from[i] = static_cast<Bits>(not_finite[random() % not_finite.size()]);
      CHECK(count_not_finite(type, from.data(), n) == bad);
      CHECK(copy_and_check(type, to.data(), from.data(), n) == bad);
      CHECK(to == from);
    }
  };
  check(DType::f32, uint32_t{}, {0, 0x80000000, 0x7f7fffff, 0xff7fffff, 1, 0x3f800000},
        {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff});
  check(DType::f64, uint64_t{}, {0, 1, 0x7fefffffffffffff, 0xffefffffffffffff, 0x3ff0000000000000},
        {0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0xfff0000000000001});
  check(DType::bf16, uint16_t{}, {0, 0x7f7f, 0xff7f, 1, 0x3f80}, {0x7f80, 0xff80, 0x7fc0, 0xffff});
  check(DType::f16, uint16_t{}, {0, 0x7bff, 0xfbff, 1, 0x3c00}, {0x7c00, 0xfc00, 0x7e00, 0xffff});
  check(DType::f8e5m2, uint8_t{}, {0, 0x7b, 0xfb, 1}, {0x7c, 0xfc, 0x7e, 0xff});
  check(DType::f8e4m3, uint8_t{}, {0, 0x7e, 0xfe, 1, 0x78}, {0x7f, 0xff});
  const std::vector<int64_t> whole(100, -1);
  for (const DType type : {DType::i32, DType::i64, DType::u8, DType::u16, DType::u32})
    CHECK(count_not_finite(type, whole.data(), 100) == 0);
}

TEST_CASE("debris of dead saves is swept, and a folder in use is refused", "[checkpoint]") {
  const std::string rate = "moe.router.bias_update_rate";  // with a bias, or without
  CHECK(model_mismatch({{rate, "0.1"}}, {{rate, "0.2"}}) == "");
  CHECK(model_mismatch({{rate, "0.1"}}, {{rate, "0"}}) ==
        rate + " is 0.1 in the checkpoint and 0 in the recipe");
  CHECK(model_mismatch({{"moe.balance.kind", "none"}}, {{"moe.balance.coeff", "0.1"}}) == "");
  const TemporaryFolder folder;
  save_steps(folder.path(), 1, Slicing::rows, {1});
  std::filesystem::create_directory(folder.path() + "/step-00000002.tmp-0123");
  write_file(folder.path() + "/step-00000002.tmp-0123/shard", "x");
  std::filesystem::create_directory(folder.path() + "/mine");
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  State state(0, 1, Slicing::rows);
  CheckpointOptions options = sync_options(folder.path());
  options.begun = 1;
  CheckpointWriter writer(options, state.slices(), *group, *stream);
  REQUIRE(writer.notes().size() == 1);
  CHECK_THAT(writer.notes()[0],
             Contains("removed step-00000002.tmp-0123, left by a save that did not finish"));
  CHECK(names(folder.path()) == std::vector<std::string>{"mine", "step-00000001"});
  CHECK_THAT(
      error_of([&] { CheckpointWriter(sync_options(folder.path()), state.slices(), *group, *stream); }),
      Contains(fmt::format("another run writes its checkpoints here (process {} on ", getpid())));
}

TEST_CASE("an asynchronous save holds the step at which it was taken", "[checkpoint][async]") {
  const std::string sleep = fmt::format("checkpoint.before_open:*:1:sleep={:.0f}", 200 * time_scale());
  const ArmedFaults slow(sleep);
#ifdef __SANITIZE_THREAD__  // the negative control is a data race on purpose
  const std::vector<bool> controls{false};
#else
  const std::vector<bool> controls{false, true};
#endif
  // broken: the source is its own staging buffer, as if there were no snapshot
  for (const bool broken : controls) {
    const TemporaryFolder folder;
    auto group = make_single_group("checkpoint", Axis::data);
    auto stream = make_inline_stream("checkpoint");
    std::vector<float> values(1024, 1.0f);
    std::vector<StateSlice> slices{{"w", DType::f32, Slice::whole({1024}), values.data()}};
    arm_faults(sleep);
    CheckpointOptions options;
    options.folder = folder.path();
    if (broken) options.staging = values.data();
    CheckpointWriter writer(options, slices, *group, *stream);
    writer.save(make_info(1), slices);
    CHECK(writer.take_reports().empty());  // still being written
    for (float& v : values) v = 2.0f;      // the next step
    writer.wait();
    const auto reports = writer.take_reports();
    REQUIRE(reports.size() == 1);
    CHECK(reports[0].ok);
    CHECK(reports[0].write_seconds > 0.15 * time_scale());
    CHECK(reports[0].stall_seconds < 0.15 * time_scale());
    std::vector<std::string> notes;
    ResumeOptions resume;
    resume.folder = folder.path();
    auto reader = CheckpointReader::open(resume, *group, *stream, notes);
    std::vector<float> read(1024);
    reader->read("w", DType::f32, Slice::whole({1024}), read.data());
    int old = 0;
    for (float v : read) old += v == 1.0f;
    CHECK(old == (broken ? 0 : 1024));  // negative control: without a snapshot the next step is what is saved
  }
}

TEST_CASE("a save waits for the one before, and says so", "[checkpoint][async]") {
  const TemporaryFolder folder;
  const ArmedFaults slow("checkpoint.before_open:*:1:sleep=500");
  with_ranks(2, [&](int rank, Communicator& group) {
    auto stream = make_inline_stream("checkpoint");
    State state(rank, 2, Slicing::flat);
    CheckpointOptions options;
    options.folder = folder.path();
    CheckpointWriter writer(options, state.slices(), group, *stream);
    for (int64_t step : {1, 2}) {
      state.fill(step);
      writer.save(make_info(step), state.slices());
    }
    writer.save(make_info(2), state.slices());
    writer.wait();
    const auto reports = writer.take_reports();
    if (reports.size() != 3 || !reports[0].ok || !reports[1].ok)
      fail(ExitCode::internal, "{} reports", reports.size());
    if (reports[1].notes.empty() || reports[1].notes[0].find("for the save of step 1") == std::string::npos)
      fail(ExitCode::internal, "does not say that it waited");
    if (reports[1].stall_seconds < 0.1) fail(ExitCode::internal, "stalled only {}", reports[1].stall_seconds);
    if (reports[2].notes.back() != "this step is saved already") fail(ExitCode::internal, "saved twice");
  });
  std::vector<std::string> notes;
  CHECK(load_and_check(folder.path(), notes) == 2);
}
