// Muon (Jordan et al., 2024): the direction of a matrix is its momentum, made nearly orthogonal by a
// Newton-Schulz iteration.
//
// The iteration needs the full matrix. Ranks that share a bucket gather its momentum, and each works on some
// of its matrices, with zeros for the others; the sum is the full bucket again. A matrix that the tensor axis
// shards stays sharded. With sharded rows, X^T X is a sum over the parts, and X (X^T X) needs only that sum.
// With sharded columns, X X^T is. A stack of matrices (experts) is processed matrix by matrix. Ranks that
// shard the stack have full matrices of their own.
#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/elementwise/scale_add.h"
#include "kernels/elementwise/tensor_ops.h"
#include "kernels/matmul/matmul.h"
#include "kernels/meta/placement_rules.h"
#include "kernels/optimizer/momentum.h"
#include "parallel/optim/tensor_sums.h"

namespace ltrain {
namespace {

// Coefficients of the quintic of Jordan et al., which lifts small singular values fast.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

class MuonUpdate final : public TensorUpdate {
 public:
  explicit MuonUpdate(UpdateContext& c)
      : c_(c), length_(allocate_whole(c, "length of a matrix", DType::f64, 1)) {}

  void update() override {
    MomentumArgs m;
    m.rule = MomentumRule::muon;
    m.momentum = c_.settings().muon_momentum;
    m.nesterov = true;
    m.grad_scale = c_.step().grad_scale;
    for (auto& [group, work] : load_) std::fill(work.begin(), work.end(), 0.0);
    for (int b : c_.buckets(UpdateRule::muon)) {
      const Elements e = c_.stored(b);
      momentum_update(c_.compute(), e.master, e.states[0], e.grad, {}, false, m);
      const Tensor whole = c_.gather_grads(b);
      share(b, whole);
      c_.sum_grads(b, whole);
    }
    move_along(c_, UpdateRule::muon, [&](const ParameterPart& p) {
      DirectionArgs d;
      d.lr = p.args.lr;
      if (p.rule.decay) d.keep = 1 - p.args.lr * p.args.weight_decay;
      const double rows = static_cast<double>(p.spec.matrix[0]), cols = static_cast<double>(p.spec.matrix[1]);
      d.lr *= c_.settings().muon_scale == MuonScale::match_rms_adamw ? 0.2 * std::sqrt(std::max(rows, cols))
                                                                     : std::sqrt(std::max(1.0, rows / cols));
      return d;
    });
  }

 private:
  /// Placement of a parameter's matrix on an axis. Ranks that shard a stack have different full matrices, so
  /// their results do not depend on each other.
  static Placement matrix_placement(const ParameterSpec& spec, Axis a) {
    const int stacked = spec.shape.rank - 2;
    for (int dim = 0; dim < spec.shape.rank; ++dim)
      if (spec.place[a] == Placement::S(dim))
        return dim < stacked ? Placement::R() : Placement::S(dim - stacked);
    return spec.place[a];
  }

  /// Orthogonalizes this rank's matrices of a bucket, and zeroes those of other ranks. A matrix goes to the
  /// rank with the least work so far, which all ranks compute alike.
  void share(int bucket, const Tensor& whole) {
    const Group& group = c_.group(bucket);
    std::vector<double>& load = load_[&group];
    load.resize(static_cast<size_t>(group.size()));
    for (const BucketMember& member : c_.members(bucket)) {
      const ParameterSpec& spec = member.spec;
      const Shape one{spec.shape[spec.shape.rank - 2], spec.shape[spec.shape.rank - 1]};
      for (int64_t at = 0; at < spec.shape.elements(); at += one.elements()) {
        const auto owner = std::min_element(load.begin(), load.end());
        *owner += static_cast<double>(one.elements()) * static_cast<double>(std::min(one[0], one[1]));
        const Tensor x = place_apart(c_.compute(), whole.flat(member.offset + at, one), spec.name);
        if (owner - load.begin() != group.rank()) {
          fill_zero(c_.compute(), x);
          continue;
        }
        if (c_.compute().meta())
          for (int i = 0; i < kAxisCount; ++i) {
            const Axis a = static_cast<Axis>(i);
            const bool of_tensor =
                std::find(std::begin(kTensorAxes), std::end(kTensorAxes), a) != std::end(kTensorAxes);
            if (c_.groups().size(a) > 1 && (of_tensor || !(spec.place[a] == Placement::R())))
              place_set(c_.compute(), x, a, matrix_placement(spec, a));
          }
        orthogonalize(spec, x);
      }
    }
  }

  void orthogonalize(const ParameterSpec& spec, Tensor x) {
    Stream& s = c_.compute();
    const Placement lies = matrix_placement(spec, Axis::tensor);
    const Group& t = c_.groups().tensor;
    const int copies = c_.groups().copies.size();
    const bool cut = t.size() > 1 && !(lies == Placement::R());
    const int64_t rows = x.shape[0], cols = x.shape[1];
    const bool right = cut ? lies == Placement::S(0) : rows > cols;  // multiply by X^T X from the right
    const double once = copies > 1 && spec.copied ? 1.0 / copies : 1.0;
    const auto sum = [&](Tensor of_parts) {
      if (!cut) return;
      t.all_reduce(s, of_parts);
      if (once != 1.0) scale_add(s, of_parts, once, {}, 0);
    };
    fill_zero(s, length_);
    const Tensor flat = place_apart(s, x, "matrix of Muon");
    if (s.meta() && cut) place_set(s, flat, Axis::tensor, Placement::S(0));
    sum_squares(s, length_, flat);
    sum(length_);
    scale_add(s, x, 1.0, {}, 0, length_);
    const int64_t side = right ? cols : rows;
    const auto make = [&](const char* name, Shape shape) {
      return c_.memory().allocate(MemoryKind::temporaries, name, x.dtype, shape);
    };
    Tensor gram = make("gram of Muon", {side, side}), both = make("polynomial of Muon", {side, side}),
           y = make("product of Muon", x.shape);
    for (int64_t i = 0; i < c_.settings().muon_num_ns_steps; ++i) {
      MatmulArgs transposed;
      (right ? transposed.trans_a : transposed.trans_b) = true;
      matmul(s, gram, x, x, transposed);
      sum(gram);
      matmul(s, both, gram, gram);
      scale_add(s, both, kC, gram, kB);
      if (right) {
        matmul(s, y, x, both);
      } else {
        matmul(s, y, both, x);
      }
      scale_add(s, x, kA, y, 1.0);
    }
    for (Tensor* temporary : {&gram, &both, &y}) c_.memory().release(*temporary);
  }

  UpdateContext& c_;
  Tensor length_;  // (1) f64, for the current matrix
  std::map<const Group*, std::vector<double>>
      load_;  // work of each rank that shares a bucket, in this update
};

class Muon final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule&) const override {
    return {"momentum_buffer"};
  }
  bool by_element() const override { return false; }
  std::string_view moves_zeros(const OptimizerHyperparameters&) const override {
    return "muon's direction is of the whole matrix and moves what is zero";
  }
  bool takes(const RuleTarget& t, bool named) const override {
    return t.stack || (t.matrix && (!t.embedding || named));
  }
  void adjust(ParameterRule& r, const RuleTarget&, const OptimizerSettings& o) const override {
    r.lr_scale *= o.muon_lr_scale;
  }
  bool updates_elements(const OptimizerSettings&, int64_t) const override { return false; }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<MuonUpdate>(c);
  }
};

}  // namespace

const Optimizer& muon_optimizer() {
  static const Muon optimizer;
  return optimizer;
}

}  // namespace ltrain
