#include "runtime/recipe/schema/schema_sections.h"

#include "base/error.h"

namespace ltrain::recipe {
namespace {

struct Section {
  std::string_view path, help;
  Effect effect = Effect::unset;  ///< unset: inherited from the parent section
};

constexpr Section kSections[] = {
    {"", "The run."},
    {"model", "What is trained; names of Hugging Face's config.json.", Effect::function},
    {"model.rope_scaling", "Llama 3's stretching of the rotary frequencies."},
    {"model.moe", "An MoE layer in the place of the feed-forward."},
    {"model.moe.router", "How tokens choose experts."},
    {"model.moe.balance", "A loss for balance between experts."},
    {"parallel",
     "How it is spread. The product of data, tensor, pipeline and context is the number of ranks.",
     Effect::speed},
    {"fp8", "Matmuls of linear layers in FP8.", Effect::function},
    {"loss_scale", "What fp16 gradients are multiplied by, found by trying.", Effect::function},
    {"recompute", "Activations computed twice to save memory.", Effect::speed},
    {"offload", "State that lies outside the device.", Effect::speed},
    {"offload.optimizer", "Moments and master weights."},
    {"offload.params", "Weights."},
    {"offload.activations", "What the forward pass saves."},
    {"data", "What it is trained on. Paths are relative to the working directory.", Effect::data},
    {"data.tokenizer", "What the token ids mean."},
    {"train", "Batch, length, evaluation.", Effect::nothing},
    {"train.batch_ramp", "A global batch that grows.", Effect::schedule},
    {"optimizer", "The update.", Effect::function},
    {"sparsity", "Matrices of which two of each four neighbours are zero.", Effect::function},
    {"schedule", "The learning rate over time.", Effect::schedule},
    {"checkpoint", "Saving and resuming.", Effect::nothing},
    {"checkpoint.load", "Weights from elsewhere."},
    {"launch", "Processes.", Effect::speed},
    {"log", "What is printed.", Effect::nothing},
    {"profile", "Where a step's time goes: [profiling.md](profiling.md). Traces of some steps on some ranks.",
     Effect::nothing},
    {"debug", "For tests of ltrain itself.", Effect::nothing},
};

}  // namespace

std::string section_help(const std::string& section) {
  for (const Section& row : kSections)
    if (row.path == section) return std::string(row.help);
  return "";
}

void set_effects(std::vector<Key>& table) {
  for (Key& key : table) {
    for (std::string section = key.section(); key.effect == Effect::unset && !section.empty();) {
      for (const Section& row : kSections)
        if (row.path == section) key.effect = row.effect;
      const size_t dot = section.rfind('.');
      section = dot == std::string::npos ? "" : section.substr(0, dot);
    }
    LT_CHECK(key.effect != Effect::unset, "expected an effect in the row or section of the key {}, got none",
             key.path);
  }
}

}  // namespace ltrain::recipe
