// NCCL, opened when the first group of several GPUs is made.
#include <nccl.h>

#include <cstring>
#include <thread>

#include "base/error.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/library.h"
#include "parallel/nccl/library.h"

namespace ltrain::nccl {
namespace {

/// Oldest version with all functions used here (ncclCommSplit, the latest, came with 2.18). Versions before
/// the compiled one are untested.
constexpr int kOldestVersion = 22000;

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
    case DType::u32:
      return ncclUint32;
    case DType::u16:  // moved, never summed
      return ncclFloat16;
    case DType::f8e4m3:
    case DType::f8e5m2:
      break;  // ranks send no codes
  }
  fail(ExitCode::internal, "{} has no type of NCCL", dtype_name(t));
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

class RealLibrary final : public Library {
 public:
  RealLibrary() : library_("libnccl", {2}) {
    if (!library_.found())
      fail(ExitCode::usage,
           "NCCL is not there, and several GPUs need it: {}\nwhat would help: its folder in LD_LIBRARY_PATH "
           "or in "
           "LTRAIN_CUDA_LIBS",
           library_.why());
    load(get_version_, "ncclGetVersion");
    int v = 0;
    get_version_(&v);
    version_ = fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
    if (v < kOldestVersion) fail(ExitCode::usage, "NCCL {} is older than 2.20, which is needed", version_);
    load(get_error_string_, "ncclGetErrorString");
    load(get_last_error_, "ncclGetLastError");
    load(get_unique_id_, "ncclGetUniqueId");
    load(init_, "ncclCommInitRankConfig");
    load(split_, "ncclCommSplit");
    load(async_error_, "ncclCommGetAsyncError");
    load(abort_, "ncclCommAbort");
    load(destroy_, "ncclCommDestroy");
    load(all_reduce_, "ncclAllReduce");
    load(all_gather_, "ncclAllGather");
    load(reduce_scatter_, "ncclReduceScatter");
    load(broadcast_, "ncclBroadcast");
    load(reduce_, "ncclReduce");
    load(send_, "ncclSend");
    load(recv_, "ncclRecv");
    load(group_start_, "ncclGroupStart");
    load(group_end_, "ncclGroupEnd");
  }

  std::string version() const override { return version_; }

  UniqueId unique_id() override {
    ncclUniqueId id;
    if (const ncclResult_t r = get_unique_id_(&id); r != ncclSuccess)
      fail(ExitCode::rank_lost, "NCCL {} gives no address for the others: {}", version_,
           get_error_string_(r));
    UniqueId out;
    static_assert(sizeof(out) == sizeof(id.internal));
    std::memcpy(out.data(), id.internal, sizeof(id.internal));
    return out;
  }

  std::function<void()> on_this_gpu() const override {
    int device = 0;
    cuda::cuda_check(cudaGetDevice(&device), "asking for this thread's GPU");
    return [device] { cuda::cuda_check(cudaSetDevice(device), "using a GPU on another thread"); };
  }

  Status init(Comm& comm, int size, const UniqueId& id, int rank) override {
    ncclUniqueId native;
    std::memcpy(native.internal, id.data(), id.size());
    cuda::cuda_check(cudaGetDevice(&device_), "asking for this thread's GPU");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    return status_of(init_(&comm, size, native, rank, &config), nullptr);
  }

  /// Shares nothing with the parent: kernels of communicators that share resources wait for each other's end.
  Status split(Comm& child, Comm parent, int color, int key, int most_channels) override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (most_channels > 0) config.maxCTAs = most_channels;
    return status_of(split_(parent, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &child, &config), parent);
  }

  Status state(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = async_error_(comm, &state);
    return status_of(asked == ncclSuccess ? state : asked, comm);
  }

  /// An abort sets its communicator's flag and then waits for its kernels, which may wait behind those of
  /// another. With one thread each, all flags are set.
  void abort(const std::vector<Comm>& comms) override {
    std::vector<std::thread> threads;
    for (const Comm comm : comms)
      threads.emplace_back([this, comm] {
        cudaSetDevice(device_);  // otherwise the thread would take memory of GPU 0
        abort_(comm);
      });
    for (std::thread& t : threads) t.join();
  }
  void destroy(Comm comm) override { destroy_(comm); }

