#include "runtime/replicas/copy_state.h"

namespace ltrain {

void copy_state(ReplicaGroup& replicas, ParameterStore& parameters, TrainerPosition& position) {
  std::vector<int64_t> numbers{position.data.cursor, position.data.samples, position.data.tokens,
                               position.earlier_updates};
  replicas.copy(numbers);
  parameters.stream().synchronize();
  parameters.prefetch_states();
  for (const OwnedPiece& piece : parameters.stored_pieces()) {
    if (piece.master.defined()) replicas.copy(piece.master);
    for (const NamedState& state : piece.moments) replicas.copy(state.tensor);
  }
  for (const WholeState& state : parameters.whole_states(false)) replicas.copy(state.tensor);
  for (const RegisteredBuffer& buffer : parameters.kept(false)) replicas.copy(buffer.tensor);
  parameters.offload_states(replicas.receives());
  if (!replicas.receives()) return;
  parameters.publish_loaded();
  position.data = {.cursor = numbers[0], .samples = numbers[1], .tokens = numbers[2]};
  position.earlier_updates = numbers[3];
}

}  // namespace ltrain
