// The nearest of the valid words, for error messages.
#pragma once
#include <string>
#include <vector>

namespace ltrain {

/// The text in lower case, without _ and -.
std::string folded(const std::string& s);
/// The candidate nearest to `word`; "" if none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace ltrain
