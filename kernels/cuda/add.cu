// add: out[i] = a[i] + b[i], one rounding.
//
// Shapes: a, b, out [n]. Launch: 256 threads, one vector of 8 elements a thread, grid-stride.
// Tried: nothing else; three streams of 16-byte accesses.
#include "common.cuh"

template <typename T>
__device__ void add(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, int64_t n) {
    const int64_t vectors = all_aligned16(a, b, out) ? n / 8 : 0;
    for (int64_t i = thread_index(); i < vectors; i += thread_count()) {
        float x[8], y[8];
        load_n(x, a + i * 8);
        load_n(y, b + i * 8);
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] += y[k];
        store_n(out + i * 8, x);
    }
    for (int64_t i = vectors * 8 + thread_index(); i < n; i += thread_count()) {
        out[i] = from_f32<T>(to_f32(a[i]) + to_f32(b[i]));
    }
}

extern "C" __global__ void __launch_bounds__(256) add_f32(const float* a, const float* b, float* out, int64_t n) {
    add(a, b, out, n);
}
extern "C" __global__ void __launch_bounds__(256) add_bf16(const bf16* a, const bf16* b, bf16* out, int64_t n) {
    add(a, b, out, n);
}
