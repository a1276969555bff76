// Groups of one rank: a communicator and a stream for each of the mesh's axes, made in one place for every
// device and transport.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/mesh/group.h"
#include "parallel/mesh/mesh.h"

namespace ltrain {

/// A directed connection between two pipeline stages. Its ends are ranks 0 (from) and 1 (to).
struct Link {
  int from = 0, to = 0;  ///< coordinates on the pipeline axis
  Group group;
};

/// Number of tensor-parallel ranks with the same key-value head: more than one if there are more ranks than
/// heads.
int kv_replication(int64_t key_value_heads, int64_t tensor_ranks);

/// Groups of a rank's step. Borrowed from a GroupSet.
struct Groups {
  Mesh mesh;
  Group tensor, context;
  Group depth, row, column;  ///< axes of 2D or 3D tensor parallelism
  Group rows, turned_rows;   ///< depth+row, depth+column: ranks with different tokens
  Group gradient;            ///< data, context, replica: ranks with the same parameters
  Group shard;               ///< first level of `gradient`, over which ZeRO shards; all of it with one level
  Group replicate;           ///< second level: one rank of each shard group; a group of one with one level
  Group expert;              ///< ranks over which experts are sharded: mesh.expert_axes
  Group expert_intra_node;   ///< two-level all-to-all: neighbours in `expert`; otherwise a group of one
  Group expert_inter_node;   ///< ranks with this rank's index among their neighbours
  Group expert_shard;        ///< ranks of `shard` with the same experts
  Group expert_replicate;    ///< ranks of `replicate` with the same experts
  Group world;               ///< loss, norm, and agreements of all ranks of a site
  Group sites;               ///< ranks with this rank's position in other sites; else a group of one
  Group copies;             ///< tensor ranks with the same key-value head, if there are more ranks than heads
  Group tied;               ///< first and last stage if they share the embedding; otherwise a group of one
  std::vector<Link> links;  ///< links with this rank at one end
  std::map<const Communicator*, GroupMessages> asked_for;  ///< GroupRequest::messages

  int coordinate(Axis a) const { return mesh.coordinate(a); }
  int size(Axis a) const { return mesh.size(a); }
  bool one_d() const { return mesh.tensor_mode == TensorMode::one_d; }
  /// Group of mesh.inner_axis(); over(): of the given axis.
  const Group& inner() const { return over(mesh.inner_axis()); }
  const Group& over(Axis tensor_axis) const;
  /// Group that spans exactly those of `axes`, tensor-parallel axes, that have more than one rank.
  const Group& spanning(AxisSet axes) const;
  const Group& link(int from, int to) const;
  /// Sums in place over sites values that all ranks of a site have.
  void sum_over_sites(Stream& s, Tensor values) const { start_sum_over_sites(s, values).wait(s); }
  AsyncHandle start_sum_over_sites(Stream& s, Tensor values) const;
  /// Bytes that this rank has sent over all groups.
  int64_t wire_bytes() const;
  std::vector<const Communicator*> all() const;
  std::vector<Stream*> streams() const;  ///< streams of groups with several ranks, without duplicates
  /// Communicator::check of all groups.
  void check() const;

 private:
  std::vector<const Group*> each() const;
};

/// Request for a group. `ranks`: world ranks in the order of the group. `whole`: it spans its axes.
struct GroupRequest {
  std::string name;  ///< "tensor"; unique among the groups of a rank
  AxisSet axes;
  std::vector<int> ranks;
  bool whole = true;
  GroupMessages messages = GroupMessages::tensors;
};
using MakeGroup = std::function<std::unique_ptr<Communicator>(const GroupRequest&)>;
using MakeStream = std::function<std::unique_ptr<Stream>(const std::string& name)>;

/// Owner of the groups in Groups. All ranks build them in the same order, so that rendezvous cannot cross.
class GroupSet {
 public:
  struct Options {
    bool tied_stages = false;     ///< the first and the last stage share a weight
    int intra_node_experts = 0;   ///< neighbours in the expert group; 0: one level
    int64_t key_value_heads = 0;  ///< heads of the model; 0: as many as the tensor axis needs
    /// Directed pairs of pipeline coordinates that exchange tensors, the same list on every rank.
    std::vector<std::pair<int, int>> links;
    /// Every rank makes every group, in one order, as NCCL requires: make_group is also called for groups in
    /// which this rank is alone, and with no ranks for groups without this rank.
    bool together = false;
  };
  GroupSet(const Mesh& mesh, const MakeGroup& make_group, const MakeStream& make_stream,
           const Options& options);
  GroupSet(const Mesh& mesh, const MakeGroup& make_group, const MakeStream& make_stream)
      : GroupSet(mesh, make_group, make_stream, Options()) {}
  /// Groups of a single rank.
  GroupSet();
  const Groups& groups() const { return groups_; }
  /// World ranks of each group with several ranks.
  const std::vector<std::vector<int>>& members() const { return members_; }
  /// On meta: end of the last stream, in seconds.
  double clock() const;
  /// Waits for all enqueued work. Rethrows.
  void synchronize();

 private:
  /// `several`: some rank of the world shares such a group with others.
  Group make(const MakeGroup& make_group, GroupRequest request, Stream* stream, bool several);
  Stream* stream(const MakeStream& make_stream, const std::string& name);

  bool together_ = false;
  Groups groups_;
  std::vector<std::vector<int>> members_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<Stream>> streams_;  // after comms_: destroyed before them
};

/// Recording groups and meta streams for the rank of `mesh`; sets the trace's axes. `ranks_on_host`:
/// consecutive ranks of each host (0: one host has all), which determines the network of a group's bytes.
GroupSet make_meta_groups(const Mesh& mesh, MetaTrace& trace, const GroupSet::Options& options = {},
                          int ranks_on_host = 0);
void set_axes(MetaTrace& trace, const Mesh& mesh);
std::unique_ptr<Communicator> make_recording_group(const GroupRequest& request, int world_rank,
                                                   int ranks_on_host = 0);

}  // namespace ltrain
