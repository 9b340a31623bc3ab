// bias_add: x[t, n] += bias[n].  bias_grad: dbias[n] (+)= sum_t dy[t, n], in two passes without atomics.
//
// bias_add. Shapes: x [rows, n], bias [n]. Launch: 256 threads; grid.x tiles of 2048 columns (8 a thread), grid.y strides
// over rows, so a thread loads its bias once.
//
// bias_grad. Pass 1, `bias_grad_parts_*`: dy [rows, n] -> parts [parts, n] f32; block 32 x 8: a lane owns 8 neighbouring
// columns, 8 row lanes; grid.x tiles of 256 columns, grid.y parts of `rows_per_part` rows, which the shape determines.
// Pass 2 is `sum_parts` in reduce.cu. Tried: nothing else.
#include "common.cuh"

template <typename T>
__device__ void bias_add(T* __restrict__ x, const T* __restrict__ bias, int64_t rows, int64_t n) {
    const int64_t column = thread_index() * 8;
    if (column >= n) return;
    float b[8];
    if (n % 8 == 0 && all_aligned16(x, bias)) {
        load_n(b, bias + column);
        for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
            float v[8];
            load_n(v, x + row * n + column);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] += b[k];
            store_n(x + row * n + column, v);
        }
    } else {
        const int64_t end = min64(column + 8, n);
        for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
            for (int64_t c = column; c < end; c++) x[row * n + c] = from_f32<T>(to_f32(x[row * n + c]) + to_f32(bias[c]));
        }
    }
}

template <typename T>
__device__ void bias_grad_parts(const T* __restrict__ dy, float* __restrict__ parts, int64_t rows, int64_t n,
                                int64_t rows_per_part) {
    __shared__ float sums[8][256];
    const int64_t column = int64_t(blockIdx.x) * 256 + threadIdx.x * 8;
    const int64_t first = blockIdx.y * rows_per_part, last = min64(first + rows_per_part, rows);
    const bool wide = n % 8 == 0 && aligned16(dy);
    float sum[8] = {};
    for (int64_t row = first + threadIdx.y; row < last; row += 8) {
        float v[8] = {};
        if (wide) {
            if (column < n) load_n(v, dy + row * n + column);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (column + k < n) v[k] = to_f32(dy[row * n + column + k]);
            }
        }
#pragma unroll
        for (int k = 0; k < 8; k++) sum[k] += v[k];
    }
#pragma unroll
    for (int k = 0; k < 8; k++) sums[threadIdx.y][threadIdx.x * 8 + k] = sum[k];
    __syncthreads();
    const int c = threadIdx.y * 32 + threadIdx.x;
    if (int64_t(blockIdx.x) * 256 + c < n) {
        float total = 0.0f;
#pragma unroll
        for (int r = 0; r < 8; r++) total += sums[r][c];
        parts[blockIdx.y * n + int64_t(blockIdx.x) * 256 + c] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256) bias_add_f32(float* x, const float* bias, int64_t rows, int64_t n) {
    bias_add(x, bias, rows, n);
}
extern "C" __global__ void __launch_bounds__(256) bias_add_bf16(bf16* x, const bf16* bias, int64_t rows, int64_t n) {
    bias_add(x, bias, rows, n);
}
extern "C" __global__ void __launch_bounds__(256, 4)
    bias_grad_parts_f32(const float* dy, float* parts, int64_t rows, int64_t n, int64_t rows_per_part) {
    bias_grad_parts(dy, parts, rows, n, rows_per_part);
}
extern "C" __global__ void __launch_bounds__(256, 4)
    bias_grad_parts_bf16(const bf16* dy, float* parts, int64_t rows, int64_t n, int64_t rows_per_part) {
    bias_grad_parts(dy, parts, rows, n, rows_per_part);
}
