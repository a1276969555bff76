// Marker for functions that CPU and CUDA kernels share.
#pragma once

#ifdef __CUDACC__
#define LT_HD __host__ __device__
#else
#define LT_HD
#endif
