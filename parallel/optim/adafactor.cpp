// Adafactor (arXiv:1804.04235): the second moment of a matrix is a row and a column.
#include "kernels/optimizer/adafactor.h"

#include <cmath>

#include "kernels/elementwise/tensor_ops.h"
#include "parallel/optim/tensor_sums.h"

namespace ltrain {
namespace {

constexpr std::string_view kRows = "exp_avg_sq_row", kCols = "exp_avg_sq_col";

class AdafactorUpdate final : public TensorUpdate {
 public:
  explicit AdafactorUpdate(UpdateContext& c) : c_(c) {
    int64_t factors = 0, sums = 0;
    for (const WholeTensor& t : c.sums().tensors()) {
      Matrix m;
      if (t.rule->factored) {
        m = {t.spec->slice.global[0], t.spec->slice.global[1], factors, sums};
        factors += m.rows + m.cols + 1;
        sums += m.rows + m.cols;
      }
      matrices_.push_back(m);
    }
    factors_ = allocate_whole(c, "rows and columns", c.master_type(), factors);
    sums_ = allocate_whole(c, "sums of rows and columns", DType::f64, sums);
  }

  void clear() override {
    if (factors_.defined()) fill_zero(c_.compute(), factors_);
  }

  std::vector<WholeState> states() const override {
    std::vector<WholeState> out;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Matrix& m = matrices_[i];
      if (m.factor < 0) continue;
      const int id = c_.sums().tensors()[i].first;
      out.push_back({id, kRows, factors_.flat(m.factor, {m.rows})});
      out.push_back({id, kCols, factors_.flat(m.factor + m.rows, {m.cols})});
    }
    return out;
  }

  void update() override {
    const OptimizerSettings& o = c_.settings();
    const OptimizerStep& step = c_.step();
    const double beta = 1 - std::pow(static_cast<double>(step.step), -o.adafactor_decay_rate);
    const double eps = c_.master_type() == DType::f64 ? 0x1p-52 : 0x1p-23;
    if (factors_.defined()) move_factors(beta);
    c_.each_stored(UpdateRule::adafactor, [&](const ParameterPart& p) {
      const Elements& e = p.elements;
      if (p.rule.factored)
        factor_direction(c_.compute(), e.grad, factors_of(p.id), part_of(p), matrix(p.id).rows,
                         step.grad_scale, eps);
      else
        plain_direction(c_.compute(), e.grad, e.states[0], beta, step.grad_scale, eps);
    });
    c_.sums().add_squares(c_, UpdateRule::adafactor);
    move_along(c_, UpdateRule::adafactor, [&](const ParameterPart& p) {
      DirectionArgs d;
      d.scale = DirectionScale::rms;
      if (p.rule.decay) d.keep = 1 - p.args.lr * p.args.weight_decay;
      d.lr = std::min(p.args.lr, 1 / std::sqrt(static_cast<double>(p.args.step)));
      d.eps = o.adafactor_eps;
      d.threshold = o.adafactor_clip_threshold;
      d.elements = static_cast<double>(p.spec.slice.global.elements());
      return d;
    });
  }

 private:
  /// For a tensor that is a matrix: offsets of its factors and their sums.
  struct Matrix {
    int64_t rows = 0, cols = 0, factor = -1, sum = -1;
  };

  const Matrix& matrix(int id) const { return matrices_[static_cast<size_t>(c_.sums().index(id))]; }
  Tensor factors_of(const Matrix& m) const { return factors_.flat(m.factor, {m.rows + m.cols + 1}); }
  Tensor factors_of(int id) const { return factors_of(matrix(id)); }
  Tensor sums_of(const Matrix& m) const { return sums_.flat(m.sum, {m.rows + m.cols}); }
  static MatrixPart part_of(const ParameterPart& p) {
    const Slice& s = p.spec.slice;
    return {s.offset[0], s.offset[1], s.extent[1], s.begin + p.begin, p.elements.grad.elements()};
  }

  void move_factors(double beta) {
    fill_zero(c_.compute(), sums_);
    c_.each_owned(UpdateRule::adafactor, [&](const ParameterPart& p) {
      if (!p.rule.factored) return;
      const Matrix& m = matrix(p.id);
      factor_sums(c_.compute(), sums_of(m), own_part(c_, p.elements.grad), part_of(p), m.rows,
                  c_.step().grad_scale);
    });
    reduce_sums(c_, sums_);
    for (const Matrix& m : matrices_)
      if (m.factor >= 0) factor_moments(c_.compute(), factors_of(m), sums_of(m), m.rows, m.cols, beta);
  }

  UpdateContext& c_;
  std::vector<Matrix> matrices_;  // in the order of TensorSums::tensors
  Tensor factors_;                // for each matrix: rows, columns, and the mean of the rows
  Tensor sums_;                   // f64, rows and columns
};

class Adafactor final : public Optimizer {
 public:
  std::vector<std::string_view> element_states(const ParameterRule& r) const override {
    return r.factored ? std::vector<std::string_view>{} : std::vector<std::string_view>{"exp_avg_sq"};
  }
  std::vector<std::string_view> tensor_states(const ParameterRule& r) const override {
    return r.factored ? std::vector<std::string_view>{kRows, kCols} : std::vector<std::string_view>{};
  }
  bool by_element() const override { return false; }
  bool needs_tensor_sums() const override { return true; }
  void adjust(ParameterRule& r, const RuleTarget& t, const OptimizerSettings&) const override {
    r.factored = t.matrix;
  }
  bool updates_elements(const OptimizerSettings&, int64_t) const override { return false; }
  std::unique_ptr<TensorUpdate> make_tensor_update(UpdateContext& c) const override {
    return std::make_unique<AdafactorUpdate>(c);
  }
};

}  // namespace

const Optimizer& adafactor_optimizer() {
  static const Adafactor optimizer;
  return optimizer;
}

}  // namespace ltrain
