// qk_norm: RMS normalisation of every query and key head with its weight; value heads are copied.
// qk_norm_backward: the same per head as rms_norm_backward, the reciprocal norms computed again; value gradients copied.
//
// Shapes: qkv, out, dout, dqkv [tokens, (heads + 2 kv_heads) head_dim], weights [head_dim].
// Launch: 256 threads, a warp a head. Forward: warps stride over all (token, head). Backward: one block a part of
// `tokens_per_part` tokens, which the shape determines; each warp adds up its heads' weight gradients in its own slice of
// dynamic shared memory [8 warps][2][head_dim], then the block adds the slices in order into parts [parts, 2 head_dim]
// (queries, keys), summed by `sum_parts` (reduce.cu).
//
// Heads of up to 128 elements, a multiple of four, go four at a time, two in the backward: a lane holds four elements of
// each in registers, so that a warp has more in flight; weights and their gradients stay in registers. Tried: one head at a time, read
// again from the cache for the second pass, which waits for memory most of the time: on an H200 at 36 heads of 128 in bf16
// 1.5 TB/s forward, 1.7 backward, whether by 8-byte or 16-byte accesses; kept for other heads. And four in the
// backward, whose registers leave room for three blocks a multiprocessor, so that its 528 parts take two rounds: 1.5 TB/s.
#include "common.cuh"

// N elements a lane and step; head_dim must be a multiple of N where N > 1.
template <int N, typename T>
__device__ __forceinline__ float head_rstd(const T* x, int head_dim, float eps) {
    float squares = 0.0f;
    for (int c = threadIdx.x % 32 * N; c < head_dim; c += 32 * N) {
        float v[N];
        load_n(v, x + c);
#pragma unroll
        for (int k = 0; k < N; k++) squares += v[k] * v[k];
    }
    return 1.0f / sqrtf(warp_sum(squares) / float(head_dim) + eps);
}

template <int N, typename T>
__device__ void qk_norm(const T* __restrict__ qkv, const T* __restrict__ q_weight, const T* __restrict__ k_weight,
                        T* __restrict__ out, int64_t tokens, int heads, int kv_heads, int head_dim, float eps) {
    const int all = heads + 2 * kv_heads;
    const int64_t items = tokens * all, warps = thread_count() / 32;
    const int head_step = warps % all;
    int head = thread_index() / 32 % all;
    for (int64_t item = thread_index() / 32; item < items; item += warps, head += head_step) {
        if (head >= all) head -= all;
        const T* x = qkv + item * head_dim;
        const bool normed = head < heads + kv_heads;
        const T* weight = head < heads ? q_weight : k_weight;
        const float r = normed ? head_rstd<N>(x, head_dim, eps) : 1.0f;
        for (int c = threadIdx.x % 32 * N; c < head_dim; c += 32 * N) {
            float v[N], w[N];
            load_n(v, x + c);
            if (normed) {
                load_n(w, weight + c);
#pragma unroll
                for (int k = 0; k < N; k++) v[k] = v[k] * r * w[k];
            }
            store_n(out + item * head_dim + c, v);
        }
    }
}

// The block's part of the weight gradients from those of its warps.
__device__ __forceinline__ void add_warps(const float* sums, float* __restrict__ parts, int head_dim) {
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * head_dim; c += blockDim.x) {
        float total = 0.0f;
        for (int w = 0; w < 8; w++) total += sums[w * 2 * head_dim + c];
        parts[blockIdx.x * 2 * int64_t(head_dim) + c] = total;
    }
}

