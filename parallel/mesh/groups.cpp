#include "parallel/mesh/groups.h"

#include <algorithm>

#include "kernels/meta/meta.h"
#include "kernels/meta/placement_rules.h"

namespace ltrain {

int kv_replication(int64_t heads, int64_t ranks) {
  return heads > 0 && ranks > heads && ranks % heads == 0 ? static_cast<int>(ranks / heads) : 1;
}

const Group& Groups::over(Axis a) const {
  return a == Axis::depth ? depth : a == Axis::row ? row : a == Axis::column ? column : tensor;
}

const Group& Groups::spanning(AxisSet axes) const {
  const auto longer = [&](AxisSet set) { return long_axes(set, [&](Axis a) { return size(a); }); };
  for (const Group* g : {&tensor, &depth, &rows, &turned_rows})
    if (g->size() > 1 && longer(g->axes()) == longer(axes)) return *g;
  fail(ExitCode::internal, "no group over {}", axis_set_name(axes));
}

const Group& Groups::link(int from, int to) const {
  for (const Link& l : links)
    if (l.from == from && l.to == to) return l.group;
  fail(ExitCode::internal, "no link from stage {} to stage {}", from, to);
}

AsyncHandle Groups::start_sum_over_sites(Stream& s, Tensor values) const {
  if (sites.size() == 1) return {};
  if (s.meta()) place_set(s, values, Axis::replica, Placement::P());
  return sites.start_all_reduce(s, values);
}

std::vector<const Group*> Groups::each() const {
  std::vector<const Group*> out{&tensor,
                                &context,
                                &depth,
                                &row,
                                &column,
                                &rows,
                                &turned_rows,
                                &gradient,
                                &shard,
                                &replicate,
                                &expert,
                                &expert_intra_node,
                                &expert_inter_node,
                                &expert_shard,
                                &expert_replicate,
                                &world,
                                &sites,
                                &copies,
                                &tied};
  for (const Link& l : links) out.push_back(&l.group);
  return out;
}

std::vector<const Communicator*> Groups::all() const {
  std::vector<const Communicator*> out;
  for (const Group* g : each())
    if (g->comm_ && std::find(out.begin(), out.end(), g->comm_) == out.end()) out.push_back(g->comm_);
  return out;
}

std::vector<Stream*> Groups::streams() const {
  std::vector<Stream*> out;
  for (const Group* g : each())
    if (g->comm_ && g->size() > 1 && std::find(out.begin(), out.end(), g->stream_) == out.end())
      out.push_back(g->stream_);
  return out;
}

void Groups::check() const {
  for (const Communicator* c : all()) c->check();
}

int64_t Groups::wire_bytes() const {
  int64_t bytes = 0;
  for (const Communicator* c : all()) bytes += c->wire_bytes();
  return bytes;
}

Stream* GroupSet::stream(const MakeStream& make_stream, const std::string& name) {
  streams_.push_back(make_stream(name));
  return streams_.back().get();
}

Group GroupSet::make(const MakeGroup& make_group, GroupRequest request, Stream* stream, bool several) {
  if (request.ranks.size() > 1) members_.push_back(request.ranks);
  const bool ask = request.ranks.size() > 1 || (several && together_);
  comms_.push_back(ask ? make_group(request) : make_single_group(request.name, request.axes));
  groups_.asked_for[comms_.back().get()] = request.messages;
  return {comms_.back().get(), stream};
}

GroupSet::GroupSet(const Mesh& mesh, const MakeGroup& make_group, const MakeStream& make_stream,
                   const Options& options) {
  together_ = options.together;
  groups_.mesh = mesh;
  Stream* comm = stream(make_stream, "comm");
  const auto over = [&](const char* name, AxisSet axes, Stream* on) {
    return make(make_group, {name, axes, mesh.group(axes), true}, on, mesh.size(axes) > 1);
  };
  const auto own_stream = [&](Axis a) {
    return mesh.size(a) > 1 ? stream(make_stream, std::string(axis_name(a))) : comm;
  };
  groups_.tensor = over("tensor", Axis::tensor, own_stream(Axis::tensor));
  groups_.context = over("context", Axis::context, own_stream(Axis::context));
  groups_.depth = over("depth", Axis::depth, own_stream(Axis::depth));
  groups_.row = over("row", Axis::row, own_stream(Axis::row));
  groups_.column = over("column", Axis::column, own_stream(Axis::column));
  groups_.rows = over("rows", Axis::depth | Axis::row, comm);
  const bool turns = mesh.tensor_mode == TensorMode::three_d;
  groups_.turned_rows =
      turns ? over("turned rows", Axis::depth | Axis::column, comm)
            : make(make_group, {"turned rows", Axis::depth | Axis::column, {mesh.rank}, false}, comm, false);
  groups_.gradient = over("gradient", kGradientAxes, comm);
  groups_.shard = mesh.two_levels() ? over("shard", mesh.shard, comm) : groups_.gradient;
  // Own stream: it sums one bucket while the first level has the next.
  groups_.replicate =
      over("replicate", mesh.replicate(), mesh.two_levels() ? stream(make_stream, "replicate") : comm);
  const AxisSet experts = mesh.expert_axes;
  const bool cut = mesh.size(experts) > 1;
  groups_.expert = over("expert", experts, cut ? stream(make_stream, "expert") : comm);
  groups_.expert_shard = cut ? over("expert shard", mesh.shard.without(experts), comm) : groups_.shard;
  groups_.expert_replicate =
      cut ? over("expert replicate", mesh.replicate().without(experts), groups_.replicate.stream_)
          : groups_.replicate;
  // On the stream of the full expert group: the levels of an exchange run one after the other.
  const std::vector<int> of_experts = mesh.group(experts);
  const int total = static_cast<int>(of_experts.size()), place = mesh.place_in(experts),
            near = options.intra_node_experts > 0 ? options.intra_node_experts : 1;
  LT_CHECK(total % near == 0, "expected neighbours that divide {} expert ranks, got {}", total, near);
  std::vector<int> intra_node_ranks, inter_node_ranks;
  for (int i = 0; i < total; ++i) {
    if (i / near == place / near) intra_node_ranks.push_back(of_experts[i]);
    if (near > 1 ? i % near == place % near : i == place) inter_node_ranks.push_back(of_experts[i]);
  }
  groups_.expert_intra_node = make(make_group, {"expert intra-node", experts, intra_node_ranks, false},
                                   groups_.expert.stream_, near > 1);
  groups_.expert_inter_node = make(make_group, {"expert inter-node", experts, inter_node_ranks, false},
                                   groups_.expert.stream_, near > 1);
  // If one group has all ranks, gradients and agreements share it.
  const bool flat = mesh.site_ranks() == mesh.size(kGradientAxes);
  groups_.world =
      flat ? groups_.gradient
           : make(make_group, {"world", kAllAxes, mesh.group(kAllAxes), true, GroupMessages::numbers}, comm,
                  mesh.site_ranks() > 1);
  // To placements it is an outer level of the data axis.
  groups_.sites = make(make_group, {"sites", Axis::replica, mesh.site_peers(), false},
                       mesh.sites > 1 ? stream(make_stream, "sites") : comm, mesh.sites > 1);
  const int stage = mesh.coordinate(Axis::pipeline), last = mesh.size(Axis::pipeline) - 1;
  std::vector<int> tied{mesh.rank};
  const bool ties = options.tied_stages && last > 0;
  if (ties && (stage == 0 || stage == last))
    tied = {mesh.at(Axis::pipeline, 0), mesh.at(Axis::pipeline, last)};
  groups_.tied = make(make_group, {"tied", Axis::pipeline, tied, false}, comm, ties);
  // Neighbours on the tensor axis, on its stream: their sums come between the others'.
  std::vector<int> copies = mesh.group(Axis::tensor);
  const int n = kv_replication(options.key_value_heads, groups_.tensor.size());
  const int first = groups_.tensor.rank() / n * n;
  copies = {copies.begin() + first, copies.begin() + first + n};
  groups_.copies = make(make_group, {"copies", Axis::tensor, copies, false}, groups_.tensor.stream_, n > 1);
  for (const auto& [from, to] : options.links) {
    const std::string name = fmt::format("stage {} to {}", from, to);
    if (stage != from && stage != to) {
      if (together_) make_group({name, Axis::pipeline, {}, false, GroupMessages::transfers});
      continue;
    }
    const std::vector<int> ends{mesh.at(Axis::pipeline, from), mesh.at(Axis::pipeline, to)};
    Stream* on = stream(make_stream, name);
    groups_.links.push_back(
        {from, to,
         make(make_group, {name, Axis::pipeline, ends, false, GroupMessages::transfers}, on, true)});
    comms_.back()->connect(*on, 0, 1);  // in the order of the list on every rank
  }
}

GroupSet::GroupSet()
    : GroupSet(
          Mesh{}, [](const GroupRequest&) { return nullptr; },
          [](const std::string& name) { return make_inline_stream(name); }) {}

double GroupSet::clock() const {
  double end = 0;
  for (const auto& s : streams_) end = std::max(end, s->clock);
  return end;
}

void GroupSet::synchronize() {
  for (auto& s : streams_) s->synchronize();
}

std::unique_ptr<Communicator> make_recording_group(const GroupRequest& r, int world_rank, int ranks_on_host) {
  const auto place = std::find(r.ranks.begin(), r.ranks.end(), world_rank) - r.ranks.begin();
  int others = 0;  // ranks on other hosts
  for (int rank : r.ranks) others += ranks_on_host > 0 && rank / ranks_on_host != world_rank / ranks_on_host;
  const double share = r.ranks.size() > 1 ? others / static_cast<double>(r.ranks.size() - 1) : 0;
  return make_recording_group(static_cast<int>(place), static_cast<int>(r.ranks.size()), r.name, r.axes,
                              r.whole, share, r.ranks);
}

void set_axes(MetaTrace& trace, const Mesh& mesh) {
  for (int i = 0; i < kAxisCount; ++i) trace.set_axis_size(static_cast<Axis>(i), mesh.degree[i]);
}

GroupSet make_meta_groups(const Mesh& mesh, MetaTrace& trace, const GroupSet::Options& options,
                          int ranks_on_host) {
  set_axes(trace, mesh);
  return GroupSet(
      mesh, [&](const GroupRequest& r) { return make_recording_group(r, mesh.rank, ranks_on_host); },
      [&](const std::string& name) { return make_meta_stream(name, trace); }, options);
}

}  // namespace ltrain
