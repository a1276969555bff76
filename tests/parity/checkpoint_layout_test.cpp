// Checkpoints saved under one layout and loaded under another: the same tensors to the bit, the same losses
// as a run that was never broken, and no rank reads more than it keeps.
#include <filesystem>

#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/checkpoint/upcycle.h"
#include "tests/parity/parity.h"
#include "tests/parity/recipe_job.h"
#include "tests/support/temporary_folder.h"

using namespace ltrain;
using namespace ltrain::test;

namespace {

constexpr int64_t kSaved = 2, kEnd = 4;  // steps

struct CheckpointLayout {
  const char* name;
  int data = 1, tensor = 1;
  bool sequence = false;
  int zero = 0;
  int pipeline = 1;
  const char* schedule = "1f1b";
  int chunks = 1;
  int context = 1;
  const char* comm = "p2p";
  int shard = 0;
  const char* mode = "1d";
  int depth = 1;
  int expert = 1;
  int zero_layers = 0;
};

const std::vector<CheckpointLayout>& checkpoint_layouts() {
  static const std::vector<CheckpointLayout> all = {
      {"one rank"},
      {"data 2", 2},
      {"data 2, ZeRO-1", 2, 1, false, 1},
      {"data 4, ZeRO-2", 4, 1, false, 2},
      {"data 2, ZeRO-3", 2, 1, false, 3},
      {"data 2, ZeRO-3, two layers of ZeRO-2", 2, 1, false, 3, 1, "1f1b", 1, 1, "p2p", 0, "1d", 1, 1, 2},
      {"tensor 2", 1, 2},
      {"tensor 2, sequence", 1, 2, true},
      {"tensor 4, more than llama's key-value heads", 1, 4},
      {"data 2, tensor 2, ZeRO-1", 2, 2, false, 1},
      {"data 2, tensor 2, sequence, ZeRO-3", 2, 2, true, 3},
      {"pipeline 2", 1, 1, false, 0, 2},
      {"pipeline 2, data 2, ZeRO-1, zero-bubble", 2, 1, false, 1, 2, "zb-h1"},
      {"pipeline 2, tensor 2, interleaved", 1, 2, false, 0, 2, "interleaved", 2},
      {"context 2", 1, 1, false, 0, 1, "1f1b", 1, 2},
      {"context 2, data 2, ZeRO-3, a2a", 2, 1, false, 3, 1, "1f1b", 1, 2, "a2a"},
      {"data 4, two levels", 4, 1, false, 0, 1, "1f1b", 1, 1, "p2p", 2},
      {"data 4, hybrid ZeRO-1", 4, 1, false, 1, 1, "1f1b", 1, 1, "p2p", 2},
      {"data 4, tensor 2, hybrid ZeRO-3", 4, 2, false, 3, 1, "1f1b", 1, 1, "p2p", 2},
      {"data 2, context 2, hybrid ZeRO-2", 2, 1, false, 2, 1, "1f1b", 1, 2, "p2p", 2},
      {"2d 4", 1, 4, false, 0, 1, "1f1b", 1, 1, "p2p", 0, "2d"},
      {"2.5d 8, ZeRO-1", 1, 8, false, 1, 1, "1f1b", 1, 1, "p2p", 0, "2.5d", 2},
      {"3d 8", 1, 8, false, 0, 1, "1f1b", 1, 1, "p2p", 0, "3d"},
  };
  return all;
}

TinyOptions laid_out(const CheckpointLayout& l, const TinyOptions& base) {
  TinyOptions o = base;
  o.ranks = l.data;
  o.tensor = l.tensor;
  o.sequence_parallel = l.sequence;
  o.zero_stage = l.zero;
  o.zero_layers = l.zero_layers;
  o.pipeline = l.pipeline;
  o.schedule = l.schedule;
  o.chunks = l.chunks;
  o.context = l.context;
  o.context_comm = l.comm;
  o.tensor_mode = l.mode;
  o.tensor_depth = l.depth;
  o.micro_batch = l.tensor > 4 ? 4 : l.mode[0] == '2' ? 2 : 1;  // cut by sequences
  o.shard = l.shard;
  o.expert = l.expert;
  o.layers = 4;
  o.steps = kEnd;
  o.dropout = 0.1;
  o.padded_targets = true;
  return o;
}

class Folder : public TemporaryFolder {
 public:
  std::string operator/(const std::string& name) const { return path() + "/" + name; }
};

/// Values and both moments, whole, as one process reads them.
std::map<std::string, std::vector<double>> read_whole(const std::string& path) {
  const auto alone = make_single_group("test", Axis::data);
  const auto stream = make_inline_stream("test");
  std::vector<std::string> notes;
  ResumeOptions o;
  o.resume = path;
  const auto reader = CheckpointReader::open(o, *alone, *stream, notes);
  std::map<std::string, std::vector<double>> out;
  for (const auto& [name, parts] : reader->tensors()) {
    std::vector<double>& values = out[name];
    values.resize(parts.shape.elements());
    reader->read(name, DType::f64, Slice::whole(parts.shape), values.data());
  }
  reader->finish(*alone, *stream);
  return out;
}

/// Bytes that a rank keeps: values and two moments.
int64_t kept_bytes(const ParameterStore& store) {
  int64_t bytes = 0;
  for (const OwnedPiece& p : store.stored_pieces())
    bytes += p.slice.elements() * static_cast<int64_t>((1 + p.moments.size()) * sizeof(double));
  for (const RegisteredBuffer& k : store.kept(false)) bytes += k.tensor.bytes();
  return bytes;
}

void write_checkpoint(const TinyOptions& whole_run, const std::string& path) {
  TinyOptions o = whole_run;
  o.steps = kSaved;
  train_tiny(o, {}, saves(o, path, kSaved));
}

/// Loads, saves at once to `again`, and trains on.
TinyResult train_on(const TinyOptions& o, const std::string& from, const std::string& again,
                    bool same_tensor) {
  TinyHooks hooks;
  hooks.begin = [&](const TinyRank& at) {
    const auto resumed = resume_rank(o, at, from);
    LT_CHECK(resumed.position.cursor == kSaved * o.global_batch, "cursor {}", resumed.position.cursor);
    const int64_t kept = kept_bytes(at.program.parameters());
    // Columns cut otherwise than they were saved are read with the gaps of a few bytes between them.
    LT_CHECK(resumed.bytes_read >= kept && (!same_tensor || resumed.bytes_read == kept),
             "rank {} read {} bytes and keeps {}", at.rank, resumed.bytes_read, kept);
    save_rank(o, at, again, resumed.step);
    return resumed.step;
  };
  return train_tiny(o, {}, hooks);
}

}  // namespace

