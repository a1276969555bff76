// The meta device: what a step would do, recorded instead of done.
//
// Every op and collective that runs on a meta stream reports here: its cost (which a CostModel turns into
// seconds on the stream's timeline) and the placements of what it reads and writes, which are checked by the
// rules of `kernels/meta/placement_rules.h`. Allocations are recorded by MetaAllocator
// (kernels/tensor/arena.h).
#pragma once
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/tensor/placement.h"
#include "kernels/tensor/stream.h"
#include "kernels/tensor/tensor.h"

namespace ltrain {

/// What wrote a tensor, for messages. Both texts are interned.
struct WrittenBy {
  std::string_view op, layer;
  bool none() const { return op.empty(); }
  std::string text() const;  ///< "op in layer"
};

/// What the meta device knows of one tensor (one allocation; views share it).
struct TensorRecord {
  std::string_view name;         ///< interned
  const void* memory = nullptr;  ///< that it was allocated from, and where in it
  int64_t offset = -1;
  Placements place;
  int copies = 0;          ///< P over this many neighbours of the axis, not over all of it; 0: all
  int sent = 0;            ///< times that it was sent to another stage
  bool written = false;    ///< something has put values there
  bool unread = false;     ///< written by a collective, and nothing has looked at it since
  bool zero = false;       ///< all zeros: takes the placement of the first thing added to it
  WrittenBy made_partial;  ///< what last made it P
  WrittenBy last_writer;
};

/// Kinds of work that a machine profile prices apart.
enum class OpClass : uint8_t {
  matmul,
  attention,
  elementwise,
  cross_entropy,
  optimizer,
  collective,
  offload
};
inline constexpr int kOpClassCount = 7;
std::string_view op_class_name(OpClass c);
/// Between a rank's memory and what lies outside of it.
inline constexpr std::string_view kOffloadFetch = "offload_fetch", kOffloadStore = "offload_store";

/// One piece of work as the cost model sees it.
struct OpCost {
  std::string_view name;
  OpClass cls = OpClass::elementwise;
  DType dtype = DType::f32;
  double flops = 0;
  /// Of `flops`, what counts for MFU: a product's two a multiply-add, forward once and backward twice,
  /// attention's over the pairs that the mask lets through. Not what a kernel recomputes, nor element-wise
  /// work.
  double model_flops = 0;
  /// Attention's backward: what ltrain's kernels for GPUs compute beside `flops`, scores and gradients of
  /// probabilities, which the one for queries and the one for keys have each.
  double recomputed_flops = 0;
  double bytes = 0;             ///< read and written, each once
  int64_t m = 0, n = 0, k = 0;  ///< matmul only: rows, columns, contraction
  std::string_view collective;  ///< "all_reduce", ...; collectives only
  std::string_view axis;        ///< of the mesh: those that the group spans and that have more than one rank
  AxisSet axes;                 ///< that the group is over
  int group_size = 1;
  const std::vector<int>* ranks = nullptr;  ///< of the group, as numbered in the job; null: not known
  double wire_bytes = 0;                    ///< sent by this rank
  double network_bytes = 0;                 ///< of them, to other hosts
  double received_bytes = 0;                ///< all_to_all of uneven rows: from other ranks
};

/// What it says of an op is a function of all that OpCost has but its axes.
class CostModel {
 public:
  virtual ~CostModel() = default;
  /// Whether it is to be asked for every op: else once for all that are alike.
  virtual bool sees_each() const { return false; }
  virtual double seconds(const OpCost& op) const = 0;
  /// Seconds that a collective takes from the compute stream, because its work runs on the same cores.
  virtual double stolen_seconds(const OpCost& op) const { return 0; }
};

/// One entry of the captured step. Its texts are interned.
struct TraceEntry {
  std::string_view name, layer, stream, collective, axis;
  double start = 0, seconds = 0, flops = 0, bytes = 0, wire_bytes = 0, network_bytes = 0;
  OpClass cls = OpClass::elementwise;
  AxisSet axes;  ///< of a collective's group
};

class MetaTrace {
 public:
  explicit MetaTrace(const CostModel* cost = nullptr) : cost_(cost) {}

  TensorRecord* new_record(std::string_view name);
  /// Appends one piece of work to the stream's timeline.
  void add(Stream& stream, const OpCost& op);
  /// The stream that collectives take time from when they run on the same cores.
  void set_compute(Stream* compute) { compute_ = compute; }

  /// Name of the layer that runs now, for messages and traces: "layers.3.mlp".
  void set_layer(std::string_view layer);
  std::string_view layer() const { return layer_; }

  void set_axis_size(Axis a, int size) { axis_size_[static_cast<int>(a)] = size; }
  int axis_size(Axis a) const { return axis_size_[static_cast<int>(a)]; }

  /// Forgets entries (not records): called between set-up and the step.
  void clear_entries();
  /// Whether entries are kept: not for who asks for clocks and memory alone.
  void keep_entries(bool keep) { keeps_ = keep; }

  const std::vector<TraceEntry>& entries() const { return entries_; }
  /// Sum of OpCost::model_flops, but of what is recomputed.
  double model_flops() const { return model_flops_; }
  /// Whether what runs from now on is the model's work: not what is recomputed, nor the optimizer's matmuls.
  void set_model_work(bool on) { model_work_ = on; }

  /// Scratch that matmul keeps beside the arena: the largest of each of its panels, bytes.
  void need_panels(const std::array<int64_t, 3>& bytes) {
    for (int i = 0; i < 3; ++i) panels_[i] = std::max(panels_[i], bytes[i]);
  }
  int64_t panel_bytes() const { return panels_[0] + panels_[1] + panels_[2]; }

 private:
  /// All that a cost model may ask of an op. Texts are interned, so that their places stand for them.
  struct PriceKey {
    const char *name, *collective;
    const std::vector<int>* ranks;
    double flops, recomputed_flops, bytes, wire_bytes, network_bytes, received_bytes;
    int64_t m, n, k;
    int group_size;
    OpClass cls;
    DType dtype;
    bool operator==(const PriceKey&) const = default;
  };
  struct PriceHash {
    size_t operator()(const PriceKey& key) const;
  };
  struct Price {
    double seconds = 0, stolen = 0;
    bool knows_stolen = false;
  };
  /// Of an op whose texts are interned; `stolen`: of a collective that takes time from the compute stream.
  Price price(const OpCost& op, bool stolen);

  const CostModel* cost_;
  std::unordered_map<PriceKey, Price, PriceHash> prices_;
  Stream* compute_ = nullptr;
  std::pmr::monotonic_buffer_resource record_memory_;  // a deque asks for few at once
  std::pmr::deque<TensorRecord> records_{&record_memory_};
  std::vector<TraceEntry> entries_;
  bool keeps_ = true;
  std::string_view layer_;
  std::array<int, kAxisCount> axis_size_{1, 1, 1, 1, 1, 1, 1, 1, 1};
  double model_flops_ = 0;
  bool model_work_ = true;
  std::array<int64_t, 3> panels_{};
};

/// Whose work advances a clock by what the trace's cost model says.
std::unique_ptr<Stream> make_meta_stream(std::string name, MetaTrace& trace);

}  // namespace ltrain
