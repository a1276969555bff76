// Drawings of a schedule on a time axis, as text and as SVG.
#pragma once
#include <string>

#include "parallel/pipeline/simulate.h"

namespace ltrain::pipeline {

/// One row for each rank, time to the right, at most `width` columns. An action is its letter (F, B, I, W),
/// its micro-batch and, with several chunks, the chunk as a letter (a: the first): "F12b---". A dot is idle
/// time. Text beneath says what a narrow terminal omits. `costs` names the costs: "F = I = W = 1".
std::string draw_text(const Schedule& schedule, const Timing& timing, int width, const std::string& costs);

/// Table of bubble and peak activations by rank, beneath the drawing.
std::string rank_table(const Schedule& schedule, const Timing& timing);

/// The drawing as SVG, readable without colour.
std::string draw_svg(const Schedule& schedule, const Timing& timing, const std::string& costs);

}  // namespace ltrain::pipeline