TEST_CASE("slow: a checkpoint of any layout goes on under any other as if never broken") {
  TinyOptions model;
  bool sampled = true;  // not every pair
  SECTION("llama") { sampled = false; }
  SECTION("llama, tied") { model.tied = true; }
  SECTION("gpt2") { model.architecture = "gpt2"; }
  Folder folder;
  std::vector<TinyResult> unbroken;
  for (const CheckpointLayout& l : checkpoint_layouts()) {
    unbroken.push_back(train_tiny(laid_out(l, model)));
    write_checkpoint(laid_out(l, model), folder / l.name);
  }
  for (size_t a = 0; a < checkpoint_layouts().size(); ++a) {
    const CheckpointLayout& from = checkpoint_layouts()[a];
    const auto saved = read_whole(folder / from.name + "/checkpoints");
    for (size_t b = 0; b < checkpoint_layouts().size(); ++b) {
      const CheckpointLayout& to = checkpoint_layouts()[b];
      const size_t apart = (b + checkpoint_layouts().size() - a) % checkpoint_layouts().size();
      if (sampled && apart != 0 && apart != 3 && apart != 7) continue;
      INFO("saved under " << from.name << ", loaded under " << to.name);
      const std::string again = folder / fmt::format("{} to {}", a, b);
      const TinyResult r = train_on(laid_out(to, model), folder / from.name + "/checkpoints", again,
                                    from.tensor == to.tensor && from.mode == to.mode);
      CHECK(read_whole(again + "/checkpoints") == saved);  // to the bit
      REQUIRE(r.losses.size() == kEnd - kSaved);
      for (size_t i = 0; i < r.losses.size(); ++i) {
        const double want = unbroken[0].losses[kSaved + i];
        CHECK(std::abs(r.losses[i] - want) <= 1e-12 * std::abs(want));
      }
      CHECK(worst_relative(unbroken[0].parameters, r.parameters) <= 1e-10);
      if (a != b) continue;
      CHECK(r.losses == std::vector<double>(unbroken[b].losses.begin() + kSaved, unbroken[b].losses.end()));
      CHECK(r.norms == std::vector<double>(unbroken[b].norms.begin() + kSaved, unbroken[b].norms.end()));
      CHECK(r.parameters == unbroken[b].parameters);
      CHECK(r.eval_loss == unbroken[b].eval_loss);
    }
  }
}

