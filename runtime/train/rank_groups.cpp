#include "runtime/train/rank_groups.h"

#include "kernels/tensor/device.h"

namespace ltrain {

std::unique_ptr<GroupSet> make_rank_groups(const Mesh& mesh, Job& job, DeviceKind device,
                                           GroupSet::Options options) {
  MakeGroup make_group = [&](const GroupRequest& r) { return job.new_group(r.name, r.axes, r.ranks); };
  if (device != DeviceKind::cpu && job.info().world_size > 1) {
    options.together = true;
    make_group = [&](const GroupRequest& r) {
      return job.new_gpu_group(r.name, r.axes, r.ranks, r.messages);
    };
  }
  const auto side_stream = [&](const std::string& name) { return make_side_stream(device, name); };
  return std::make_unique<GroupSet>(mesh, make_group, side_stream, options);
}

}  // namespace ltrain
