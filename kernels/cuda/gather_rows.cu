// gather_rows: y[i] = x[index[i]].
//
// Shapes: x [rows, dim], index [n] i32, y [n, dim]. Elements are moved as bytes, so one kernel serves every dtype of a
// size. Launch: 128 threads, one block an output row. An index outside 0..rows traps: the launch fails instead of
// reading foreign memory. Tried: nothing else.
#include "common.cuh"

template <typename T>
__device__ void gather_rows(const T* __restrict__ x, const int* __restrict__ index, T* __restrict__ y, int64_t rows,
                            int64_t dim) {
    const int64_t i = blockIdx.x, row = index[i];
    if (row < 0 || row >= rows) __trap();
    const T *from = x + row * dim;
    T* to = y + i * dim;
    constexpr int N = Pack<T>::N;
    if (dim % N == 0 && all_aligned16(x, y)) {
        for (int64_t c = int64_t(threadIdx.x) * N; c < dim; c += int64_t(blockDim.x) * N) store_pack(to + c, load_pack(from + c));
    } else {
        for (int64_t c = threadIdx.x; c < dim; c += blockDim.x) to[c] = from[c];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    gather_rows_32(const uint32_t* x, const int* index, uint32_t* y, int64_t rows, int64_t dim) {
    gather_rows(x, index, y, rows, dim);
}
extern "C" __global__ void __launch_bounds__(128)
    gather_rows_16(const uint16_t* x, const int* index, uint16_t* y, int64_t rows, int64_t dim) {
    gather_rows(x, index, y, rows, dim);
}