TEST_CASE("what delayed scaling of FP8 remembers goes on under any layout, and begins where there is none") {
  const bool experts = GENERATE(false, true);
  TinyOptions model;
  model.fp8.emplace().history = 3;
  model.fp8->output_layer = !experts;
  std::vector<CheckpointLayout> all{{"one rank"},
                                    {"data 2, tensor 2, sequence, ZeRO-3", 2, 2, true, 3},
                                    {"pipeline 2, data 2, ZeRO-1, zero-bubble", 2, 1, false, 1, 2, "zb-h1"}};
  if (experts) {
    model.architecture = "mixtral";
    model.moe.num_experts = 4;
    all[1].expert = all[2].expert = 2;
  }
  Folder folder;
  const auto go_on = [&](const CheckpointLayout& l, const TinyOptions& as, const std::string& from,
                         std::vector<std::string>* notes = nullptr) {
    TinyHooks hooks;
    hooks.begin = [&](const TinyRank& at) {
      const auto resumed = resume_rank(laid_out(l, as), at, from);
      if (notes && at.rank == 0) *notes = resumed.notes;
      return resumed.step;
    };
    return train_tiny(laid_out(l, as), {}, hooks);
  };
  for (const CheckpointLayout& from : all) {
    const TinyResult unbroken = train_tiny(laid_out(from, model));
    const std::string path = folder / from.name;
    write_checkpoint(laid_out(from, model), path);
    for (const CheckpointLayout& to : all) {
      INFO("saved under " << from.name << ", loaded under " << to.name);
      const TinyResult r = go_on(to, model, path + "/checkpoints");
      for (size_t i = 0; i < r.losses.size(); ++i)
        CHECK(std::abs(r.losses[i] / unbroken.losses[kSaved + i] - 1) <= 1e-11);
      if (to.name != from.name) continue;
      CHECK(r.losses == std::vector<double>(unbroken.losses.begin() + kSaved, unbroken.losses.end()));
      CHECK(r.parameters == unbroken.parameters);
    }
  }
  const CheckpointLayout one{"one rank"};
  const double whole = train_tiny(laid_out(one, model)).losses.back();
  std::vector<std::string> notes;
  TinyOptions other = model;
  other.fp8->history = 4;
  const double longer = go_on(one, other, folder / "one rank/checkpoints", &notes).losses.back();
  const auto begun = [&] {  // there are notes on other things
    return std::count_if(notes.begin(), notes.end(),
                         [](const std::string& n) { return n.find("they begin here") != std::string::npos; });
  };
  CHECK(begun() == 1);
  CHECK(longer != whole);  // negative control: what is not loaded is missed
  other = model;
  other.fp8->output_layer = !model.fp8->output_layer;  // another number of layers
  go_on(one, other, folder / "one rank/checkpoints", &notes);
  CHECK(begun() == 1);
  TinyOptions plain = model;
  plain.fp8.reset();
  go_on(one, plain, folder / "one rank/checkpoints", &notes);
  CHECK(begun() == 0);
  write_checkpoint(laid_out(one, plain), folder / "plain");
  go_on(one, model, folder / "plain/checkpoints", &notes);
  CHECK(begun() == 1);
}

