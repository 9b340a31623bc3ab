// What every kernel shares: 16-byte vectors, conversions, reductions in a fixed order.
//
// Conventions of all kernels here. Tensors are row-major and dense. Sizes and indices are 64-bit. Arithmetic is f32,
// rounding to nearest even on store. No atomics: every sum is taken in an order that the shape alone determines, so
// results have the same bits on every run and on every GPU of one architecture. Wide accesses are used where the
// pointers and row lengths allow them, plain ones otherwise; which, is decided from the arguments, in the kernel.
#pragma once
#include <cuda_bf16.h>
#include <math_constants.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

#define FULL_WARP 0xffffffffu

template <typename T> struct alignas(16) Pack {
    static constexpr int N = 16 / sizeof(T);
    T v[N];
};

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) { return __float2bfloat16_rn(x); }

template <typename T> __device__ __forceinline__ Pack<T> load_pack(const T* p) {
    Pack<T> out;
    *reinterpret_cast<uint4*>(out.v) = *reinterpret_cast<const uint4*>(p);
    return out;
}
template <typename T> __device__ __forceinline__ void store_pack(T* p, const Pack<T>& x) {
    *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(x.v);
}

// N consecutive elements as floats, by 16-byte accesses where N elements fill them, by one of 8 bytes for four bf16, one by
// one otherwise.
template <int N, typename T> __device__ __forceinline__ void load_n(float (&out)[N], const T* p) {
    if constexpr (N * sizeof(T) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += Pack<T>::N) {
            Pack<T> x = load_pack(p + i);
#pragma unroll
            for (int k = 0; k < Pack<T>::N; k++) out[i + k] = to_f32(x.v[k]);
        }
    } else if constexpr (N * sizeof(T) == 8) {
        alignas(8) T x[N];
        *reinterpret_cast<uint2*>(x) = *reinterpret_cast<const uint2*>(p);
#pragma unroll
        for (int k = 0; k < N; k++) out[k] = to_f32(x[k]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) out[i] = to_f32(p[i]);
    }
}
template <int N, typename T> __device__ __forceinline__ void store_n(T* p, const float (&x)[N]) {
    if constexpr (N * sizeof(T) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += Pack<T>::N) {
            Pack<T> out;
#pragma unroll
            for (int k = 0; k < Pack<T>::N; k++) out.v[k] = from_f32<T>(x[i + k]);
            store_pack(p + i, out);
        }
    } else if constexpr (N * sizeof(T) == 8) {
        alignas(8) T out[N];
#pragma unroll
        for (int k = 0; k < N; k++) out[k] = from_f32<T>(x[k]);
        *reinterpret_cast<uint2*>(p) = *reinterpret_cast<const uint2*>(out);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) p[i] = from_f32<T>(x[i]);
    }
}

__device__ __forceinline__ bool aligned16(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }
template <typename... P> __device__ __forceinline__ bool all_aligned16(P... p) { return (aligned16(p) && ...); }

// Sum over the warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL_WARP, x, d);
    return x;
}

// Sum over the block, the same bits in every thread. `scratch` holds 32 floats; a barrier ends each use.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    __syncthreads();
    return x;
}

__device__ __forceinline__ int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
__device__ __forceinline__ int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
__device__ __forceinline__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Index of this thread in a one-dimensional grid, and the grid's threads.
__device__ __forceinline__ int64_t thread_index() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t thread_count() { return int64_t(gridDim.x) * blockDim.x; }
