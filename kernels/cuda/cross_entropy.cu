// cross_entropy: per row of logits, loss = ln(sum_v e^(x_v - max)) + max - x_target, and
// dlogits = (softmax(x) - onehot(target)) * inv_targets. Rows with target -100: loss 0, gradient 0.
//
// Shapes: logits [rows, vocab] f32, targets [rows] i32, inv_targets [1] f32, dlogits [rows, vocab], losses [rows] f32.
// Launch: one block of 512 threads a row. Pass 1 reads the row once, each thread keeping a running maximum and the sum of
// exponentials relative to it; pass 2 reads it again for the gradient. A target outside the vocabulary traps.
// Tried: nothing else. A row of a large vocabulary (600 KB) fits no shared memory, so 10 bytes move a logit, where 6 is
// the floor.
#include "common.cuh"

struct Softmax {
    float max, sum;  // sum of e^(x - max)
};

// e^(x - max), 0 for x = max = -inf (nothing seen yet).
__device__ __forceinline__ float relative(float x, float max) { return x == -CUDART_INF_F ? 0.0f : expf(x - max); }

__device__ __forceinline__ Softmax merge(Softmax a, Softmax b) {
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * relative(a.max, max) + b.sum * relative(b.max, max)};
}

__device__ Softmax row_softmax(const float* __restrict__ x, int64_t vocab, bool wide) {
    __shared__ Softmax scratch[32];
    Softmax s = {-CUDART_INF_F, 0.0f};
    const int64_t vectors = wide ? vocab / 4 : 0;
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
        float v[4];
        load_n(v, x + i * 4);
        const float max = fmaxf(s.max, fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])));
        s.sum = s.sum * relative(s.max, max) + ((relative(v[0], max) + relative(v[1], max)) +
                                                (relative(v[2], max) + relative(v[3], max)));
        s.max = max;
    }
    for (int64_t i = vectors * 4 + threadIdx.x; i < vocab; i += blockDim.x) s = merge(s, {x[i], 1.0f});
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        s = merge(s, {__shfl_xor_sync(FULL_WARP, s.max, d), __shfl_xor_sync(FULL_WARP, s.sum, d)});
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = s;
    __syncthreads();
    s = scratch[0];
    for (int w = 1; w < blockDim.x / 32; w++) s = merge(s, scratch[w]);
    return s;
}

template <bool GRADIENT, typename T>
__device__ void cross_entropy(const float* __restrict__ logits, const int* __restrict__ targets,
                              const float* __restrict__ inv_targets, T* __restrict__ dlogits, float* __restrict__ losses,
                              int64_t vocab) {
    const int64_t row = blockIdx.x;
    const int64_t target = targets[row];
    const float* x = logits + row * vocab;
    T* dx = GRADIENT ? dlogits + row * vocab : nullptr;
    if (target == -100) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if constexpr (GRADIENT) {
            for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) dx[i] = from_f32<T>(0.0f);
        }
        return;
    }
    if (target < 0 || target >= vocab) __trap();
    const bool wide = vocab % 4 == 0 && aligned16(logits);
    const Softmax s = row_softmax(x, vocab, wide);
    if (threadIdx.x == 0) losses[row] = logf(s.sum) + (s.max - x[target]);
    if constexpr (GRADIENT) {
        const float scale = inv_targets[0];
        const auto gradient = [&](float v, int64_t i) {
            const float p = relative(v, s.max) / s.sum;
            return (i == target ? p - 1.0f : p) * scale;
        };
        const int64_t vectors = wide && vocab % 8 == 0 && aligned16(dlogits) ? vocab / 8 : 0;
        for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
            float v[8];
            load_n(v, x + i * 8);
#pragma unroll
            for (int k = 0; k < 8; k++) v[k] = gradient(v[k], i * 8 + k);
            store_n(dx + i * 8, v);
        }
        for (int64_t i = vectors * 8 + threadIdx.x; i < vocab; i += blockDim.x) dx[i] = from_f32<T>(gradient(x[i], i));
    }
}

extern "C" __global__ void __launch_bounds__(512)
    cross_entropy_f32(const float* logits, const int* targets, const float* inv_targets, float* dlogits, float* losses,
                      int64_t vocab) {
    cross_entropy<true>(logits, targets, inv_targets, dlogits, losses, vocab);
}
extern "C" __global__ void __launch_bounds__(512)
    cross_entropy_bf16(const float* logits, const int* targets, const float* inv_targets, bf16* dlogits, float* losses,
                       int64_t vocab) {
    cross_entropy<true>(logits, targets, inv_targets, dlogits, losses, vocab);
}
extern "C" __global__ void __launch_bounds__(512)
    cross_entropy_loss(const float* logits, const int* targets, float* losses, int64_t vocab) {
    cross_entropy<false>(logits, targets, nullptr, static_cast<float*>(nullptr), losses, vocab);
}
