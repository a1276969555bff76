// ltrain export, ltrain import: conversion to and from Hugging Face models.
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/from_ignore_option.h"
#include "app/print_notes.h"
#include "app/progress_line.h"
#include "base/bytes_text.h"
#include "base/error.h"
#include "base/json/json.h"
#include "runtime/checkpoint/files.h"
#include "runtime/weights/import.h"

namespace ltrain::app {

using nlohmann::ordered_json;

namespace {

struct WriteOptions {
  ExportOptions e;
  std::string dtype = "auto";
  double shard_gb = 5;
  bool json = false, quiet = false, merge = false, adapter = false;
};

void print_export(const ExportReport& r, const WriteOptions& o) {
  if (o.json) {
    std::printf("%s\n", ordered_json{{"schema", "ltrain.export.v1"},
                                     {"checkpoint", r.checkpoint},
                                     {"step", r.step},
                                     {"folder", o.e.folder},
                                     {"files", r.files},
                                     {"tensors", r.tensors},
                                     {"bytes", r.bytes},
                                     {"dtype", dtype_name(r.dtype)},
                                     {"notes", r.notes}}
                            .dump()
                            .c_str());
    return;
  }
  print_notes(r.notes);
  std::printf("%s, step %lld: %lld tensors of %s, %s, in %s\n", r.checkpoint.c_str(),
              static_cast<long long>(r.step), static_cast<long long>(r.tensors),
              std::string(dtype_name(r.dtype)).c_str(), bytes_text(r.bytes).c_str(), o.e.folder.c_str());
  for (const std::string& file : r.files) std::printf("  %s\n", file.c_str());
}

void write_folder(WriteOptions& o) {
  if (o.dtype != "auto")
    o.e.dtype = o.dtype == "bf16" ? DType::bf16 : o.dtype == "fp16" ? DType::f16 : DType::f32;
  o.e.shard_bytes = static_cast<int64_t>(o.shard_gb * 1e9);
  if (o.merge) o.e.adapters = ExportAdapters::merge;
  if (o.adapter) o.e.adapters = ExportAdapters::alone;
  if (!o.e.tokenizer.empty() && !path_exists(o.e.tokenizer))
    fail(ExitCode::usage, "--tokenizer {}: there is no such folder", o.e.tokenizer);
  ProgressLine line(o.quiet);
  o.e.progress = [&](int64_t done, int64_t all) { line.update(done, all); };
  const ExportReport r = export_checkpoint(o.e);
  print_export(r, o);
}

}  // namespace

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "Write a checkpoint as a Hugging Face folder");
  auto o = std::make_shared<WriteOptions>();
  command->add_option("checkpoint", o->e.checkpoint, "A checkpoint, a folder of them, or a run's output_dir")
      ->required();
  command->add_option("folder", o->e.folder, "The folder to make")->required();
  command
      ->add_option("--dtype", o->dtype,
                   "Of the weights. auto: that of the run's matmuls; of an imported model those of its files")
      ->check(CLI::IsMember({"auto", "bf16", "fp16", "fp32"}))
      ->capture_default_str();
  command->add_option("--shard-size", o->shard_gb, "GB of a file, at most")
      ->check(CLI::Range(0.000001, 1e6))
      ->capture_default_str();
  command->add_option("--tokenizer", o->e.tokenizer,
                      "Folder of tokenizer files; default: that of data.tokenizer.path (huggingface), else "
                      "the Hugging Face folder that the run began with");
  command->add_flag("--ema", o->e.average, "The average of weights that train.ema_decay keeps");
  command->add_flag("--masters", o->e.masters,
                    "Of a run with quantization.weights: the weights that it is made from");
  auto* merge =
      command->add_flag("--merge", o->merge, "Of a run with LoRA: the weights with its adapters added");
  command->add_flag("--adapter", o->adapter, "Of a run with LoRA: its adapters alone, as a folder of PEFT")
      ->excludes(merge);
  command->add_flag("--json", o->json, "For programs");
  command->add_flag("-q,--quiet", o->quiet, "No progress");
  command->footer("Example: ltrain export runs/quickstart my-model");
  command->callback([o] { write_folder(*o); });
}

void add_import(CLI::App& app) {
  struct Options {
    std::string folder, checkpoint;
    std::vector<std::string> from_ignore;
    bool json = false, quiet = false;
  };
  auto* command = app.add_subcommand("import", "Write a Hugging Face folder as a checkpoint");
  auto o = std::make_shared<Options>();
  command->add_option("folder", o->folder, "config.json and safetensors")->required();
  command->add_option("checkpoint", o->checkpoint, "The checkpoint to make")->required();
  add_from_ignore(*command, o->from_ignore);
  command->add_flag("--json", o->json, "For programs");
  command->add_flag("-q,--quiet", o->quiet, "No progress");
  command->footer(
      "Example: ltrain import my-model my-checkpoint\n"
      "A run needs no checkpoint to begin with a folder: model.from: my-model");
  command->callback([o] {
    ProgressLine line(o->quiet);
    const ImportReport r = import_folder(
        o->folder, o->checkpoint, [&](int64_t done, int64_t all) { line.update(done, all); }, o->from_ignore);
    if (o->json) {
      std::printf("%s\n", ordered_json{{"schema", "ltrain.import.v1"},
                                       {"checkpoint", r.checkpoint},
                                       {"family", r.family},
                                       {"tensors", r.tensors},
                                       {"parameters", r.parameters},
                                       {"bytes", r.bytes},
                                       {"notes", r.notes}}
                              .dump()
                              .c_str());
      return;
    }
    print_notes(r.notes);
    std::printf("%s: %s, %lld parameters in %lld tensors, %s\n", r.checkpoint.c_str(), r.family.c_str(),
                static_cast<long long>(r.parameters), static_cast<long long>(r.tensors),
                bytes_text(r.bytes).c_str());
  });
}

}  // namespace ltrain::app
