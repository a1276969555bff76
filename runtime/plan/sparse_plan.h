// Which matrices of a recipe are 2:4 sparse, and whether those of a checkpoint are.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "runtime/recipe/recipe.h"

namespace ltrain {

/// By name, with their whole shapes. Error (usage) when a pattern chooses none.
std::map<std::string, Shape> sparse_matrices(const Recipe& recipe);

/// The first row and column of a four of a whole matrix (row-major, doubles of its values) that has more than
/// two numbers other than zero, in words, or "".
std::string dense_four(const std::vector<double>& values, const Shape& shape);

/// Of a checkpoint whose recipe asks for it and that is past the update of the choice: that each chosen
/// matrix is 2:4 sparse. Error (storage) naming the matrix that is not. How many were looked at; hashes are
/// not.
int check_2_4(const std::string& checkpoint);

}  // namespace ltrain
