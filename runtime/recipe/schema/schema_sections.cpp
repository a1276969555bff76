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
    {"model", "The model, with the names of Hugging Face's config.json.", Effect::function},
    {"model.rope_scaling", "Scaling of the rotary frequencies."},
    {"model.moe", "MoE layers, which replace the feed-forward."},
    {"model.moe.router", "Choice of experts by tokens."},
    {"model.moe.balance", "Loss for balance between experts."},
    {"parallel", "Parallel layout. The product of data, tensor, pipeline and context is the number of ranks.",
     Effect::speed},
    {"fp8", "Matmuls of linear layers in FP8.", Effect::function},
    {"loss_scale", "Dynamic loss scaling of fp16.", Effect::function},
    {"recompute", "Recomputation of activations to save memory.", Effect::speed},
    {"offload", "Tensors stored outside device memory.", Effect::speed},
    {"offload.optimizer", "Moments and master weights."},
    {"offload.params", "Weights."},
    {"offload.activations", "Saved activations of the forward."},
    {"data", "Training and evaluation data. Paths are relative to the working directory.", Effect::data},
    {"data.decontaminate", "Training documents that share words with evaluation data, which are left out."},
    {"data.tokenizer", "Tokenizer of the data."},
    {"train", "Batch, length, evaluation.", Effect::nothing},
    {"train.batch_ramp", "Growing global batch.", Effect::schedule},
    {"optimizer", "The update.", Effect::function},
    {"diloco",
     "DiLoCo: sites that train apart and average their changes now and then: [diloco.md](diloco.md).",
     Effect::function},
    {"sparsity", "Sparse matrices: of each M neighbours in a row N stay, 2:4 for sparse tensor cores.",
     Effect::function},
    {"quantization",
     "Quantization-aware training: matrices in int4, int8 or FP8 in each step: "
     "[compression.md](compression.md).",
     Effect::function},
    {"lora", "Fine-tuning of factors of low rank beside frozen matrices: [fine-tuning.md](fine-tuning.md).",
     Effect::function},
    {"preference",
     "Loss of task: dpo on pairs of texts, of task: kto on labelled texts, and of task: reward.",
     Effect::function},
    {"distillation",
     "Training on the distribution of a teacher beside the labels: [fine-tuning.md](fine-tuning.md).",
     Effect::function},
    {"schedule", "Learning rate and weight decay over time.", Effect::schedule},
    {"checkpoint", "Saving and resuming.", Effect::nothing},
    {"checkpoint.load", "Initial weights from another run or model."},
    {"launch", "Processes.", Effect::speed},
    {"replicas", "Replicas of the job, of which some may be lost: [replicas.md](replicas.md).",
     Effect::speed},
    {"log", "Log output and progress lines.", Effect::nothing},
    {"telemetry", "Metrics and messages for other programs.", Effect::nothing},
    {"profile",
     "Profiling of steps: [where the time goes](metrics.md#where-a-steps-time-goes). Traces of some steps on "
     "some ranks.",
     Effect::nothing},
    {"debug", "Settings for tests of ltrain.", Effect::nothing},
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