  Status all_reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, ReduceOp op) override {
    return status_of(
        all_reduce_(data, data, static_cast<size_t>(n), type_of(t), op_of(op), comm, cuda::native(s)), comm);
  }
  Status all_gather(Comm comm, Stream& s, void* out, const void* in, int64_t n, DType t) override {
    return status_of(all_gather_(in, out, static_cast<size_t>(n), type_of(t), comm, cuda::native(s)), comm);
  }
  Status reduce_scatter(Comm comm, Stream& s, void* out, const void* in, int64_t n, DType t) override {
    return status_of(
        reduce_scatter_(in, out, static_cast<size_t>(n), type_of(t), ncclSum, comm, cuda::native(s)), comm);
  }
  Status broadcast(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) override {
    return status_of(broadcast_(data, data, static_cast<size_t>(n), type_of(t), root, comm, cuda::native(s)),
                     comm);
  }
  Status reduce(Comm comm, Stream& s, void* data, int64_t n, DType t, int root) override {
    return status_of(
        reduce_(data, data, static_cast<size_t>(n), type_of(t), ncclSum, root, comm, cuda::native(s)), comm);
  }
  Status send(Comm comm, Stream& s, const void* data, int64_t n, DType t, int peer) override {
    return status_of(send_(data, static_cast<size_t>(n), type_of(t), peer, comm, cuda::native(s)), comm);
  }
  Status recv(Comm comm, Stream& s, void* data, int64_t n, DType t, int peer) override {
    return status_of(recv_(data, static_cast<size_t>(n), type_of(t), peer, comm, cuda::native(s)), comm);
  }
  Status group_start() override { return status_of(group_start_(), nullptr); }
  Status group_end() override { return status_of(group_end_(), nullptr); }

 private:
  template <class F>
  void load(F*& function, const char* name) {
    function = library_.function<F>(name);
  }
  Status status_of(ncclResult_t r, ncclComm_t comm) const {
    if (r == ncclSuccess || r == ncclInProgress) return {};  // a call of another thread may be in progress
    const char* last = get_last_error_(comm);
    return {true, fmt::format("NCCL {}: {}{}{}", version_, get_error_string_(r), last && *last ? ": " : "",
                              last ? last : "")};
  }

  cuda::Library library_;
  std::string version_;
  int device_ = 0;  // GPU of the communicators
  decltype(ncclGetVersion)* get_version_ = nullptr;
  decltype(ncclGetErrorString)* get_error_string_ = nullptr;
  decltype(ncclGetLastError)* get_last_error_ = nullptr;
  decltype(ncclGetUniqueId)* get_unique_id_ = nullptr;
  decltype(ncclCommInitRankConfig)* init_ = nullptr;
  decltype(ncclCommSplit)* split_ = nullptr;
  decltype(ncclCommGetAsyncError)* async_error_ = nullptr;
  decltype(ncclCommAbort)* abort_ = nullptr;
  decltype(ncclCommDestroy)* destroy_ = nullptr;
  decltype(ncclAllReduce)* all_reduce_ = nullptr;
  decltype(ncclAllGather)* all_gather_ = nullptr;
  decltype(ncclReduceScatter)* reduce_scatter_ = nullptr;
  decltype(ncclBroadcast)* broadcast_ = nullptr;
  decltype(ncclReduce)* reduce_ = nullptr;
  decltype(ncclSend)* send_ = nullptr;
  decltype(ncclRecv)* recv_ = nullptr;
  decltype(ncclGroupStart)* group_start_ = nullptr;
  decltype(ncclGroupEnd)* group_end_ = nullptr;
};

}  // namespace

std::string missing_library() {
  try {
    open_library();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

std::shared_ptr<Library> open_library() {
  static const auto library = std::make_shared<RealLibrary>();
  return library;
}

}  // namespace ltrain::nccl
