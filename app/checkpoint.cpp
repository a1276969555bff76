// ltrain checkpoint: what is there, whether it is whole, what is in it.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/store.h"
#include "runtime/plan/sparse_plan.h"

namespace ltrain::app {

namespace {

using nlohmann::ordered_json;

struct Options {
  std::string folder;
  bool json = false;
  bool tensors = false;
};

bool is_checkpoint(const std::string& path) {
  return path_exists(path + "/" + kManifestFile) || path_exists(path + "/" + kCommitFile);
}

/// A checkpoint, a folder of them, or the output_dir of a run.
std::vector<Candidate> find(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!path_exists(path)) fail(ExitCode::storage, "{}: there is no such folder", path);
  if (is_checkpoint(path)) {
    Candidate c;
    c.path = path;
    c.name = path.substr(path.rfind('/') + 1);
    c.pinned = path_exists(path + "/" + kPinFile);
    try {
      c.manifest = read_committed(path);
    } catch (const Error& e) {
      c.error = e.what();
    }
    return {c};
  }
  std::vector<Candidate> found = list_checkpoints(path);
  if (found.empty()) found = list_checkpoints(path + "/checkpoints");
  if (found.empty()) fail(ExitCode::storage, "{}: no checkpoints, here or in checkpoints/", path);
  return found;
}

ordered_json summary(const Candidate& c) {
  if (!c.error.empty()) return {{"name", c.name}, {"path", c.path}, {"valid", false}, {"error", c.error}};
  const CheckpointInfo& i = c.manifest.info;
  const auto number = [](double v) { return std::isfinite(v) ? ordered_json(v) : ordered_json(nullptr); };
  return {{"name", c.name},
          {"path", c.path},
          {"valid", true},
          {"step", i.step},
          {"healthy", i.healthy},
          {"loss", number(i.loss)},
          {"grad_norm", number(i.grad_norm)},
          {"consumed_tokens", i.consumed_tokens},
          {"data_cursor", i.data_cursor},
          {"bytes", c.manifest.bytes()},
          {"files", c.manifest.files.size()},
          {"tensors", c.manifest.tensors.size()},
          {"pinned", c.pinned}};
}

void print_json(const char* what, ordered_json list) {
  std::printf("%s\n", ordered_json{{"schema", 1}, {what, std::move(list)}}.dump(1).c_str());
}

void list(const Options& o) {
  const std::vector<Candidate> found = find(o.folder);
  if (o.json) {
    ordered_json all = ordered_json::array();
    for (const Candidate& c : found) all.push_back(summary(c));
    return print_json("checkpoints", all);
  }
  std::printf("%-14s %10s %6s %10s %10s %10s  %s\n", "name", "step", "files", "size", "loss", "grad norm",
              "state");
  for (const Candidate& c : found) {
    if (!c.error.empty()) {
      std::printf("%-14s %10s %6s %10s %10s %10s  not usable: %s\n", c.name.c_str(), "-", "-", "-", "-", "-",
                  c.error.c_str());
      continue;
    }
    const CheckpointInfo& i = c.manifest.info;
    std::string state = i.healthy ? "committed" : "committed, not healthy";
    if (c.pinned) state += ", kept";
    if (!c.note.empty()) state += "; " + c.note;
    std::printf("%-14s %10lld %6zu %10s %10.4f %10.4f  %s\n", c.name.c_str(), static_cast<long long>(i.step),
                c.manifest.files.size(), bytes_text(c.manifest.bytes()).c_str(), i.loss, i.grad_norm,
                state.c_str());
  }
}

void verify(const Options& o) {
  ordered_json all = ordered_json::array();
  int bad = 0;
  for (Candidate& c : find(o.folder)) {
    for (int i = 0; c.error.empty() && i < static_cast<int>(c.manifest.files.size()); ++i) try {
        verify_file(c.path, c.manifest, i);
      } catch (const Error& e) {
        c.error = e.what();
      }
    int sparse = 0;
    if (c.error.empty()) try {
        sparse = check_two_of_four(c.path);
      } catch (const Error& e) {
        c.error = e.what();
      }
    bad += !c.error.empty();
    all.push_back(summary(c));
    if (sparse > 0) all.back()["two_of_four"] = sparse;
    if (!o.json)
      std::printf("%s: %s\n", c.path.c_str(),
                  c.error.empty()
                      ? fmt::format("whole: {} files, {}, every hash agrees{}", c.manifest.files.size(),
                                    bytes_text(c.manifest.bytes()),
                                    sparse > 0 ? fmt::format(", {} matrices are two of four", sparse) : "")
                            .c_str()
                      : c.error.c_str());
  }
  if (o.json) print_json("checkpoints", all);
  if (bad > 0) fail(ExitCode::storage, "{}: {} of {} checkpoints are not whole", o.folder, bad, all.size());
}

void show(const Options& o) {
  const std::vector<Candidate> found = find(o.folder);
  const Candidate& c = found.front();
  if (!c.error.empty()) throw Error(ExitCode::storage, c.error);
  const CheckpointInfo& i = c.manifest.info;
  if (o.json) {
    ordered_json out = summary(c);
    out["seed"] = i.seed;
    for (const auto& [key, value] : i.model) out["model"][key] = value;
    out["recipe"] = i.recipe;
    for (const auto& [name, t] : c.manifest.tensors) {
      ordered_json shape = ordered_json::array();
      for (int d = 0; d < t.shape.rank; ++d) shape.push_back(t.shape[d]);
      out["tensor_list"].push_back(
          {{"name", name}, {"dtype", dtype_name(t.dtype)}, {"shape", shape}, {"pieces", t.pieces.size()}});
    }
    std::printf("%s\n", out.dump(1).c_str());
    return;
  }
  std::printf("%s\nstep %lld, next sample %lld, %lld tokens, seed %lld, loss %.6f, grad norm %.6f%s\n",
              c.path.c_str(), static_cast<long long>(i.step), static_cast<long long>(i.data_cursor),
              static_cast<long long>(i.consumed_tokens), static_cast<long long>(i.seed), i.loss, i.grad_norm,
              i.healthy ? "" : ", NOT HEALTHY");
  std::printf("%zu files, %s, %zu tensors\n\nmodel\n", c.manifest.files.size(),
              bytes_text(c.manifest.bytes()).c_str(), c.manifest.tensors.size());
  for (const auto& [key, value] : i.model) std::printf("  %-28s %s\n", key.c_str(), value.c_str());
  if (!o.tensors) return;
  std::printf("\ntensors\n");
  for (const auto& [name, t] : c.manifest.tensors)
    std::printf("  %-64s %-5s %-18s %zu pieces\n", name.c_str(), std::string(dtype_name(t.dtype)).c_str(),
                to_string(t.shape).c_str(), t.pieces.size());
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App* checkpoint = app.add_subcommand("checkpoint", "List checkpoints, check them, look into one");
  checkpoint->require_subcommand(1);
  static Options options;
  const auto add = [&](const char* name, const char* help, void (*run)(const Options&)) {
    CLI::App* command = checkpoint->add_subcommand(name, help);
    command
        ->add_option("folder", options.folder, "A checkpoint, a folder of them, or the output_dir of a run")
        ->required();
    command->add_flag("--json", options.json, "As JSON");
    command->footer(fmt::format("Example: ltrain checkpoint {} runs/quickstart", name));
    command->callback([run] { run(options); });
    return command;
  };
  add("list", "Newest first; what cannot be used and why", list);
  add("verify",
      "Read every byte, compare the hashes, look at what is to be two of four; exit code 73 when one differs",
      verify);
  add("show", "State, model and tensors of one (of a folder: the newest)", show)
      ->add_flag("--tensors", options.tensors, "List the tensors too");
}

}  // namespace ltrain::app
