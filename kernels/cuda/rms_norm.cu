// rms_norm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps).
// rms_norm_backward: with g = dy * weight, n = x * rstd: dx (+)= rstd * (g - n * mean(g n)), dweight (+)= sum_t dy n.
//
// Shapes: x, y, dy, dx [rows, dim], weight [dim], rstd [rows] f32, dweight [dim] f32.
//
// Forward. Launch: one block a row, 128 threads for dim <= 2048, 256 beyond; the second read of the row hits the cache.
//
// Backward. Launch: one block of 256 threads a part of `rows_per_part` rows, which the shape determines; the block's
// weight gradient stays in dynamic shared memory (dim floats), each thread adding to its own columns only; at the end it
// goes to parts [parts, dim] f32, summed by `sum_parts` (reduce.cu).
// Tried: nothing else.
#include "common.cuh"

template <int N, typename T>
__device__ void rms_norm(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ y, float* __restrict__ rstd,
                         int64_t dim, float eps, float* scratch) {
    const int64_t row = blockIdx.x;
    x += row * dim;
    y += row * dim;
    float squares = 0.0f;
    for (int64_t c = int64_t(threadIdx.x) * N; c < dim; c += int64_t(blockDim.x) * N) {
        float v[N];
        load_n(v, x + c);
#pragma unroll
        for (int k = 0; k < N; k++) squares += v[k] * v[k];
    }
    const float r = 1.0f / sqrtf(block_sum(squares, scratch) / float(dim) + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    for (int64_t c = int64_t(threadIdx.x) * N; c < dim; c += int64_t(blockDim.x) * N) {
        float v[N], w[N];
        load_n(v, x + c);
        load_n(w, weight + c);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = v[k] * r * w[k];
        store_n(y + c, v);
    }
}

template <int N, typename T>
__device__ void rms_norm_backward(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ weight,
                                  const float* __restrict__ rstd, T* __restrict__ dx, float* __restrict__ parts, int64_t rows,
                                  int64_t dim, int64_t rows_per_part, bool add_to_dx, float* dweight, float* scratch) {
    const int64_t step = int64_t(blockDim.x) * N, start = int64_t(threadIdx.x) * N;
    for (int64_t c = start; c < dim; c += step) {
#pragma unroll
        for (int k = 0; k < N; k++) dweight[c + k] = 0.0f;
    }
    const int64_t first = blockIdx.x * rows_per_part, last = min64(first + rows_per_part, rows);
    for (int64_t row = first; row < last; row++) {
        const T *dy_row = dy + row * dim, *x_row = x + row * dim;
        T* dx_row = dx + row * dim;
        const float r = rstd[row];
        float dot = 0.0f;
        for (int64_t c = start; c < dim; c += step) {
            float d[N], v[N], w[N], sum[N];
            load_n(d, dy_row + c);
            load_n(v, x_row + c);
            load_n(w, weight + c);
            load_n(sum, dweight + c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float n = v[k] * r;
                dot += d[k] * w[k] * n;
                sum[k] += d[k] * n;
            }
            store_n(dweight + c, sum);
        }
        const float mean = block_sum(dot, scratch) / float(dim);
        for (int64_t c = start; c < dim; c += step) {
            float d[N], v[N], w[N], old[N] = {};
            load_n(d, dy_row + c);
            load_n(v, x_row + c);
            load_n(w, weight + c);
            if (add_to_dx) load_n(old, dx_row + c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float dn = r * (d[k] * w[k] - v[k] * r * mean);
                d[k] = add_to_dx ? old[k] + dn : dn;
            }
            store_n(dx_row + c, d);
        }
    }
    for (int64_t c = start; c < dim; c += step) {
#pragma unroll
        for (int k = 0; k < N; k++) parts[blockIdx.x * dim + c + k] = dweight[c + k];
    }
}

template <typename T>
__device__ void forward(const T* x, const T* weight, T* y, float* rstd, int64_t dim, float eps) {
    __shared__ float scratch[32];
    if (dim % Pack<T>::N == 0 && all_aligned16(x, weight, y)) {
        rms_norm<Pack<T>::N>(x, weight, y, rstd, dim, eps, scratch);
    } else {
        rms_norm<1>(x, weight, y, rstd, dim, eps, scratch);
    }
}
template <typename T>
__device__ void backward(const T* dy, const T* x, const T* weight, const float* rstd, T* dx, float* parts, int64_t rows,
                         int64_t dim, int64_t rows_per_part, bool add_to_dx) {
    extern __shared__ __align__(16) float dweight[];
    __shared__ float scratch[32];
    if (dim % Pack<T>::N == 0 && all_aligned16(dy, x, weight, dx)) {
        rms_norm_backward<Pack<T>::N>(dy, x, weight, rstd, dx, parts, rows, dim, rows_per_part, add_to_dx, dweight, scratch);
    } else {
        rms_norm_backward<1>(dy, x, weight, rstd, dx, parts, rows, dim, rows_per_part, add_to_dx, dweight, scratch);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    rms_norm_f32(const float* x, const float* weight, float* y, float* rstd, int64_t dim, float eps) {
    forward(x, weight, y, rstd, dim, eps);
}
extern "C" __global__ void __launch_bounds__(256)
    rms_norm_bf16(const bf16* x, const bf16* weight, bf16* y, float* rstd, int64_t dim, float eps) {
    forward(x, weight, y, rstd, dim, eps);
}
extern "C" __global__ void __launch_bounds__(256)
    rms_norm_backward_f32(const float* dy, const float* x, const float* weight, const float* rstd, float* dx, float* parts,
                          int64_t rows, int64_t dim, int64_t rows_per_part, int add_to_dx) {
    backward(dy, x, weight, rstd, dx, parts, rows, dim, rows_per_part, add_to_dx != 0);
}
extern "C" __global__ void __launch_bounds__(256)
    rms_norm_backward_bf16(const bf16* dy, const bf16* x, const bf16* weight, const float* rstd, bf16* dx, float* parts,
                           int64_t rows, int64_t dim, int64_t rows_per_part, int add_to_dx) {
    backward(dy, x, weight, rstd, dx, parts, rows, dim, rows_per_part, add_to_dx != 0);
}