template <int N, typename T>
__device__ void qk_norm_backward(const T* __restrict__ dout, const T* __restrict__ qkv, const T* __restrict__ q_weight,
                                 const T* __restrict__ k_weight, T* __restrict__ dqkv, float* __restrict__ parts,
                                 int64_t tokens, int heads, int kv_heads, int head_dim, float eps, int64_t tokens_per_part,
                                 float* sums) {
    const int all = heads + 2 * kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* mine = sums + warp * 2 * head_dim;
    for (int c = lane * N; c < head_dim; c += 32 * N) {
#pragma unroll
        for (int k = 0; k < N; k++) mine[c + k] = mine[head_dim + c + k] = 0.0f;
    }
    const int64_t first = blockIdx.x * tokens_per_part * all;
    const int64_t last = min64((blockIdx.x + 1) * tokens_per_part, tokens) * all;
    int head = warp % all;  // `first` is a token's first head
    for (int64_t item = first + warp; item < last; item += 8, head = (head + 8) % all) {
        const T *x = qkv + item * head_dim, *dy = dout + item * head_dim;
        T* dx = dqkv + item * head_dim;
        if (head >= heads + kv_heads) {
            for (int c = lane * N; c < head_dim; c += 32 * N) {
                float d[N];
                load_n(d, dy + c);
                store_n(dx + c, d);
            }
            continue;
        }
        const T* weight = head < heads ? q_weight : k_weight;
        float* sum = head < heads ? mine : mine + head_dim;
        const float r = head_rstd<N>(x, head_dim, eps);
        float dot = 0.0f;
        for (int c = lane * N; c < head_dim; c += 32 * N) {
            float d[N], v[N], w[N];
            load_n(d, dy + c);
            load_n(v, x + c);
            load_n(w, weight + c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float n = v[k] * r;
                dot += d[k] * w[k] * n;
                sum[c + k] += d[k] * n;
            }
        }
        const float mean = warp_sum(dot) / float(head_dim);
        for (int c = lane * N; c < head_dim; c += 32 * N) {
            float d[N], v[N], w[N];
            load_n(d, dy + c);
            load_n(v, x + c);
            load_n(w, weight + c);
#pragma unroll
            for (int k = 0; k < N; k++) d[k] = r * (d[k] * w[k] - v[k] * r * mean);
            store_n(dx + c, d);
        }
    }
    add_warps(sums, parts, head_dim);
}

constexpr int AT_ONCE = 4, BACKWARD_AT_ONCE = 2;  // heads

// The head of the item `u` behind one of head `head`; there are at least three heads.
__device__ __forceinline__ int head_behind(int head, int u, int all) { return head + u < all ? head + u : head + u - all; }

__device__ __forceinline__ float small_rstd(const float (&v)[4], int head_dim, float eps) {
    const float squares = warp_sum(v[0] * v[0] + v[1] * v[1] + (v[2] * v[2] + v[3] * v[3]));
    return 1.0f / sqrtf(squares / float(head_dim) + eps);
}

template <typename T>
__device__ void qk_norm_small(const T* __restrict__ qkv, const T* __restrict__ q_weight, const T* __restrict__ k_weight,
                              T* __restrict__ out, int64_t tokens, int heads, int kv_heads, int head_dim, float eps) {
    const int all = heads + 2 * kv_heads, c = threadIdx.x % 32 * 4;
    const bool mine = c < head_dim;
    float q_w[4] = {}, k_w[4] = {};
    if (mine) {
        load_n(q_w, q_weight + c);
        load_n(k_w, k_weight + c);
    }
    const int64_t items = tokens * all, step = thread_count() / 32 * AT_ONCE;
    for (int64_t item = thread_index() / 32 * AT_ONCE; item < items; item += step) {
        float v[AT_ONCE][4] = {};
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (mine && item + u < items) load_n(v[u], qkv + (item + u) * head_dim + c);
        }
        const int first_head = item % all;
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int head = head_behind(first_head, u, all);
            const float r = small_rstd(v[u], head_dim, eps);
            if (head < heads + kv_heads) {
#pragma unroll
                for (int k = 0; k < 4; k++) v[u][k] = v[u][k] * r * (head < heads ? q_w[k] : k_w[k]);
            }
            if (mine && item + u < items) store_n(out + (item + u) * head_dim + c, v[u]);
        }
    }
}

