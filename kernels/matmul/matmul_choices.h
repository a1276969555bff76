// File of cuBLASLt's fastest algorithm for each matmul. One file for each card, driver and library version,
// because an algorithm is valid only there. Independent of cuBLASLt, and tested without it.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace ltrain {

struct MatmulChoice {
  std::array<uint64_t, 8> algorithm{};  ///< a cublasLtMatmulAlgo_t: 64 opaque bytes of the library
  int id = 0;                           ///< the library's id of the algorithm
  double microseconds = 0;              ///< measured time
};

class MatmulChoices {
 public:
  /// Reads the file. `card`: one line with card, driver and version. Damaged entries and files of another
  /// card are skipped, with the reason in note(). Empty `folder`: nothing is read or written.
  MatmulChoices(const std::string& folder, std::string card);

  /// Null if nothing was measured. `product`: letters, digits, `_` and `-`.
  const MatmulChoice* find(const std::string& product) const;
  /// Stores a choice, merged with choices that other processes have stored since. The file is replaced
  /// atomically. After a failed write, note() has the reason, and the choice stays in memory.
  void add(const std::string& product, const MatmulChoice& choice);

  const std::string& path() const { return path_; }
  const std::string& note() const { return note_; }
  int64_t size() const { return static_cast<int64_t>(choices_.size()); }

 private:
  using Choices = std::map<std::string, MatmulChoice>;
  /// Parses a file. Returns an empty string, or the reason if the text is not a file of this card.
  std::string parse(const std::string& text, Choices& to) const;
  void read();

  std::string card_, path_, note_;
  Choices choices_;
};

/// Value of LTRAIN_MATMUL_ALGORITHMS. heuristic (default): the library's first guess; measured (true):
/// several algorithms are timed when a matmul is first met. Throws for other values.
bool measure_matmuls();

}  // namespace ltrain
