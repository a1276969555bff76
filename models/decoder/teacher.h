// The teacher of distillation: a frozen model of any family and size with the student's vocabulary.
#pragma once
#include "models/decoder/frozen_model.h"

namespace ltrain {

class FrozenTeacher : public FrozenModel, public Teacher {
 public:
  using FrozenModel::FrozenModel;

  void forward(const Step& student, const MicroBatch& mb) override;
  void begin_logits(const Step& student) override;
  void logits(const Step& student, Tensor out, int64_t first_row) override;
  void end_logits(const Step& student) override;

 private:
  Tensor rows_, whole_;  // the output layer's input: rows of the stream, and all
};

}  // namespace ltrain
