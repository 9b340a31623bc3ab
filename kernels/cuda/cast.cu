// cast: y[i] = x[i] in y's dtype, rounding to nearest even.
//
// Shapes: x, y [n]. Launch: 256 threads, one vector of 8 elements a thread, grid-stride.
// Tried: nothing else. Same-dtype casts are copies; the launcher issues a memory copy for them.
#include "common.cuh"

template <typename X, typename Y> __device__ void cast(const X* __restrict__ x, Y* __restrict__ y, int64_t n) {
    const int64_t vectors = all_aligned16(x, y) ? n / 8 : 0;
    for (int64_t i = thread_index(); i < vectors; i += thread_count()) {
        float v[8];
        load_n(v, x + i * 8);
        store_n(y + i * 8, v);
    }
    for (int64_t i = vectors * 8 + thread_index(); i < n; i += thread_count()) y[i] = from_f32<Y>(to_f32(x[i]));
}

extern "C" __global__ void __launch_bounds__(256) cast_f32_bf16(const float* x, bf16* y, int64_t n) { cast(x, y, n); }
extern "C" __global__ void __launch_bounds__(256) cast_bf16_f32(const bf16* x, float* y, int64_t n) { cast(x, y, n); }
