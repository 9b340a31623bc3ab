// sum_parts: out[c] (+)= sum_p parts[p, first_column + c], in a fixed order: the second pass of every column sum.
//
// Shapes: parts [parts, stride] f32, out [n] f32. Launch: block 32 x 16, grid.x tiles of 32 columns: row lane y sums the
// parts y, y + 16, ...; then the 16 sums are added in order.
// Tried: one thread a column, which takes a chain of `parts` dependent loads.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(512)
    sum_parts(const float* __restrict__ parts, float* __restrict__ out, int64_t count, int64_t stride, int64_t first_column,
              int64_t n, int accumulate) {
    __shared__ float sums[16][32];
    const int64_t column = int64_t(blockIdx.x) * 32 + threadIdx.x;
    float sum = 0.0f;
    if (column < n) {
#pragma unroll 8
        for (int64_t p = threadIdx.y; p < count; p += 16) sum += parts[p * stride + first_column + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        float total = 0.0f;
#pragma unroll
        for (int r = 0; r < 16; r++) total += sums[r][threadIdx.x];
        out[column] = accumulate ? out[column] + total : total;
    }
}
