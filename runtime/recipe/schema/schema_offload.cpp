// Keys of offload.
#include "runtime/recipe/schema/key_makers.h"
#include "runtime/recipe/schema/schema_parts.h"

namespace ltrain::recipe {
namespace {

struct Words {
  const char *device, *fraction;
};

/// Adds device, fraction and path of a section. Get: Recipe& to its OffloadPlace&.
template <class Get>
void add_place(std::vector<Key>& t, const std::string& section, Get get, const Words& words,
               std::vector<std::string> aliases = {}) {
  t.push_back(choice(
      section + ".device", [get](Recipe & r) -> auto& { return get(r).device; }, {}, words.device));
  t.push_back(
      number(
          section + ".fraction", [get](Recipe & r) -> auto& { return get(r).fraction; }, words.fraction)
          .between(0, 1));
  Key path = text(
      section + ".path", [get](Recipe & r) -> auto& { return get(r).path; },
      "nvme: a folder of the file system that takes the files.");
  path.alias(std::move(aliases));
  path.when(section + ".device: nvme", true,
            [get](const Recipe& r) { return get(const_cast<Recipe&>(r)).device == OffloadDevice::nvme; });
  t.push_back(std::move(path));
}

}  // namespace

void add_offload_keys(std::vector<Key>& t) {
  add_place(t, "offload.optimizer", LT_MEMBER(offload.optimizer),
            {"Where states of the optimizer (moments, master weights) lie between updates. cpu: in the "
             "host's memory, of steps on a GPU. nvme: in files, of steps on either.",
             "Part of them that lies there."},
            {"nvme_path"});
  add_place(t, "offload.params", LT_MEMBER(offload.params),
            {"parallel.zero_stage: 3: where a rank's pieces of the weights lie between gathers. cpu, nvme: "
             "as of the optimizer.",
             "Part of the buckets whose weights lie there."});
  add_place(t, "offload.activations", LT_MEMBER(offload.activations),
            {"Where what layers keep for their backward lies meanwhile: all of it, or what recompute.tensors "
             "names. cpu, nvme: as of the optimizer.",
             "Part of a stage's layers whose activations leave, the first ones."});
}

}  // namespace ltrain::recipe
