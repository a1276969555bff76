// What a layout comes to, about: composed of passes on meta over a few layers, which many layouts share.
// Ranks layouts; what is shown of one is its plan.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "runtime/plan/plan.h"
#include "runtime/plan/search_space.h"

namespace ltrain {

struct Estimate {
  double step_seconds = 0;
  double bytes = 0;  ///< of the rank that takes most
};

/// Keeps the passes that it has made. Not to be used by several threads at once.
class Estimator {
 public:
  /// `recipe` is not resolved; it and `profile` outlive this.
  Estimator(const Recipe& recipe, const MachineProfile& profile, const SearchLimits& limits)
      : given_(recipe), profile_(profile), limits_(limits) {}
  /// Of a layout that the rules allow.
  Estimate of(const Layout& layout);
  size_t passes() const { return parts_.size(); }

 private:
  /// One micro-batch of a rank that has every layer, of which passes are made over one and over two.
  struct Part {
    double forward = 0, backward = 0;     ///< of a layer
    double ends = 0;                      ///< embedding and head, both ways
    double update = 0, update_layer = 0;  ///< of a model of one layer; of each other one
    double layer_params = 0, layer_grads = 0, layer_states = 0, layer_activations = 0;
    double rest_params = 0, rest_grads = 0, rest_states = 0;  ///< of embedding and head
    double other_bytes = 0;                                   ///< temporaries and external memory
  };
  /// A pipeline whose stages cost alike.
  struct Pace {
    double micros = 0;  ///< makespan over the time of a micro-batch on a rank
    double kept = 1;    ///< micro-batches whose activations a rank keeps
  };
  /// Seconds of a collective by its bytes: straight lines.
  struct Line {
    double fixed = 0, per_byte = 0, stolen = 0;  ///< stolen: seconds of compute for each of it
    double at(double bytes) const { return bytes > 0 ? fixed + per_byte * bytes : 0; }
  };
  struct Sums {
    Line scatter, gather;  ///< also over both levels, where there are two
    double parts = 1;      ///< that states are cut into
  };
  const Part& part(const Layout& layout);
  const Pace& pace(const Layout& layout, int64_t micros);
  const Sums& sums(const Layout& layout);
  Part pass(const Layout& layout) const;
  Line line(const std::string& op, const std::vector<int>& group) const;

  const Recipe& given_;
  const MachineProfile& profile_;
  const SearchLimits& limits_;
  using PartKey = std::tuple<int64_t, bool, int64_t, ContextComm, int64_t, int64_t, int64_t,
                             RecomputeGranularity, Precision>;
  std::map<PartKey, Part> parts_;
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, Pace> paces_;
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, int64_t>, Sums> sums_;
};

}  // namespace ltrain
