// The meta device records a step instead of running it.
//
// Every op and collective on a meta stream reports its cost, which a CostModel turns into seconds on the
// stream's timeline, and the placements of its inputs and outputs, which the rules of
// `kernels/meta/placement_rules.h` check. MetaMemory (kernels/meta/meta_memory.h) records allocations.
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

/// The op that wrote a tensor, for messages. Both texts are interned.
struct WrittenBy {
  std::string_view op, layer;
  bool none() const { return op.empty(); }
  std::string text() const;  ///< "op in layer"
};

/// Data of one tensor on the meta device (one allocation; views share it).
struct TensorRecord {
  std::string_view name;         ///< interned
  const void* memory = nullptr;  ///< memory that it was allocated from, and the offset in it
  int64_t offset = -1;
  Placements place;
  int copies = 0;          ///< P over this many neighbours of the axis instead of all; 0: all
  int sent = 0;            ///< number of sends to another stage
  bool written = false;    ///< true after the first write
  bool unread = false;     ///< written by a collective, and not read since
  bool zero = false;       ///< all zeros: gets the placement of the first tensor added to it
  WrittenBy made_partial;  ///< last op that made it P
  WrittenBy last_writer;
};

/// Kinds of work with separate prices in a machine profile.
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
/// Names of transfers between a rank's memory and its offload target.
inline constexpr std::string_view kOffloadFetch = "offload_fetch", kOffloadStore = "offload_store";

/// Purpose of an op, where plans must tell ops apart. The op sets it: a plan does not read names.
enum class OpRole : uint8_t {
  other,
  weight_gradient,   ///< matmul that a split backward defers
  operand_rounding,  ///< rounds an operand of FP8 matmuls, or finds its scale
  token_lookup       ///< embeds tokens
};

/// One piece of work for the cost model.
struct OpCost {
  std::string_view name;
  OpClass cls = OpClass::elementwise;
  OpRole role = OpRole::other;
  DType dtype = DType::f32;
  double flops = 0;
  /// Part of `flops` that counts for MFU: two for each multiply-add of a matmul, forward once and backward
  /// twice; attention only over pairs that the mask lets through. Recomputation and elementwise work do not
  /// count.
  double model_flops = 0;
  /// Attention's backward: extra FLOPs of ltrain's GPU kernels. The kernel for queries and the kernel for
  /// keys each compute scores and gradients of probabilities.
  double recomputed_flops = 0;
  double bytes = 0;             ///< bytes read and written, each once
  int64_t m = 0, n = 0, k = 0;  ///< matmul only: rows, columns, contraction
  double nonzeros = 1;          ///< matmul that skips zeros: share of nonzeros of its sparse operand
  std::string_view collective;  ///< "all_reduce", ...; collectives only
  std::string_view axis;        ///< mesh axes that the group spans and that have more than one rank
  AxisSet axes;                 ///< axes of the group
  int group_size = 1;
  const std::vector<int>* ranks = nullptr;  ///< the group's ranks in the job; null: unknown
  double wire_bytes = 0;                    ///< sent by this rank
  double network_bytes = 0;                 ///< part of them sent to other hosts
  double received_bytes = 0;                ///< all_to_all of uneven rows: bytes from other ranks
};

/// Prices of ops. A price is a function of all OpCost fields except the axes and the
/// role.
class CostModel {
 public:
  virtual ~CostModel() = default;
  /// True if every op must be priced; false if equal ops share a price.
  virtual bool sees_each() const { return false; }
  virtual double seconds(const OpCost& op) const = 0;
  /// Seconds of the compute stream that a collective takes, because it runs on the same cores.
  virtual double stolen_seconds(const OpCost& op) const { return 0; }
};

/// One entry of a trace. Its texts are interned.
struct TraceEntry {
  std::string_view name, layer, stream, collective, axis;
  double start = 0, seconds = 0, flops = 0, bytes = 0, wire_bytes = 0, network_bytes = 0;
  OpClass cls = OpClass::elementwise;
  AxisSet axes;  ///< axes of a collective's group
  OpRole role = OpRole::other;
  double nonzeros = 1;  ///< OpCost's
};

class MetaTrace {
 public:
  explicit MetaTrace(const CostModel* cost = nullptr) : cost_(cost) {}

  TensorRecord* new_record(std::string_view name);
  /// Appends one piece of work to the stream's timeline.
  void add(Stream& stream, const OpCost& op);
  /// Sets the stream that collectives take time from if they run on the same cores.
  void set_compute(Stream* compute) { compute_ = compute; }

  /// Sets the name of the running layer, for messages and traces: "layers.3.mlp".
  void set_layer(std::string_view layer);
  std::string_view layer() const { return layer_; }

  void set_axis_size(Axis a, int size) { axis_size_[static_cast<int>(a)] = size; }
  int axis_size(Axis a) const { return axis_size_[static_cast<int>(a)]; }

  /// Clears entries (not records); called between set-up and the step.
  void clear_entries();
  /// False skips entries, for callers that need only clocks and memory.
  void keep_entries(bool keep) { keeps_ = keep; }

  const std::vector<TraceEntry>& entries() const { return entries_; }
  /// Work that is counted again without running again: entries [first, last), and their model FLOPs.
  struct Part {
    size_t first = 0, last = 0;
    double model_flops = 0;
  };
  void repeat(const Part& part);
  const std::vector<Part>& repeats() const { return repeats_; }
  double repeated_wire_bytes() const { return repeated_wire_bytes_; }
  /// Sum of OpCost::model_flops, without recomputation.
  double model_flops() const { return model_flops_; }
  /// True if work from now on is the model's; false for recomputation and the optimizer's matmuls.
  void set_model_work(bool on) { model_work_ = on; }

  /// GEMM packing buffers beside the arena: the largest size of each, in bytes.
  void need_panels(const std::array<int64_t, 3>& bytes) {
    for (int i = 0; i < 3; ++i) panels_[i] = std::max(panels_[i], bytes[i]);
  }
  int64_t panel_bytes() const { return panels_[0] + panels_[1] + panels_[2]; }

 private:
  /// All OpCost fields that a cost model may use. Texts are interned, so that their addresses identify them.
  struct PriceKey {
    const char *name, *collective;
    const std::vector<int>* ranks;
    double flops, recomputed_flops, bytes, wire_bytes, network_bytes, received_bytes;
    int64_t m, n, k;
    double nonzeros;
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
  /// Price of an op with interned texts. `stolen`: also the time that a collective takes from the compute
  /// stream.
  Price price(const OpCost& op, bool stolen);

  const CostModel* cost_;
  std::unordered_map<PriceKey, Price, PriceHash> prices_;
  Stream* compute_ = nullptr;
  std::pmr::monotonic_buffer_resource record_memory_;  // larger allocations than a deque's own
  std::pmr::deque<TensorRecord> records_{&record_memory_};
  std::vector<TraceEntry> entries_;
  std::vector<Part> repeats_;
  double repeated_wire_bytes_ = 0;
  bool keeps_ = true;
  std::string_view layer_;
  std::array<int, kAxisCount> axis_size_{1, 1, 1, 1, 1, 1, 1, 1, 1};
  double model_flops_ = 0;
  bool model_work_ = true;
  std::array<int64_t, 3> panels_{};
};

/// Stream whose clock advances by the times of the trace's cost model.
std::unique_ptr<Stream> make_meta_stream(std::string name, MetaTrace& trace);

}  // namespace ltrain
