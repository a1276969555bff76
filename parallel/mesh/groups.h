// The groups of one rank: a communicator and a stream for each of the mesh's axes, made in one place for
// every device and transport.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/mesh/group.h"
#include "parallel/mesh/mesh.h"

namespace ltrain {

/// One directed connection between two pipeline stages. Its two ends are ranks 0 (from) and 1 (to).
struct Link {
  int from = 0, to = 0;  ///< coordinates on the pipeline axis
  Group group;
};

/// Tensor-parallel ranks that hold the same key-value head: more than one when there are more ranks than
/// heads.
int kv_replication(int64_t key_value_heads, int64_t tensor_ranks);

/// What a rank's step communicates through. Borrowed from a GroupSet.
struct Groups {
  Mesh mesh;
  Group tensor, context;
  Group depth, row, column;  ///< of a 2D or 3D tensor parallelism
  Group rows, turned_rows;   ///< depth+row, depth+column: ranks whose tokens differ
  Group gradient;            ///< data, context, replica: ranks that have the same parameters
  Group shard;               ///< of them, the first level: ZeRO cuts over it; all where there is one level
  Group replicate;           ///< the second level: one of each shard group; of one where there is one level
  Group expert;              ///< that experts are cut over: mesh.expert_axes
  Group expert_intra_node;   ///< with an all-to-all on two levels: neighbours of it; else of one
  Group expert_inter_node;   ///< those that have this rank's place among their neighbours
  Group expert_shard;        ///< of `shard`, those that have the same experts
  Group expert_replicate;    ///< likewise of `replicate`
  Group world;               ///< loss, norm, and what all agree on
  Group copies;              ///< tensor ranks that hold the same key-value head, where there are more of them
  Group tied;                ///< first and last stage, when they share the embedding; else of one
  std::vector<Link> links;   ///< those with this rank at one end
  std::map<const Communicator*, GroupMessages> asked_for;  ///< GroupRequest::messages

  int coordinate(Axis a) const { return mesh.coordinate(a); }
  int size(Axis a) const { return mesh.size(a); }
  bool one_d() const { return mesh.tensor_mode == TensorMode::one_d; }
  /// Of mesh.inner_axis(), of that axis.
  const Group& inner() const { return over(mesh.inner_axis()); }
  const Group& over(Axis tensor_axis) const;
  /// The group that spans exactly those axes of `axes`, tensor-parallel ones, that have more than one rank.
  const Group& spanning(AxisSet axes) const;
  const Group& link(int from, int to) const;
  /// Bytes that this rank has sent over all of them.
  int64_t wire_bytes() const;
  std::vector<const Communicator*> all() const;
  std::vector<Stream*> streams() const;  ///< of groups of several, each once
  /// Communicator::check of all.
  void check() const;

 private:
  std::vector<const Group*> each() const;
};

/// A group as it is asked for. `ranks`: world ranks in the order of the group. `whole`: it spans its axes.
struct GroupRequest {
  std::string name;  ///< "tensor"; unique among the groups that a rank is in
  AxisSet axes;
  std::vector<int> ranks;
  bool whole = true;
  GroupMessages messages = GroupMessages::tensors;
};
using MakeGroup = std::function<std::unique_ptr<Communicator>(const GroupRequest&)>;
using MakeStream = std::function<std::unique_ptr<Stream>(const std::string& name)>;

/// Owns what Groups borrows. All ranks build theirs in the same order, so that rendezvous cannot cross.
class GroupSet {
 public:
  struct Options {
    bool tied_stages = false;     ///< the first and the last stage share a weight
    int intra_node_experts = 0;   ///< ranks of the expert group that are neighbours; 0: one level
    int64_t key_value_heads = 0;  ///< of the model; 0: as many as the tensor axis needs
    /// Directed pairs of pipeline coordinates that exchange tensors, the same list on every rank.
    std::vector<std::pair<int, int>> links;
    /// Every rank makes every group, in one order, as NCCL needs it: make_group is also called for groups in
    /// which this rank is alone, and without ranks for those that it is not in.
    bool together = false;
  };
  GroupSet(const Mesh& mesh, const MakeGroup& make_group, const MakeStream& make_stream,
           const Options& options);
  GroupSet(const Mesh& mesh, const MakeGroup& make_group, const MakeStream& make_stream)
      : GroupSet(mesh, make_group, make_stream, Options()) {}
  /// A rank alone.
  GroupSet();
  const Groups& groups() const { return groups_; }
  /// The world ranks of each group of several.
  const std::vector<std::vector<int>>& members() const { return members_; }
  /// On meta: when the last stream ends, seconds.
  double clock() const;
  /// Waits for all that was enqueued. Rethrows.
  void synchronize();

 private:
  /// `several`: some rank of the world is in such a group with others.
  Group make(const MakeGroup& make_group, GroupRequest request, Stream* stream, bool several);
  Stream* stream(const MakeStream& make_stream, const std::string& name);

  bool together_ = false;
  Groups groups_;
  std::vector<std::vector<int>> members_;
  std::vector<std::unique_ptr<Communicator>> comms_;
  std::vector<std::unique_ptr<Stream>> streams_;  // after comms_: gone before them
};

/// Recording groups and meta streams for the rank of `mesh`; sets the trace's axes. `ranks_on_host`: hosts
/// have so many consecutive ranks each (0: one has all), which says what a group's bytes go over.
GroupSet make_meta_groups(const Mesh& mesh, MetaTrace& trace, const GroupSet::Options& options = {},
                          int ranks_on_host = 0);
void set_axes(MetaTrace& trace, const Mesh& mesh);
std::unique_ptr<Communicator> make_recording_group(const GroupRequest& request, int world_rank,
                                                   int ranks_on_host = 0);

}  // namespace ltrain
