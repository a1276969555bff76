// cuDNN's graph attention through its frontend, a header library that is slow to compile and is included only
// here. libcudnn and libnvrtc, which compiles its kernels, are opened on first use.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <mutex>

#include "kernels/attention/attention_cudnn.h"
#include "kernels/attention/attention_cudnn_plan.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/library.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // handle in which the frontend looks up cuDNN's functions
}

namespace fe = cudnn_frontend;

namespace ltrain {
namespace {

/// 9.11. The frontend's refusals for older versions were not reviewed, and some of its graphs for them are
/// filled from host memory.
constexpr size_t kOldest = 91100;
/// Before this version, backward pads odd lengths by a table that each call copies from the host.
constexpr size_t kTakesOddLengths = 91501;

std::string text_of(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

struct Libraries {
  cuda::Library cudnn{"libcudnn", {9}};
  std::unique_ptr<cuda::Library> compiler;
  std::string missing;
  size_t version = 0;

  Libraries() {
    if (!cudnn.found()) {
      missing = "libcudnn is not there: " + cudnn.why();
      return;
    }
    version = cudnn.function<size_t()>("cudnnGetVersion")();
    // Its kernels are compiled by the libnvrtc of the CUDA version that it was built with, which it opens by
    // name.
    const int cuda = static_cast<int>(cudnn.function<size_t()>("cudnnGetCudartVersion")() / 1000);
    compiler = std::make_unique<cuda::Library>("libnvrtc", std::vector<int>{cuda});
    if (version < kOldest) {
      missing = fmt::format("libcudnn is {}; {} or newer is needed", text_of(version), text_of(kOldest));
    } else if (!compiler->found()) {
      missing = "libnvrtc, which cuDNN compiles its kernels with, is not there: " + compiler->why();
    } else {
      fe::cudnn_dlhandle = cudnn.handle();
    }
  }
};

const Libraries& libraries() {
  static const Libraries* one = new Libraries;  // lives as long as the process
  return *one;
}

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Ids of the tensors of a graph.
enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

struct Plan {
  fe::graph::Graph graph;
  std::string refused;  ///< reason if there is no plan
  int64_t workspace = 0;
};

fe::DataType_t type_of(DType t) { return t == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16; }

/// Builds the description as a graph, ready for planning.
void describe(fe::graph::Graph& g, const CudnnAttention& a) {
  const auto attributes = [&](const char* name, Uid uid, int64_t heads, int64_t width, const CudnnStrides& s,
                              fe::DataType_t type) {
    return fe::graph::Tensor_attributes()
        .set_name(name)
        .set_uid(uid)
        .set_dim({a.batch, heads, a.seq, width})
        .set_stride({s.sample, s.head, s.row, 1})
        .set_data_type(type);
  };
  const fe::DataType_t narrow = type_of(a.type), wide = fe::DataType_t::FLOAT;
  const auto input = [&](const char* name, Uid uid, int64_t heads, const CudnnStrides& s) {
    return g.tensor(attributes(name, uid, heads, a.head_dim, s, narrow));
  };
  const auto output = [&](const Tensor& t, Uid uid, int64_t heads, const CudnnStrides& s) {
    t->set_output(true)
        .set_uid(uid)
        .set_dim({a.batch, heads, a.seq, a.head_dim})
        .set_stride({s.sample, s.head, s.row, 1})
        .set_data_type(narrow);
  };
  g.set_io_data_type(narrow).set_intermediate_data_type(wide).set_compute_data_type(wide);
  const Tensor q = input("q", kQ, a.heads, a.q), k = input("k", kK, a.kv_heads, a.k),
               v = input("v", kV, a.kv_heads, a.v);
  const float scale = static_cast<float>(a.scale);
  if (!a.backward) {
    const auto [out, lse] = g.sdpa(q, k, v,
                                   fe::graph::SDPA_attributes()
                                       .set_name("attention")
                                       .set_generate_stats(true)
                                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                       .set_diagonal_band_right_bound(0)
                                       .set_attn_scale(scale));
    output(out, kOut, a.heads, a.out);
    lse->set_output(true)
        .set_uid(kLse)
        .set_dim({a.batch, a.heads, a.seq, 1})
        .set_stride({a.lse.sample, a.lse.head, a.lse.row, 1})
        .set_data_type(wide);
    return;
  }
  const Tensor out = input("out", kOut, a.heads, a.out), dout = input("d out", kDout, a.heads, a.dout);
  const Tensor lse = g.tensor(attributes("lse", kLse, a.heads, 1, a.lse, wide));
  const auto [dq, dk, dv] = g.sdpa_backward(q, k, v, out, dout, lse,
                                            fe::graph::SDPA_backward_attributes()
                                                .set_name("attention backward")
                                                .set_deterministic_algorithm(a.deterministic)
                                                .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                                .set_diagonal_band_right_bound(0)
                                                .set_attn_scale(scale));
  output(dq, kDq, a.heads, a.dq);
  output(dk, kDk, a.kv_heads, a.dk);
  output(dv, kDv, a.kv_heads, a.dv);
}

/// Plans a graph for a present card (`handle`) or for a described one (`card`). Returns cuDNN's reason if it
/// refuses, else an empty string.
std::string plan(Plan& p, const CudnnAttention& a, int capability, cudnnHandle_t handle,
                 const std::shared_ptr<fe::DeviceProperties>& card) {
  if (a.backward && a.seq % 128 != 0 && libraries().version < kTakesOddLengths)
    return fmt::format("cuDNN {}: backward of {} positions, which is no multiple of 128: 9.16 is needed",
                       text_of(libraries().version), a.seq);
  fe::error_t e;
  try {
    p.graph.set_sm_version(capability);  // first: nodes copy it, and would otherwise ask the driver
    if (card) p.graph.set_device_properties(card);
    describe(p.graph, a);
    e = p.graph.validate();
    if (e.is_good()) e = handle ? p.graph.build_operation_graph(handle) : p.graph.build_operation_graph();
    if (e.is_good()) e = p.graph.create_execution_plans({fe::HeurMode_t::A});
    if (e.is_good()) p.graph.deselect_workspace_greater_than(a.workspace);
    if (e.is_good()) e = p.graph.check_support();
    if (e.is_good()) e = p.graph.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (e.is_good()) e = p.graph.get_workspace_size(p.workspace);
  } catch (const std::exception& thrown) {
    return fmt::format("cuDNN: {}", thrown.what());
  }
  if (e.is_bad()) return fmt::format("cuDNN: {}", e.get_message());
  if (p.workspace > a.workspace)
    return fmt::format("cuDNN wants a workspace of {} bytes, and there are {}", p.workspace, a.workspace);
  return "";
}

/// State of one GPU: a handle, used by one thread at a time, and the cached plans.
struct Card {
  cudnnHandle_t handle = nullptr;
  std::string refused;
  std::map<CudnnAttention, std::unique_ptr<Plan>> plans;
};
std::mutex cards_mutex;
/// Never destroyed: the driver may shut down before static objects.
std::map<int, Card>& cards() {
  static auto* all = new std::map<int, Card>;
  return *all;
}

std::string said(cudnnStatus_t status) { return fe::detail::get_error_string(status); }

Card& card_of(int index) {
  const auto [at, fresh] = cards().try_emplace(index);
  Card& card = at->second;
  if (!fresh) return card;
  if (const cudnnStatus_t status = fe::detail::create_handle(&card.handle); status != CUDNN_STATUS_SUCCESS) {
    card.handle = nullptr;
    card.refused = "starting cuDNN: " + said(status);
  }
  return card;
}

}  // namespace

std::string cudnn_missing() { return libraries().missing; }
std::string cudnn_version() { return text_of(libraries().version); }

std::string cudnn_attention(Stream& s, const CudnnAttention& what, const CudnnBuffers& at) {
  int index = 0;
  cuda::cuda_check(cudaGetDevice(&index), "asking about a GPU");
  const std::lock_guard lock(cards_mutex);
  Card& card = card_of(index);
  if (!card.handle) return card.refused;
  std::unique_ptr<Plan>& p = card.plans[what];
  if (!p) {
    if (s.recording())
      return "a shape that was first met while a graph is recorded, when no plan can be made";
    p = std::make_unique<Plan>();
    p->refused = plan(*p, what, cuda::device_info().capability, card.handle, nullptr);
  }
  if (!p->refused.empty()) return p->refused;
  if (const cudnnStatus_t status = fe::detail::set_stream(card.handle, cuda::native(s));
      status != CUDNN_STATUS_SUCCESS)
    return "giving cuDNN a stream: " + said(status);
  const auto to = [](const void* p) { return const_cast<void*>(p); };
  std::unordered_map<int64_t, void*> buffers{
      {kQ, to(at.q)}, {kK, to(at.k)}, {kV, to(at.v)}, {kOut, at.out}, {kLse, at.lse}};
  if (what.backward) {
    buffers.insert({{kDout, to(at.dout)}, {kDq, at.dq}, {kDk, at.dk}, {kDv, at.dv}});
  }
  // A failure may leave part of the work on the stream. The native kernels that follow overwrite all of it.
  void* const workspace = at.workspace ? at.workspace : cuda::scratch(s, p->workspace);
  fe::error_t e = p->graph.execute(card.handle, buffers, workspace);
  return e.is_good() ? "" : fmt::format("cuDNN: {}", e.get_message());
}

CudnnPlanned cudnn_plan_for(const CudnnAttention& what, int capability, const std::string& card) {
  if (!libraries().missing.empty()) return {libraries().missing, 0};
  const auto properties = std::make_shared<fe::DeviceProperties>();
  if (fe::error_t e = properties->deserialize({card.begin(), card.end()}); e.is_bad())
    return {"the card's description: " + e.get_message(), 0};
  Plan p;
  const std::string refused = plan(p, what, capability, nullptr, properties);
  return {refused, p.workspace};
}

}  // namespace ltrain
