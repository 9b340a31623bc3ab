// rope: rotary position embedding, in place, half-split layout. Element i of a query or key head pairs with i + half and
// turns by position * inv_freq[i]; value heads are left alone. `inverse` turns backwards.
//
// Shapes: qkv [tokens, (heads + 2 kv_heads) head_dim], positions [tokens] i32. The frequencies travel as a kernel
// parameter in double, divided by pi: the angle is a product of doubles and sincospi reduces it exactly, so far positions
// lose nothing. Launch: 256 threads, one block a token: sines and cosines are computed once for all heads, into shared
// memory. Limit: head_dim <= 512. Tried: sincos(double), whose slow path for large angles needs a stack frame.
#include "common.cuh"

struct Frequencies {
    double turns[256];  // inv_freq / pi
};

template <typename T>
__device__ void rope(T* __restrict__ qkv, const int* __restrict__ positions, int64_t width, int rotated_heads, int half,
                     bool inverse, const Frequencies& frequencies) {
    __shared__ float cosine[256], sine[256];
    const int64_t token = blockIdx.x;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        double s, c;
        sincospi(double(positions[token]) * frequencies.turns[i], &s, &c);
        cosine[i] = float(c);
        sine[i] = float(inverse ? -s : s);
    }
    __syncthreads();
    T* row = qkv + token * width;
    if (half % 8 == 0 && aligned16(qkv) && width % 8 == 0) {
        const int vectors = half / 8;
        for (int item = threadIdx.x; item < rotated_heads * vectors; item += blockDim.x) {
            const int i = item % vectors * 8;
            T* at = row + int64_t(item / vectors) * 2 * half + i;
            float a[8], b[8], x[8], y[8];
            load_n(a, at);
            load_n(b, at + half);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                x[k] = a[k] * cosine[i + k] - b[k] * sine[i + k];
                y[k] = b[k] * cosine[i + k] + a[k] * sine[i + k];
            }
            store_n(at, x);
            store_n(at + half, y);
        }
    } else {
        for (int item = threadIdx.x; item < rotated_heads * half; item += blockDim.x) {
            const int i = item % half;
            T* at = row + int64_t(item / half) * 2 * half + i;
            const float a = to_f32(at[0]), b = to_f32(at[half]);
            at[0] = from_f32<T>(a * cosine[i] - b * sine[i]);
            at[half] = from_f32<T>(b * cosine[i] + a * sine[i]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    rope_f32(float* qkv, const int* positions, int64_t width, int rotated_heads, int half, int inverse,
             const __grid_constant__ Frequencies frequencies) {
    rope(qkv, positions, width, rotated_heads, half, inverse != 0, frequencies);
}
extern "C" __global__ void __launch_bounds__(256)
    rope_bf16(bf16* qkv, const int* positions, int64_t width, int rotated_heads, int half, int inverse,
              const __grid_constant__ Frequencies frequencies) {
    rope(qkv, positions, width, rotated_heads, half, inverse != 0, frequencies);
}
