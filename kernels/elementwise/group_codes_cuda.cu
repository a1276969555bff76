#include "kernels/cuda/pack_cuda.h"
#include "kernels/elementwise/group_codes.h"

namespace ltrain {
namespace cuda {
namespace {

constexpr int kLaneChannels = static_cast<int>(kGroupChannels) / kWarp;  // the numbers of one Philox call

/// Channels of a lane of the warp that has group `i` of all.
struct LaneChannels {
  int64_t row, section, channel, at;  ///< channel: in the section; at: element of the tensor
  int count;                          ///< may be zero or less
  __device__ LaneChannels(const SectionedRows& g, int64_t i) {
    const int64_t run = i / g.groups();
    row = run / g.sections, section = run % g.sections;
    channel = i % g.groups() * kGroupChannels + threadIdx.x % kWarp * kLaneChannels;
    at = run * g.width + channel;
    const int64_t left = g.width - channel;
    count = static_cast<int>(left < kLaneChannels ? left : kLaneChannels);
  }
};

/// One warp for each group. kPacks: widths are multiples of a lane's channels.
template <bool kFp8, bool kPacks, class T>
__global__ void encode_kernel(uint8_t* codes, compute_t<T>* scales, const T* x, SectionedRows g,
                              RowRandomArgs random) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread() / kWarp; i < g.rows * g.sections * g.groups(); i += grid_stride() / kWarp) {
    const LaneChannels lane(g, i);
    A v[kLaneChannels] = {};
    if constexpr (kPacks) {
      if (lane.count > 0) load_values<kLaneChannels>(v, x, lane.at);
    } else {
      for (int j = 0; j < kLaneChannels; ++j)
        if (j < lane.count) v[j] = get(x, lane.at + j);
    }
    decltype(group_codes::magnitude_bits(A())) most = 0;
    for (int j = 0; j < kLaneChannels; ++j) most = Max()(most, group_codes::magnitude_bits(v[j]));
    const A scale = group_codes::magnitude_of(warp_reduce(most, Max())) / A(kFp8 ? 448 : 127);
    if (threadIdx.x % kWarp == 0) store_one(scales, i, scale);
    if (lane.count <= 0) continue;
    Pack<uint8_t, kLaneChannels> c;
    if constexpr (kFp8) {
      for (int j = 0; j < kLaneChannels; ++j) c.v[j] = group_codes::fp8_code(v[j], scale);
    } else {
      const int64_t channel = g.channel(lane.section, random) + lane.channel;
      const uint64_t call = random.call(lane.row, g.sections * g.width);
      Philox4 four = philox(random.seed, random.stream, call + static_cast<uint64_t>(channel / 4));
      for (int j = 0; j < kLaneChannels; ++j) {
        if (!kPacks && j > 0 && (channel + j) % 4 == 0)
          four = philox(random.seed, random.stream, call + static_cast<uint64_t>((channel + j) / 4));
        const int64_t at = kPacks ? j : (channel + j) % 4;
        uint32_t word = four.v[0];  // registers have no index
        for (int i = 1; i < 4; ++i) word = at == i ? four.v[i] : word;
        c.v[j] = group_codes::int8_code(v[j], scale, group_codes::uniform(word));
      }
    }
    if constexpr (kPacks) {
      store(codes, lane.at, c);
    } else {
      for (int j = 0; j < kLaneChannels; ++j)
        if (j < lane.count) store_one(codes, lane.at + j, c.v[j]);
    }
  }
}

template <bool kFp8, bool kPacks, class T>
__global__ void decode_kernel(T* x, const uint8_t* codes, const compute_t<T>* scales, SectionedRows g) {
  using A = compute_t<T>;
  for (int64_t i = grid_thread() / kWarp; i < g.rows * g.sections * g.groups(); i += grid_stride() / kWarp) {
    const LaneChannels lane(g, i);
    if (lane.count <= 0) continue;
    const A scale = load_one(scales, i);
    A v[kLaneChannels];
    if constexpr (kPacks) {
      const Pack<uint8_t, kLaneChannels> c = load<uint8_t, kLaneChannels>(codes, lane.at);
      for (int j = 0; j < kLaneChannels; ++j) v[j] = group_codes::number_of<kFp8>(c.v[j], scale);
      store_values<kLaneChannels>(x, lane.at, v);
    } else {
      for (int j = 0; j < lane.count; ++j)
        put(x, lane.at + j, group_codes::number_of<kFp8>(load_one(codes, lane.at + j), scale));
    }
  }
}

/// Calls f.template operator()<kFp8, kPacks>().
template <class F>
void dispatch_groups(bool fp8, const SectionedRows& g, F&& f) {
  const bool packs = g.width % kLaneChannels == 0;
  if (fp8)
    packs ? f.template operator()<true, true>() : f.template operator()<true, false>();
  else
    packs ? f.template operator()<false, true>() : f.template operator()<false, false>();
}

dim3 blocks_of(const SectionedRows& g) { return blocks_for(g.rows * g.sections * g.groups() * kWarp, 256); }

}  // namespace
}  // namespace cuda

void encode_groups_cuda(Stream& s, DType t, bool to_fp8, uint8_t* codes, void* scales, const void* x,
                        SectionedRows rows, RowRandomArgs random) {
  dispatch_float(t, [&]<class T>() {
    cuda::dispatch_groups(to_fp8, rows, [&]<bool kFp8, bool kPacks>() {
      cuda::launch(s, cuda::blocks_of(rows), 256, 0, cuda::encode_kernel<kFp8, kPacks, T>, codes,
                   static_cast<compute_t<T>*>(scales), static_cast<const T*>(x), rows, random);
    });
  });
}

void decode_groups_cuda(Stream& s, DType t, bool from_fp8, void* x, const uint8_t* codes, const void* scales,
                        SectionedRows rows) {
  dispatch_float(t, [&]<class T>() {
    cuda::dispatch_groups(from_fp8, rows, [&]<bool kFp8, bool kPacks>() {
      cuda::launch(s, cuda::blocks_of(rows), 256, 0, cuda::decode_kernel<kFp8, kPacks, T>, static_cast<T*>(x),
                   codes, static_cast<const compute_t<T>*>(scales), rows);
    });
  });
}

}  // namespace ltrain
