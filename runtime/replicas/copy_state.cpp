#include "runtime/replicas/copy_state.h"

namespace ltrain {

void copy_state(ReplicaGroup& replicas, ParameterStore& parameters, TrainerPosition& position) {
  std::vector<int64_t> numbers{position.data.cursor, position.data.samples, position.data.tokens,
                               position.earlier_updates};
  replicas.copy(numbers);
  const auto copy = [&](const Tensor& t) {
    through_host(parameters.stream(), t, [&](const Tensor& part) { replicas.copy(part); });
  };
  parameters.prefetch_states();
  for (const OwnedPiece& piece : parameters.stored_pieces()) {
    if (piece.master.defined()) copy(piece.master);
    for (const NamedState& state : piece.moments) copy(state.tensor);
  }
  for (const WholeState& state : parameters.whole_states(false)) copy(state.tensor);
  for (const RegisteredBuffer& buffer : parameters.kept(false)) copy(buffer.tensor);
  parameters.offload_states(replicas.receives());
  if (!replicas.receives()) return;
  parameters.publish_loaded();
  position.data = {.cursor = numbers[0], .samples = numbers[1], .tokens = numbers[2]};
  position.earlier_updates = numbers[3];
}

}  // namespace ltrain