TEST_CASE("a checkpoint of experts cut in any way goes on under any other") {
  TinyOptions model;
  model.architecture = "qwen3_moe";
  model.moe.num_experts = 4;
  SECTION("plain") {}
  SECTION("with a bias, and routers that warm up beyond the save") {
    model.moe.score = RouterScore::sigmoid;
    model.moe.bias_update_rate = 0.05;
    model.optimizer.router_warmup = 3;
  }
  SECTION("with frozen routers") { model.optimizer.freeze_routers = true; }
  CheckpointLayout over_two{"experts over 2", 2}, zero{"experts over 2 of 4, ZeRO-3", 4, 1, false, 3},
      tensor{"experts over 2, tensor 2, ZeRO-1", 2, 2, false, 1},
      stages{"experts over 2, stages", 2, 1, false, 0, 2};
  for (CheckpointLayout* l : {&over_two, &zero, &tensor, &stages}) l->expert = 2;
  const std::vector<CheckpointLayout> all{{"one rank"}, over_two, zero, tensor, stages};
  Folder folder;
  const TinyResult unbroken = train_tiny(laid_out(all[0], model));
  for (size_t a = 0; a < all.size(); ++a) {
    write_checkpoint(laid_out(all[a], model), folder / all[a].name);
    const auto saved = read_whole(folder / all[a].name + "/checkpoints");
    CHECK(saved.at("model.layers.3.mlp.experts.gate_up_proj").size() == 4 * 2 * 24 * 32);
    const std::string gate = "model.layers.3.mlp.gate.";
    CHECK(saved.count("optimizer/exp_avg/" + gate + "weight") == (model.optimizer.freeze_routers ? 0 : 1));
    if (model.moe.bias_update_rate > 0) {
      double sum = 0;  // a bias that has moved: two steps of 0.05, or none
      for (double b : saved.at(gate + "e_score_correction_bias")) {
        CHECK(std::abs(b / 0.05 - std::round(b / 0.05)) < 1e-12);
        sum += std::abs(b);
      }
      CHECK(sum > 0);
    }
    const CheckpointLayout& to = all[(a + 1) % all.size()];
    INFO("saved under " << all[a].name << ", loaded under " << to.name);
    const std::string again = folder / fmt::format("again {}", a);
    const TinyResult r = train_on(laid_out(to, model), folder / all[a].name + "/checkpoints", again, false);
    CHECK(read_whole(again + "/checkpoints") == saved);
    CHECK(worst_relative(unbroken.parameters, r.parameters) <= 1e-10);
  }
}

TEST_CASE("frozen parameters go on under another layout, freeze later, and do not thaw without a state") {
  TinyOptions model;
  model.architecture = "llama";
  model.optimizer.frozen = {"model.embed_tokens.weight", "*layers.1.mlp.*"};
  const std::string table = "model.embed_tokens.weight";
  const CheckpointLayout alone{"one rank"}, spread{"data 2, ZeRO-3", 2, 1, false, 3};
  Folder folder;
  const TinyResult unbroken = train_tiny(laid_out(alone, model));
  write_checkpoint(laid_out(alone, model), folder / "a");
  const auto saved = read_whole(folder / "a/checkpoints");
  CHECK(saved.count("optimizer/exp_avg/" + table) == 0);
  CHECK(saved.count("optimizer/exp_avg/lm_head.weight") == 1);
  const TinyResult r = train_on(laid_out(spread, model), folder / "a/checkpoints", folder / "b", false);
  CHECK(worst_relative(unbroken.parameters, r.parameters) <= 1e-10);
  CHECK(r.parameters.at(table) == saved.at(table));
  // Thawed they would begin without a moment: refused. More may freeze, whose states are left behind.
  TinyOptions other = model;
  other.optimizer.frozen = {"*layers.1.mlp.*"};
  CHECK_THROWS_WITH(train_on(laid_out(alone, other), folder / "a/checkpoints", folder / "c", false),
                    Catch::Contains("has no exp_avg of " + table) && Catch::Contains("optimizer.frozen"));
  other.optimizer.frozen = {table, "*layers.1.mlp.*", "lm_head.weight"};
  const TinyResult more = train_on(laid_out(alone, other), folder / "a/checkpoints", folder / "d", false);
  CHECK(more.parameters.at("lm_head.weight") == saved.at("lm_head.weight"));
  CHECK(read_whole(folder / "d/checkpoints").count("optimizer/exp_avg/lm_head.weight") == 0);
}

