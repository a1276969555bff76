#include "tests/parity/covering/covering_array.h"

#include <algorithm>
#include <array>
#include <random>

namespace ltrain::test {
namespace {

constexpr size_t kSample = 150;  // rows of `allowed` that are looked at for each new row

/// Levels are numbered over all factors. A row is a head, of the bound factors, and a tail, of the free ones:
/// a triple is of the head, of the tail, or of both, so that what heads and tails have in common is counted
/// once and not for each of their pairs.
class Cover {
 public:
  Cover(const std::vector<Factor>& factors, const std::vector<Row>& allowed)
      : factors_(factors), allowed_(allowed), bound_(allowed.front().size()) {
    for (const Factor& f : factors) {
      first_.push_back(levels_);
      levels_ += f.levels.size();
    }
    first_.push_back(levels_);
    open_.assign(levels_ * levels_ * levels_, false);
    Row free(factors.size() - bound_, 0);
    do {
      tails_.push_back(free);
    } while (next(free));
    for (const Row& head : allowed)
      each_possible(head, [&](size_t id) {
        left_ += !open_[id];
        open_[id] = true;
      });
  }

  std::vector<Row> rows() {
    std::vector<Row> rows;
    std::mt19937 random(12345);
    for (size_t target = 0; left_ > 0;) {
      while (!open_[target]) ++target;
      const Triple wanted = triple(target);
      std::vector<const Row*> heads;
      for (const Row& head : allowed_)
        if (agrees(head, 0, wanted)) heads.push_back(&head);
      std::shuffle(heads.begin(), heads.end(), random);
      heads.resize(std::min(heads.size(), kSample));
      std::vector<Tail> tails;
      for (const Row& tail : tails_)
        if (agrees(tail, bound_, wanted)) tails.push_back(of_tail(tail));
      const Row *best_head = nullptr, *best_tail = nullptr;
      int most = -1;
      for (const Row* head : heads) {
        const Gains gains = gains_of(*head);
        for (const Tail& tail : tails)
          if (const int gain = gains.with(tail, levels_); gain > most)
            most = gain, best_head = head, best_tail = tail.row;
      }
      Row best = *best_head;
      best.insert(best.end(), best_tail->begin(), best_tail->end());
      each(best, [&](size_t id) {
        left_ -= open_[id];
        open_[id] = false;
      });
      rows.push_back(std::move(best));
    }
    return rows;
  }

 private:
  struct Wanted {
    size_t factor;
    int level;
  };
  using Triple = std::array<Wanted, 3>;

  struct Tail {
    const Row* row;
    std::vector<size_t> levels;
    int own;  ///< open triples of its own
  };

  /// Open triples that a head brings.
  struct Gains {
    int own = 0;
    std::vector<int> one, two;  ///< with a level of a tail, with two of them
    int with(const Tail& tail, size_t levels) const {
      int gain = own + tail.own;
      for (size_t x = 0; x < tail.levels.size(); ++x) {
        gain += one[tail.levels[x]];
        for (size_t y = x + 1; y < tail.levels.size(); ++y)
          gain += two[tail.levels[x] * levels + tail.levels[y]];
      }
      return gain;
    }
  };

  /// The next of all combinations of the free factors; false after the last.
  bool next(Row& free) const {
    for (size_t i = 0; i < free.size(); ++i) {
      if (++free[i] < static_cast<int>(factors_[bound_ + i].levels.size())) return true;
      free[i] = 0;
    }
    return false;
  }
  size_t level(size_t factor, int l) const { return first_[factor] + static_cast<size_t>(l); }
  size_t id(size_t a, size_t b, size_t c) const { return (a * levels_ + b) * levels_ + c; }

  template <class F>
  void each(const Row& row, F f) const {
    for (size_t a = 0; a < row.size(); ++a)
      for (size_t b = a + 1; b < row.size(); ++b)
        for (size_t c = b + 1; c < row.size(); ++c)
          f(id(level(a, row[a]), level(b, row[b]), level(c, row[c])));
  }
  /// All triples that the head has with one tail or another.
  template <class F>
  void each_possible(const Row& head, F f) const {
    const auto begin = [&](size_t at) { return at < bound_ ? level(at, head[at]) : first_[at]; };
    const auto end = [&](size_t at) { return at < bound_ ? level(at, head[at]) + 1 : first_[at + 1]; };
    for (size_t a = 0; a < factors_.size(); ++a)
      for (size_t b = a + 1; b < factors_.size(); ++b)
        for (size_t c = b + 1; c < factors_.size(); ++c)
          for (size_t x = begin(a); x < end(a); ++x)
            for (size_t y = begin(b); y < end(b); ++y)
              for (size_t z = begin(c); z < end(c); ++z) f(id(x, y, z));
  }

  Tail of_tail(const Row& row) const {
    Tail tail{&row, {}, 0};
    for (size_t i = 0; i < row.size(); ++i) tail.levels.push_back(level(bound_ + i, row[i]));
    for (size_t x = 0; x < row.size(); ++x)
      for (size_t y = x + 1; y < row.size(); ++y)
        for (size_t z = y + 1; z < row.size(); ++z)
          tail.own += open_[id(tail.levels[x], tail.levels[y], tail.levels[z])];
    return tail;
  }
  Gains gains_of(const Row& head) const {
    Gains gains;
    gains.one.resize(levels_);
    gains.two.resize(levels_ * levels_);
    for (size_t a = 0; a < bound_; ++a) {
      const size_t at = level(a, head[a]);
      for (size_t x = first_[bound_]; x < levels_; ++x)
        for (size_t y = x + 1; y < levels_; ++y) gains.two[x * levels_ + y] += open_[id(at, x, y)];
      for (size_t b = a + 1; b < bound_; ++b) {
        const size_t too = level(b, head[b]);
        for (size_t x = first_[bound_]; x < levels_; ++x) gains.one[x] += open_[id(at, too, x)];
        for (size_t c = b + 1; c < bound_; ++c) gains.own += open_[id(at, too, level(c, head[c]))];
      }
    }
    return gains;
  }

  Triple triple(size_t id) const {
    Triple t;
    for (size_t i = 3; i-- > 0; id /= levels_) {
      const size_t want = id % levels_;
      const size_t factor =
          static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), want) - first_.begin()) - 1;
      t[i] = {factor, static_cast<int>(want - first_[factor])};
    }
    return t;
  }
  /// Returns whether factors from `from` on, with these levels, do not contradict the triple.
  static bool agrees(const Row& part, size_t from, const Triple& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&](const Wanted& w) {
      return w.factor < from || w.factor >= from + part.size() || part[w.factor - from] == w.level;
    });
  }

  const std::vector<Factor>& factors_;
  const std::vector<Row>& allowed_;
  size_t bound_, levels_ = 0, left_ = 0;
  std::vector<size_t> first_;  // first level of each factor among all levels; then their number
  std::vector<Row> tails_;
  std::vector<char> open_;  // triples that can be and are not covered
};

}  // namespace

std::vector<Row> covering_array(const std::vector<Factor>& factors, const std::vector<Row>& allowed) {
  return Cover(factors, allowed).rows();
}

}  // namespace ltrain::test