template <typename T>
__device__ void qk_norm_backward_small(const T* __restrict__ dout, const T* __restrict__ qkv, const T* __restrict__ q_weight,
                                       const T* __restrict__ k_weight, T* __restrict__ dqkv, float* __restrict__ parts,
                                       int64_t tokens, int heads, int kv_heads, int head_dim, float eps,
                                       int64_t tokens_per_part, float* sums) {
    const int all = heads + 2 * kv_heads, warp = threadIdx.x / 32, c = threadIdx.x % 32 * 4;
    const bool mine = c < head_dim;
    float q_w[4] = {}, k_w[4] = {}, q_sum[4] = {}, k_sum[4] = {};
    if (mine) {
        load_n(q_w, q_weight + c);
        load_n(k_w, k_weight + c);
    }
    const int64_t first = blockIdx.x * tokens_per_part * all;
    const int64_t last = min64((blockIdx.x + 1) * tokens_per_part, tokens) * all;
    for (int64_t item = first + warp * BACKWARD_AT_ONCE; item < last; item += 8 * BACKWARD_AT_ONCE) {
        float v[BACKWARD_AT_ONCE][4] = {}, d[BACKWARD_AT_ONCE][4] = {};
#pragma unroll
        for (int u = 0; u < BACKWARD_AT_ONCE; u++) {
            if (mine && item + u < last) {
                load_n(v[u], qkv + (item + u) * head_dim + c);
                load_n(d[u], dout + (item + u) * head_dim + c);
            }
        }
        const int first_head = item % all;
#pragma unroll
        for (int u = 0; u < BACKWARD_AT_ONCE; u++) {
            const int head = head_behind(first_head, u, all);
            const bool query = head < heads, key = !query && head < heads + kv_heads;
            const float r = small_rstd(v[u], head_dim, eps);
            float dot = 0.0f;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float n = v[u][k] * r, dn = d[u][k] * n;
                dot += d[u][k] * (query ? q_w[k] : k_w[k]) * n;
                if (query) q_sum[k] += dn;
                if (key) k_sum[k] += dn;
            }
            const float mean = warp_sum(dot) / float(head_dim);
            if (query || key) {
#pragma unroll
                for (int k = 0; k < 4; k++) d[u][k] = r * (d[u][k] * (query ? q_w[k] : k_w[k]) - v[u][k] * r * mean);
            }
            if (mine && item + u < last) store_n(dqkv + (item + u) * head_dim + c, d[u]);
        }
    }
    if (mine) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sums[warp * 2 * head_dim + c + k] = q_sum[k];
            sums[warp * 2 * head_dim + head_dim + c + k] = k_sum[k];
        }
    }
    add_warps(sums, parts, head_dim);
}

template <typename T>
__device__ void forward(const T* qkv, const T* q_weight, const T* k_weight, T* out, int64_t tokens, int heads, int kv_heads,
                        int head_dim, float eps) {
    const bool wide = head_dim % 4 == 0 && all_aligned16(qkv, q_weight, k_weight, out);
    if (wide && head_dim <= 128) {
        qk_norm_small(qkv, q_weight, k_weight, out, tokens, heads, kv_heads, head_dim, eps);
    } else if (wide) {
        qk_norm<4>(qkv, q_weight, k_weight, out, tokens, heads, kv_heads, head_dim, eps);
    } else {
        qk_norm<1>(qkv, q_weight, k_weight, out, tokens, heads, kv_heads, head_dim, eps);
    }
}
template <typename T>
__device__ void backward(const T* dout, const T* qkv, const T* q_weight, const T* k_weight, T* dqkv, float* parts,
                         int64_t tokens, int heads, int kv_heads, int head_dim, float eps, int64_t tokens_per_part) {
    extern __shared__ __align__(16) float sums[];
    const bool wide = head_dim % 4 == 0 && all_aligned16(dout, qkv, q_weight, k_weight, dqkv);
    if (wide && head_dim <= 128) {
        qk_norm_backward_small(dout, qkv, q_weight, k_weight, dqkv, parts, tokens, heads, kv_heads, head_dim, eps,
                               tokens_per_part, sums);
    } else if (wide) {
        qk_norm_backward<4>(dout, qkv, q_weight, k_weight, dqkv, parts, tokens, heads, kv_heads, head_dim, eps,
                                     tokens_per_part, sums);
    } else {
        qk_norm_backward<1>(dout, qkv, q_weight, k_weight, dqkv, parts, tokens, heads, kv_heads, head_dim, eps,
                            tokens_per_part, sums);
    }
}

#define QK_NORM(T, name)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 3) \
        qk_norm_##name(const T* qkv, const T* q_weight, const T* k_weight, T* out, int64_t tokens, int heads, int kv_heads,   \
                       int head_dim, float eps) {                                                                             \
        forward(qkv, q_weight, k_weight, out, tokens, heads, kv_heads, head_dim, eps);                                        \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256, 4) \
        qk_norm_backward_##name(const T* dout, const T* qkv, const T* q_weight, const T* k_weight, T* dqkv, float* parts,     \
                                int64_t tokens, int heads, int kv_heads, int head_dim, float eps, int64_t tokens_per_part) {  \
        backward(dout, qkv, q_weight, k_weight, dqkv, parts, tokens, heads, kv_heads, head_dim, eps, tokens_per_part);        \
    }
QK_NORM(float, f32)
QK_NORM(bf16, bf16)
