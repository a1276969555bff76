#include "runtime/machines/trainer_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "base/error.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "runtime/machines/builtin_profiles.h"
#include "runtime/machines/profile_file.h"
#include "runtime/recipe/read_file.h"

namespace ltrain {
namespace {

constexpr size_t kMaxTrainerBytes = 1 << 20;

TrainerRates read_rates(CheckedMap& m) {
  TrainerRates r;
  r.compute_capability = m.whole("compute_capability", 30, 999, 0);
  if (!m.has("compute_capability")) m.wrong("compute_capability", "must be given: 90 for sm_90");
  if (m.has("attention")) {
    CheckedMap attention = m.map("attention");
    r.attention = read_attention(attention);
  }
  r.matmul = m.figure("matmul", 0.01, 1, false);
  r.traffic = m.figure("traffic", 0.1, 100, false);
  m.finish();
  return r;
}

std::vector<std::string> names_of(const std::vector<TrainerProfile>& trainers) {
  std::vector<std::string> names;
  for (const TrainerProfile& t : trainers) names.push_back(t.name);
  return names;
}

}  // namespace

TrainerProfile parse_trainer_profile(const std::string& text, const std::string& name) {
  TrainerProfile trainer =
      parse_profile<TrainerProfile>(text, name, kTrainerFormat, [](CheckedMap& m, TrainerProfile& t) {
        t.name = m.text("name");
        t.text = m.text("text");
        for (CheckedMap& card : m.maps("cards")) t.cards.push_back(read_rates(card));
        if (t.cards.empty()) m.wrong("cards", "must have figures of at least one compute capability");
      });
  trainer.file = name;
  return trainer;
}

const std::vector<TrainerProfile>& builtin_trainers() {
  static const std::vector<TrainerProfile> trainers = [] {
    std::vector<TrainerProfile> out;
    for (const EmbeddedFile& file : kEmbeddedTrainers)
      out.push_back(parse_trainer_profile(file.text, file.name));
    return out;
  }();
  return trainers;
}

TrainerProfile find_trainer(const std::string& path_or_name) {
  std::error_code ignored;
  if (std::filesystem::exists(path_or_name, ignored)) {
    std::string text;
    const std::string error = recipe::read_small_file(path_or_name, text, kMaxTrainerBytes);
    if (!error.empty()) fail(ExitCode::usage, "trainer {}: {}", printable(path_or_name), error);
    return parse_trainer_profile(text, path_or_name);
  }
  for (const TrainerProfile& t : builtin_trainers())
    if (t.name == path_or_name) return t;
  const std::vector<std::string> names = names_of(builtin_trainers());
  const std::string near = nearest_word(path_or_name, names);
  fail(ExitCode::usage, "trainer {}: there is no such file, and the trainers built in are {}{}",
       printable(path_or_name), fmt::join(names, ", "),
       near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

void price_as(MachineProfile& profile, const TrainerProfile& trainer) {
  if (!profile.priced_by_device())
    fail(ExitCode::usage,
         "trainer {}: the profile {} is not of a card's figures, which a trainer changes; take one of "
         "`ltrain profile list`, --profile h100",
         trainer.name, profile.source);
  DeviceProfile device = *profile.device;
  std::vector<int64_t> known;
  const TrainerRates* rates = nullptr;
  for (const TrainerRates& r : trainer.cards) {
    known.push_back(r.compute_capability);
    if (r.compute_capability == device.compute_capability) rates = &r;
  }
  if (!rates)
    fail(ExitCode::usage,
         "trainer {}: has figures of cards of compute capability {}, and {} has {}; leave out --trainer, or "
         "give a file that has them",
         trainer.name, fmt::join(known, ", "), device.name, device.compute_capability);
  if (rates->attention.forward.given()) device.attention = rates->attention;
  device.trainer = trainer.name;
  device.trainer_matmul = rates->matmul;
  device.trainer_traffic = rates->traffic;
  profile.device = std::make_shared<DeviceProfile>(std::move(device));
  profile.source += ", as run by " + trainer.name;
}

}  // namespace ltrain
