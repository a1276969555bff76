#include "runtime/train/training_state.h"

#include "runtime/train/trainer.h"

namespace ltrain {
struct TrainingState::Impl {};
TrainingState::TrainingState(const Recipe&, ParameterStore&, Communicator&, Stream&, int, int) {}
TrainingState::~TrainingState() = default;
TrainingState::Resumed TrainingState::resume() { return {}; }
void TrainingState::note_health(double, double) {}
std::string TrainingState::save(int64_t, int64_t) { return "(not saved)"; }
void TrainingState::poll() {}
std::string TrainingState::finish() { return ""; }
void check_resume(const Recipe&) {}
}  // namespace ltrain
