// Keys of preference training.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

/// Adds keys that apply only in some recipes.
struct KeysWhen {
  std::vector<Key>& keys;
  void operator()(Key key, std::string when, std::function<bool(const Recipe&)> applies) const {
    key.when(std::move(when), true, std::move(applies));
    keys.push_back(std::move(key));
  }
};

/// Adds keys of labelled texts and of reward models.
void add_kto_and_reward_keys(std::vector<Key>& t) {
  const KeysWhen add{t};
  const auto kto = [](const Recipe& r) { return r.task == Task::kto; };
  const auto reward = [](const Recipe& r) { return r.task == Task::reward; };
  add(number("preference.desirable_weight", LT_MEMBER(preference.desirable_weight),
             "Factor of the losses of texts with label true.")
          .between(0, 1e6)
          .alias({"kto_chosen_weight"}),
      "task: kto", kto);
  add(number("preference.undesirable_weight", LT_MEMBER(preference.undesirable_weight),
             "Factor of the losses of texts with label false.")
          .between(0, 1e6)
          .alias({"kto_rejected_weight"}),
      "task: kto", kto);
  add(number(
          "preference.center_rewards_coefficient", LT_MEMBER(preference.center_coefficient),
          "Factor of the squared sum of both scores of a pair, which is added to its loss and keeps scores "
          "around 0.")
          .between(0, 1e6),
      "task: reward", reward);
}

}  // namespace

void add_preference_keys(std::vector<Key>& t) {
  const KeysWhen add{t};
  const auto dpo = [](const Recipe& r) { return r.task == Task::dpo; };
  const auto of_model = [](const Recipe& r) { return r.task == Task::dpo || r.task == Task::kto; };
  add(choice(
          "preference.loss", LT_MEMBER(preference.kind), {},
          "Loss of a pair with task: dpo. sigmoid: DPO. ipo, sigmoid_norm: with means over the tokens of "
          "each text. hinge, robust, apo_zero: other functions of the same margins. simpo and orpo need no "
          "reference model. Loss of a text with task: kto. kto: KTO. apo_zero_unpaired: the same without a "
          "divergence, so that a step has no forward passes for it.")
          .derived("sigmoid for task: dpo, kto for task: kto",
                   [](Recipe& r) {
                     r.preference.kind = r.task == Task::kto      ? PreferenceKind::kto
                                         : r.task == Task::reward ? PreferenceKind::reward
                                                                  : PreferenceKind::sigmoid;
                   }),
      "task: dpo or kto", of_model);
  add(choice("preference.reference", LT_MEMBER(preference.reference), {},
             "Log-probabilities of the reference for the texts that train. precomputed: one pass over all of "
             "them before the first step, kept in a file. adapters_off: in each step, a forward pass of the "
             "model without its LoRA adapters. resident: in each step, a forward pass of a frozen model that "
             "stays in memory, reference_model. Held-out texts are always precomputed."),
      "task: dpo or kto", of_model);
  add(text("preference.reference_model", LT_MEMBER(preference.reference_model),
           "Reference model: a Hugging Face folder, a checkpoint, or the output_dir of a run. It may have "
           "another size and architecture, and has the vocabulary of the model. null: the model that the "
           "run begins with.")
          .alias({"ref_model"}),
      "preference.reference: resident",
      [of_model](const Recipe& r) { return of_model(r) && r.preference.resident_reference(); });
  add(number("preference.beta", LT_MEMBER(preference.beta),
             "Strength of the reference: factor of the margin. orpo: weight of the odds ratio.")
          .between(1e-6, 1e6)
          .alias({"dpo_beta", "kto_beta"}),
      "task: dpo or kto", of_model);
  add(number("preference.label_smoothing", LT_MEMBER(preference.label_smoothing),
             "Probability that the two texts of a pair are the wrong way round.")
          .between(0, 0.499),
      "preference.loss: sigmoid or robust", [dpo](const Recipe& r) {
        return dpo(r) &&
               (r.preference.kind == PreferenceKind::sigmoid || r.preference.kind == PreferenceKind::robust);
      });
  add(number("preference.gamma", LT_MEMBER(preference.gamma), "Margin that simpo asks for.").between(0, 1e6),
      "preference.loss: simpo",
      [dpo](const Recipe& r) { return dpo(r) && r.preference.kind == PreferenceKind::simpo; });
  add(number(
          "preference.sft_weight", LT_MEMBER(preference.sft_weight),
          "Weight of the mean cross-entropy over the counted tokens of the chosen texts, which is added to "
          "the loss.")
          .between(0, 1e6)
          .alias({"rpo_alpha", "pref_ftx"}),
      "task: dpo", dpo);
  add_kto_and_reward_keys(t);
}

}  // namespace ltrain::recipe