TEST_CASE("frozen routers begin with the weights of a run that trained them") {
  TinyOptions model;
  model.architecture = "mixtral";
  model.moe.num_experts = 4;
  Folder folder;
  write_checkpoint(laid_out({"one rank"}, model), folder / "a");
  const auto saved = read_whole(folder / "a/checkpoints");
  TinyOptions frozen = laid_out({"data 2, ZeRO-1", 2, 1, false, 1}, model);
  frozen.optimizer.freeze_routers = true;
  const TinyResult r = train_on(frozen, folder / "a/checkpoints", folder / "b", false);
  const std::string gate = "model.layers.1.block_sparse_moe.gate.weight";
  CHECK(r.parameters.at(gate) == saved.at(gate));
  CHECK(r.parameters.at("lm_head.weight") != saved.at("lm_head.weight"));
  // And not the other way round: the state that was not kept is missed.
  const TinyOptions free = laid_out({"one rank"}, model);
  CHECK_THROWS_WITH(
      train_on(free, folder / "b/checkpoints", folder / "c", false),
      Catch::Contains("has no exp_avg of model.layers") && Catch::Contains("train.freeze_router"));
}

TEST_CASE("a dense model's weights begin an MoE model of any layout, whose first loss is the dense model's") {
  struct Case {
    const char *dense, *moe;
    int64_t shards = 1;  // parts of a feed-forward
  };
  const auto [family, architecture, shards] =
      GENERATE(Case{"llama", "llama"}, Case{"llama", "mixtral"}, Case{"qwen3", "qwen3_moe"},
               Case{"llama", "llama", 2}, Case{"qwen3", "qwen3_moe", 4});
  TinyOptions dense;
  dense.architecture = family;
  dense.intermediate = 40;
  TinyOptions moe = dense;
  moe.architecture = architecture;
  moe.moe.num_experts = shards == 4 ? 8 : 4;
  moe.moe.top_k = shards == 4 ? 4 : 2;
  moe.moe.intermediate_size = 40 / shards;
  moe.moe.balance = BalanceLoss::none;
  if (moe.architecture == "llama") moe.moe.layer_step = 2;
  CheckpointLayout two{"experts over 2 of 4, ZeRO-3", 4, 1, false, 3},
      tensor{"experts over 2, tensor 2, ZeRO-1", 2, 2, false, 1},
      stages{"experts over 2, stages", 2, 1, false, 0, 2};
  for (CheckpointLayout* l : {&two, &tensor, &stages}) l->expert = 2;
  Folder folder;
  const CheckpointLayout from{"data 2, tensor 2, ZeRO-1", 2, 2, false, 1};
  write_checkpoint(laid_out(from, dense), folder / "dense");
  const double want = train_tiny(laid_out(from, dense)).losses[kSaved];
  const auto upcycled = [&](const CheckpointLayout& l, const TinyOptions& model) {
    TinyHooks hooks;
    hooks.begin = [&](const TinyRank& at) {
      at.program.initialize();
      Recipe recipe = recipe_of(laid_out(l, model), folder / "moe", "never");
      recipe.checkpoint.upcycle = folder / "dense";
      const auto stream = make_inline_stream("checkpoint");
      const auto notes =
          TrainingState(recipe, at.program.parameters(), at.control, *stream, at.rank).upcycle();
      LT_CHECK(notes.size() == 1, "{} notes", notes.size());
      return kSaved;
    };
    return train_tiny(laid_out(l, model), {}, hooks);
  };
  std::vector<TinyResult> all;
  for (const CheckpointLayout& l : {CheckpointLayout{"one rank"}, two, tensor, stages}) {
    INFO(moe.architecture << ", " << l.name);
    all.push_back(upcycled(l, moe));
    CHECK(std::abs(all.back().losses[0] - want) <= 1e-12 * want);
    CHECK(worst_relative(all[0].parameters, all.back().parameters) <= 1e-10);  // routers are the seed's
  }
  moe.moe.norm_topk_prob = false;  // negative control: weights that do not sum to one
  CHECK(std::abs(upcycled({"one rank"}, moe).losses[0] - want) > 1e-6);
}

