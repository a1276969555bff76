// Settings of DiLoCo (arXiv:2311.08105): sites that train apart and average their changes now and then. With
// fragments, a delay or a merge it is Streaming DiLoCo (arXiv:2501.18512).
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/enum_names.h"

namespace ltrain {

/// Type of the sums of differences over sites.
enum class SiteSum : uint8_t { fp32, int8 };
LT_ENUM_NAMES(SiteSum, {SiteSum::fp32, "fp32"}, {SiteSum::int8, "int8"});

/// Micro-batches of a site: of each `of` neighbouring ones of a global batch, `count` from number `first` on.
struct SiteShare {
  int64_t first = 0, count = 1, of = 1;
  /// Number in the global batch of the site's micro-batch `i`.
  int64_t at(int64_t i) const { return i / count * of + first + i % count; }
};

struct DilocoSettings {
  int64_t sites = 0;  ///< 0: off
  int64_t inner_steps = 100;
  double outer_lr = 0.7, outer_momentum = 0.9;
  bool nesterov = true;
  int64_t fragments = 1;  ///< groups of layers, each with a synchronization of its own in inner_steps steps
  int64_t delay = 0;      ///< steps from a fragment's difference of weights to its outer update
  double merge = 0;       ///< share of a site's own weights that an outer update leaves
  SiteSum sum = SiteSum::fp32;  ///< fp32: in the type of the weights
  /// Parts of each global batch by site; empty: equal ones. Only their ratios matter.
  std::vector<int64_t> shares;

  bool on() const { return sites > 0; }
  /// True if sites also agree after step `step`, counted from 1: on requests to stop and biases of routers.
  bool agrees_after(int64_t step) const { return on() && step % inner_steps == 0; }
  /// True if sites have weights of their own at every step.
  bool streams() const { return on() && (fragments > 1 || delay > 0 || merge > 0); }
  /// Fragment whose outer update follows step `step`; -1: none.
  int updates_after(int64_t step) const {
    return on() && step > 0 && step % interval() == 0 ? static_cast<int>((step / interval() - 1) % fragments)
                                                      : -1;
  }
  /// Fragment whose difference is taken after step `step`; -1: none.
  int sends_after(int64_t step) const { return updates_after(step + delay); }
  /// Fragment whose difference is on its way after step `step`; -1: none. The delay is below interval().
  int in_flight_after(int64_t step) const {
    const int64_t due = on() ? (step / interval() + 1) * interval() : 0;
    return on() && due - step <= delay && step > 0 ? updates_after(due) : -1;
  }
  /// Share of site `site` in the global batch, in lowest terms, so that equal shares are those of no shares.
  SiteShare share(int64_t site) const {
    if (shares.empty()) return {site, 1, std::max<int64_t>(1, sites)};
    const auto at = shares.begin() + site;
    const int64_t unit = std::reduce(shares.begin(), shares.end(), int64_t{0}, std::gcd<int64_t, int64_t>);
    return {std::reduce(shares.begin(), at) / unit, *at / unit,
            std::reduce(shares.begin(), shares.end()) / unit};
  }
  /// Factor of a site's change of weights before the mean over sites: its share of the batch over the mean
  /// share.
  double weight(int64_t site) const {
    const SiteShare s = share(site);
    return static_cast<double>(s.count * std::max<int64_t>(1, sites)) / static_cast<double>(s.of);
  }
  /// Largest SiteShare::count of all sites.
  int64_t largest_share() const {
    return shares.empty() ? 1 : share(std::ranges::max_element(shares) - shares.begin()).count;
  }
  /// Steps from the outer update of a fragment to that of the next one.
  int64_t interval() const { return inner_steps / fragments; }
};

}  // namespace ltrain
