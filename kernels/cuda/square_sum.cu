// square_sum: part = [sum_i x[i]^2, number of x[i] that are NaN or infinite], both f64.
//
// Shapes: x [n] -> part [2] f64. Squares of f32 are exact in f64 and cannot overflow there, so the sum is finite exactly
// where all elements are; else it is NaN if one is, or infinity.
// Launch: pass 1, `square_sum_parts_*`: a block of 256 threads takes a chunk of 32768 elements, which the shape alone cuts,
// in vectors of 16 bytes, four under way a thread; parts [chunks, 2] f64. Elements that are not finite are counted again
// only by threads whose sum is not. Pass 2, `square_sum_total`: one block; thread t adds parts t, t + 512, ...; both passes
// end in the same tree.
// Needs a conversion and a fused multiply-add in f64 an element: of the latter an H200 has seven at its memory's rate in
// bf16; GPUs with few f64 units (1/64 of f32) are limited by those instead. Tried: nothing else.
#include "common.cuh"

constexpr int THREADS = 256, TOTAL_THREADS = 512, UNROLL = 4;
constexpr int64_t CHUNK = 32768;

struct Part {
    double sum, nonfinite;
};

__device__ __forceinline__ Part add(Part a, Part b) { return {a.sum + b.sum, a.nonfinite + b.nonfinite}; }

// Adds over the block in a fixed order; thread 0 stores, NaN in one form as their bits depend on the order.
template <int N> __device__ __forceinline__ void store_block_sum(Part part, Part* out) {
    __shared__ Part warps[N / 32];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        part = add(part, {__shfl_xor_sync(FULL_WARP, part.sum, d), __shfl_xor_sync(FULL_WARP, part.nonfinite, d)});
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < N / 32; w++) part = add(part, warps[w]);
        *out = {isnan(part.sum) ? CUDART_NAN : part.sum, part.nonfinite};
    }
}

// Calls visit(x) on this thread's elements of a chunk.
template <typename T, typename F> __device__ __forceinline__ void each(const T* __restrict__ x, int64_t n, F visit) {
    constexpr int N = Pack<T>::N;
    const int64_t vectors = aligned16(x) ? n / N : 0;
    int64_t i = threadIdx.x;
    for (; i + (UNROLL - 1) * THREADS < vectors; i += UNROLL * THREADS) {
        Pack<T> v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) v[u] = load_pack(x + (i + u * THREADS) * N);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int k = 0; k < N; k++) visit(to_f32(v[u].v[k]), k);
        }
    }
    for (; i < vectors; i += THREADS) {
        const Pack<T> v = load_pack(x + i * N);
#pragma unroll
        for (int k = 0; k < N; k++) visit(to_f32(v.v[k]), k);
    }
    for (i = vectors * N + threadIdx.x; i < n; i += THREADS) visit(to_f32(x[i]), 0);
}

template <typename T> __device__ void square_sum_parts(const T* __restrict__ x, Part* __restrict__ parts, int64_t n) {
    x += blockIdx.x * CHUNK;
    n = min64(n - blockIdx.x * CHUNK, CHUNK);
    // Two sums, so that an addition need not wait for the one before.
    double sums[2] = {0.0, 0.0};
    each(x, n, [&](float v, int k) { sums[k % 2] = fma(double(v), double(v), sums[k % 2]); });
    Part part = {sums[0] + sums[1], 0.0};
    if (!isfinite(part.sum)) {
        int count = 0;
        each(x, n, [&](float v, int) { count += !isfinite(v); });
        part.nonfinite = count;
    }
    store_block_sum<THREADS>(part, parts + blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) square_sum_parts_f32(const float* x, double* parts, int64_t n) {
    square_sum_parts(x, reinterpret_cast<Part*>(parts), n);
}
extern "C" __global__ void __launch_bounds__(THREADS, 4) square_sum_parts_bf16(const bf16* x, double* parts, int64_t n) {
    square_sum_parts(x, reinterpret_cast<Part*>(parts), n);
}

extern "C" __global__ void __launch_bounds__(TOTAL_THREADS)
    square_sum_total(const double* __restrict__ parts, double* __restrict__ part, int64_t count) {
    Part sum = {0.0, 0.0};
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += TOTAL_THREADS) sum = add(sum, {parts[2 * i], parts[2 * i + 1]});
    store_block_sum<TOTAL_THREADS>(sum, reinterpret_cast<Part*>(part));
}
