// Which algorithm of cuBLASLt was the fastest for a product, kept in a file: one for each card, driver and
// version of the library, since an algorithm means nothing to another. Knows nothing of cuBLASLt, and is
// tested without it.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace ltrain {

struct MatmulChoice {
  std::array<uint64_t, 8> algorithm{};  ///< a cublasLtMatmulAlgo_t: 64 bytes that the library made
  int id = 0;                           ///< that the library calls it by
  double microseconds = 0;              ///< that it took
};

class MatmulChoices {
 public:
  /// Reads what is there. `card`: one line that names card, driver and version. What is damaged or of another
  /// card is passed over, and note() says why. An empty `folder`: nothing is read or written.
  MatmulChoices(const std::string& folder, std::string card);

  /// Null where nothing was measured. `product`: letters, digits, `_` and `-`.
  const MatmulChoice* find(const std::string& product) const;
  /// Keeps a choice, with those that other processes have added since. The file is whole at every moment;
  /// that it cannot be written is no error, and note() says why.
  void add(const std::string& product, const MatmulChoice& choice);

  const std::string& path() const { return path_; }
  const std::string& note() const { return note_; }
  int64_t size() const { return static_cast<int64_t>(choices_.size()); }

 private:
  using Choices = std::map<std::string, MatmulChoice>;
  /// Empty, or why the text is not one of this card's.
  std::string parse(const std::string& text, Choices& to) const;
  void read();

  std::string card_, path_, note_;
  Choices choices_;
};

/// LTRAIN_MATMUL_ALGORITHMS: heuristic (default): the library's first guess; measured: several are timed when
/// a product is first met. Others are refused.
bool measure_matmuls();

}  // namespace ltrain