TEST_CASE("what is no dense checkpoint of the recipe's shape begins no MoE model") {
  Folder folder;
  TinyOptions dense, moe;
  dense.intermediate = moe.intermediate = 40;
  moe.moe.num_experts = 4;
  moe.moe.intermediate_size = 40;
  write_checkpoint(laid_out({"one rank"}, dense), folder / "dense");
  write_checkpoint(laid_out({"one rank"}, moe), folder / "moe");
  const auto alone = make_single_group("test", Axis::data);
  const auto stream = make_inline_stream("test");
  const auto open = [&](const TinyOptions& model, const std::string& path) {
    Recipe recipe = recipe_of(laid_out({"one rank"}, model), folder / "out", "never");
    recipe.checkpoint.upcycle = path;
    std::vector<std::string> notes;
    return open_dense(recipe, true, *alone, *stream, notes);
  };
  CHECK(open(moe, folder / "dense/checkpoints")->info().step == kSaved);
  CHECK_THROWS_WITH(open(moe, folder / "nowhere"), Catch::Contains("checkpoint.upcycle = ") &&
                                                       Catch::Contains("there is no such file or folder"));
  CHECK_THROWS_WITH(open(moe, folder / "moe"),
                    Catch::Contains("is of llama with 4 experts; expected a dense model of llama, mistral"));
  TinyOptions wider = moe;
  wider.hidden = 64;
  CHECK_THROWS_WITH(open(wider, folder / "dense"),
                    Catch::Contains("hidden_size is 32 in the checkpoint and 64 in the recipe"));
  // And a dense checkpoint in the place of the MoE model's own says what there is.
  std::vector<std::string> notes;
  ResumeOptions o = resume_options(recipe_of(laid_out({"one rank"}, moe), folder / "dense", "auto"));
  CHECK_THROWS_WITH(CheckpointReader::open(o, *alone, *stream, notes),
                    Catch::Contains("give checkpoint.upcycle: "));
}

TEST_CASE("negative control: a rank that loads its neighbour's range trains on to other losses") {
  const CheckpointLayout from{"data 2", 2},
      to = GENERATE(CheckpointLayout{"ZeRO-3", 2, 1, false, 3}, CheckpointLayout{"tensor 2", 1, 2});
  TinyOptions model;
  Folder folder;
  write_checkpoint(laid_out(from, model), folder / "a");
  const std::string path = folder / "a/checkpoints";
  const TinyOptions o = laid_out(to, model);
  const auto run = [&](bool wrong) {
    TinyHooks hooks;
    hooks.begin = [&](const TinyRank& at) {
      const auto resumed = resume_rank(o, at, path);
      ParameterStore& store = at.program.parameters();
      // One tensor, one rank: what lies before its own part.
      const auto stream = make_inline_stream("test");
      std::vector<std::string> notes;
      ResumeOptions options;
      options.resume = path;
      const auto reader = CheckpointReader::open(options, at.control, *stream, notes);
      bool found = false;
      for (const OwnedPiece& p : store.stored_pieces()) {
        const Slice& s = p.slice;
        Slice neighbour = s;
        if (s.begin >= s.elements())
          neighbour = {s.global, s.offset, s.extent, s.begin - s.elements(), s.begin};
        if (s.offset[0] >= s.extent[0]) neighbour.offset.dims[0] -= s.extent[0];
        if (!wrong || found || neighbour == s) continue;
        found = true;
        reader->read(store.spec(p.id).name, DType::f64, neighbour, p.master.data);
      }
      store.publish_loaded();
      return resumed.step;
    };
    return train_tiny(o, {}, hooks);
  };
  const TinyResult right = run(false), wrong = run(true);
  CHECK(std::abs(right.losses[0] - wrong.losses[0]) > 1e-6);
}
