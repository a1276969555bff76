#include "tests/parity/covering_array.h"

#include <algorithm>
#include <random>

namespace ltrain::test {
namespace {

constexpr size_t kSample = 150;  // rows of `allowed` that are looked at for each new row

class Cover {
 public:
  Cover(const std::vector<Factor>& factors, const std::vector<Row>& allowed)
      : factors_(factors), allowed_(allowed), bound_(allowed.front().size()) {
    for (const Factor& f : factors) {
      first_.push_back(levels_);
      levels_ += f.levels.size();
    }
    open_.assign(levels_ * levels_ * levels_, false);
    Row free(factors.size() - bound_, 0);
    do {
      frees_.push_back(free);
    } while (next(free));
    for (const Row& head : allowed)
      for (const Row& tail : frees_)
        each(joined(head, tail), [&](size_t id) {
          left_ += !open_[id];
          open_[id] = true;
        });
  }

  std::vector<Row> rows() {
    std::vector<Row> rows;
    std::mt19937 random(12345);
    for (size_t target = 0; left_ > 0;) {
      while (!open_[target]) ++target;
      std::vector<const Row*> heads;
      for (const Row& head : allowed_)
        if (agrees(head, 0, target)) heads.push_back(&head);
      std::shuffle(heads.begin(), heads.end(), random);
      heads.resize(std::min(heads.size(), kSample));
      Row best;
      int most = -1;
      for (const Row* head : heads)
        for (const Row& tail : frees_) {
          if (!agrees(tail, bound_, target)) continue;
          const Row row = joined(*head, tail);
          int gain = 0;
          each(row, [&](size_t id) { gain += open_[id]; });
          if (gain > most) most = gain, best = row;
        }
      each(best, [&](size_t id) {
        left_ -= open_[id];
        open_[id] = false;
      });
      rows.push_back(best);
    }
    return rows;
  }

 private:
  static Row joined(Row head, const Row& tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  }
  /// The next of all combinations of the free factors; false after the last.
  bool next(Row& free) const {
    for (size_t i = 0; i < free.size(); ++i) {
      if (++free[i] < static_cast<int>(factors_[bound_ + i].levels.size())) return true;
      free[i] = 0;
    }
    return false;
  }
  size_t level(size_t factor, int l) const { return first_[factor] + static_cast<size_t>(l); }
  template <class F>
  void each(const Row& row, F f) const {
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b)
        for (size_t c = b + 1; c < row.size(); ++c)
          f((level(a, row[a]) * levels_ + level(b, row[b])) * levels_ + level(c, row[c]));
  }
  /// Whether factors from `from` on, with these levels, do not contradict the triple.
  bool agrees(const Row& part, size_t from, size_t id) const {
    for (const size_t want : {id / levels_ / levels_, id / levels_ % levels_, id % levels_}) {
      const size_t factor =
          static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), want) - first_.begin()) - 1;
      if (factor >= from && factor < from + part.size() && level(factor, part[factor - from]) != want)
        return false;
    }
    return true;
  }

  const std::vector<Factor>& factors_;
  const std::vector<Row>& allowed_;
  size_t bound_, levels_ = 0, left_ = 0;
  std::vector<size_t> first_;  // of each factor, among the levels of all
  std::vector<Row> frees_;
  std::vector<bool> open_;  // triples that can be and are not covered
};

}  // namespace

std::vector<Row> covering_array(const std::vector<Factor>& factors, const std::vector<Row>& allowed) {
  return Cover(factors, allowed).rows();
}

}  // namespace ltrain::test
