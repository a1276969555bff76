// Activation function of a feed-forward, or of an expert, by the family's trait.
#pragma once
#include "kernels/tensor/stream.h"
#include "models/families/traits.h"
#include "parallel/zero/grad_buffer.h"

namespace ltrain {

/// y: (T, F); hidden: (T, 2F), gate first, or (T, F) without a gate.
void feed_forward_activation(Stream& s, FeedForward kind, Tensor y, Tensor hidden);
/// Gradient of feed_forward_activation. dhidden may alias hidden. `bias`: where defined, and only without a
/// gate, the sums of dhidden's columns are added to it.
void feed_forward_activation_backward(Stream& s, FeedForward kind, Tensor dhidden, Tensor dy, Tensor hidden,
                                      const GradBuffer& bias = {});

}  // namespace ltrain
