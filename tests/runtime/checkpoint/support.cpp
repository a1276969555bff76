#include "tests/runtime/checkpoint/support.h"

#include <catch2/catch.hpp>
#include <thread>

#include "runtime/files/write_file.h"
#include "tests/support/read_file.h"

namespace ltrain::test {

void flip_bit(const std::string& path, int64_t byte, int bit) {
  std::string bytes = read_file(path);
  bytes.at(static_cast<size_t>(byte)) ^= static_cast<char>(1 << bit);
  write_file(path, bytes);
}

void with_ranks(int world, const std::function<void(int, Communicator&)>& body) {
  std::vector<std::unique_ptr<Communicator>> groups;
  if (world == 1)
    groups.push_back(make_single_group("checkpoint", Axis::data));
  else
    groups = make_in_process_group(world, "checkpoint", Axis::data);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        body(r, *groups[static_cast<size_t>(r)]);
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
}

float expected_value(const std::string& name, int64_t step, int64_t i) {
  return static_cast<float>(name.size() * 1000 + step * 100) + static_cast<float>(i) * 0.25f;
}

const std::vector<std::pair<std::string, Shape>>& State::tensors() {
  static const std::vector<std::pair<std::string, Shape>> all = {{"embed", {7, 6}},
                                                                 {"layers.0.weight", {6, 12}},
                                                                 {"norm", {6}},
                                                                 {"scalar", Shape{}},
                                                                 {"cube", {3, 4, 5}}};
  return all;
}

State::State(int rank, int world, Slicing cut) {
  // `flat`: one buffer of all tensors, cut into equal pieces as ZeRO cuts a bucket.
  int64_t total = 0, at = 0;
  for (const auto& [name, shape] : tensors()) total += shape.elements();
  const int64_t from = total * rank / world, to = total * (rank + 1) / world;
  for (const auto& [name, shape] : tensors()) {
    StateSlice s{name, DType::f32, Slice::whole(shape), nullptr};
    const int64_t n = shape.elements();
    if (cut == Slicing::flat)
      s.slice = s.slice.range(std::clamp<int64_t>(from - at, 0, n), std::clamp<int64_t>(to - at, 0, n));
    else if (cut == Slicing::replicated_parts || shape.rank == 0)
      s.slice = s.slice.part(rank, world);
    else
      s.slice = Slice::shard(shape, cut == Slicing::rows ? 0 : shape.rank - 1, rank, world);
    at += n;
    if (s.slice.elements() > 0) slices_.push_back(s);
  }
  for (StateSlice& s : slices_) s.data = values_.emplace_back(static_cast<size_t>(s.slice.elements())).data();
}

void State::fill(int64_t step) {
  for (size_t i = 0; i < slices_.size(); ++i) {
    Runs runs(slices_[i].slice);
    for (Run r = runs.next(); r.count > 0; r = runs.next())
      for (int64_t k = 0; k < r.count; ++k)
        values_[i][static_cast<size_t>(r.local + k)] = expected_value(slices_[i].name, step, r.global + k);
  }
}

CheckpointInfo make_info(int64_t step) {
  CheckpointInfo info;
  info.step = step;
  info.data_cursor = step * 8;
  info.consumed_tokens = step * 2048;
  info.seed = 1234;
  info.loss = 1.0 / static_cast<double>(step + 3);
  info.grad_norm = 0.1 * static_cast<double>(step);
  info.model = {{"hidden_size", "64"}, {"attn_pdrop", "0.0"}, {"architecture", "llama"}};
  info.recipe = "name: \"\xc3\xa9\"\n";
  info.consumed_samples = step * 9;
  info.data = data::DataIdentity{};
  info.data->sources = {{"data/a", 0.5, std::string(32, 'a'), 1000, 3},
                        {"data/b", 1, std::string(32, 'b'), 2000, 1}};
  info.data->tokenizer = {"byte", "0123456789abcdef", 257, 256};
  info.data->seq_length = 256;
  info.data->seed = 1234;
  return info;
}

CheckpointOptions sync_options(const std::string& folder, int64_t keep) {
  CheckpointOptions o;
  o.folder = folder;
  o.keep.latest = keep;
  o.async_save = false;
  return o;
}

void save_steps(const std::string& folder, int world, Slicing cut, const std::vector<int64_t>& steps,
                int64_t keep) {
  with_ranks(world, [&](int rank, Communicator& group) {
    auto stream = make_inline_stream("checkpoint");
    State state(rank, world, cut);
    CheckpointOptions options = sync_options(folder, keep);
    options.begun = steps.front() - 1;
    CheckpointWriter writer(options, state.slices(), group, *stream);
    for (int64_t step : steps) {
      state.fill(step);
      writer.save(make_info(step), state.slices());
      for (const SaveReport& report : writer.take_reports())
        if (!report.ok) throw Error(ExitCode::storage, report.error);
    }
  });
}

int64_t load_and_check(const std::string& folder, std::vector<std::string>& notes,
                       const std::string& resume) {
  auto group = make_single_group("checkpoint", Axis::data);
  auto stream = make_inline_stream("checkpoint");
  ResumeOptions options;
  options.folder = folder;
  options.resume = resume;
  auto reader = CheckpointReader::open(options, *group, *stream, notes);
  if (!reader) return -1;
  const int64_t step = reader->info().step;
  CHECK(reader->info().data_cursor == step * 8);
  for (const auto& [name, shape] : State::tensors()) {
    std::vector<float> values(static_cast<size_t>(shape.elements()), -1.0f);
    reader->read(name, DType::f32, Slice::whole(shape), values.data());
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i)
      wrong += values[i] != expected_value(name, step, static_cast<int64_t>(i));
    CHECK(wrong == 0);
  }
  reader->finish(*group, *stream);
  return step;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace ltrain::test
