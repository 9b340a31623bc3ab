// Attention without tensor cores, for f32 and for whatever the tensor-core kernels do not take (scale <= 0, head_dim over
// 256 or not a multiple of 8, too little shared memory): correct, not fast. Formulas as in attention_forward.cu and
// attention_backward.cu; `attention_delta_*` there prepares delta.
//
// Shapes as there; head_dim <= 512. Launch: 256 threads, a warp a (token, query head) in forward and dq, a warp a
// (token, kv head) in dkdv; the head dimension is spread over the lanes. Loops over keys or queries run in order, so all
// sums have a fixed order. Tried: nothing else.
#include "documents.cuh"

constexpr int MAX_SLICE = 16;  // elements of a head a lane may own

template <typename T> struct Slice {
    float v[MAX_SLICE];
    __device__ __forceinline__ Slice() {
#pragma unroll
        for (int e = 0; e < MAX_SLICE; e++) v[e] = 0.0f;
    }
    __device__ __forceinline__ Slice(const T* head, int head_dim) {
#pragma unroll
        for (int e = 0; e < MAX_SLICE; e++) {
            const int c = e * 32 + threadIdx.x % 32;
            v[e] = c < head_dim ? to_f32(head[c]) : 0.0f;
        }
    }
    __device__ __forceinline__ float dot(const Slice& other) const {
        float sum = 0.0f;
#pragma unroll
        for (int e = 0; e < MAX_SLICE; e++) sum += v[e] * other.v[e];
        return warp_sum(sum);
    }
    __device__ __forceinline__ void add(float factor, const Slice& x) {
#pragma unroll
        for (int e = 0; e < MAX_SLICE; e++) v[e] += factor * x.v[e];
    }
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int e = 0; e < MAX_SLICE; e++) v[e] *= factor;
    }
    __device__ __forceinline__ void store(T* head, int head_dim, float factor) const {
#pragma unroll
        for (int e = 0; e < MAX_SLICE; e++) {
            const int c = e * 32 + threadIdx.x % 32;
            if (c < head_dim) head[c] = from_f32<T>(v[e] * factor);
        }
    }
};

template <typename T>
__device__ void plain_forward(const T* __restrict__ qkv, const int* __restrict__ borders, T* __restrict__ out,
                              float* __restrict__ lse, int documents, int64_t tokens, int heads, int kv_heads, int head_dim,
                              float scale) {
    const int64_t item = thread_index() / 32, token = item / heads, stride = int64_t(heads + 2 * kv_heads) * head_dim;
    if (item >= tokens * heads) return;
    const int head = item % heads, group = head / (heads / kv_heads);
    const T *k = qkv + int64_t(heads + group) * head_dim, *v = k + int64_t(kv_heads) * head_dim;
    const Slice<T> q(qkv + token * stride + int64_t(head) * head_dim, head_dim);
    Slice<T> o;
    float max = -CUDART_INF_F, sum = 0.0f;
    for (int64_t j = document_of(borders, documents, token).start; j <= token; j++) {
        const float score = scale * q.dot(Slice<T>(k + j * stride, head_dim));
        if (score > max) {
            const float shrink = expf(max - score);
            o.scale(shrink);
            sum *= shrink;
            max = score;
        }
        const float e = expf(score - max);
        sum += e;
        o.add(e, Slice<T>(v + j * stride, head_dim));
    }
    o.store(out + item * head_dim, head_dim, 1.0f / sum);
    if (threadIdx.x % 32 == 0) lse[head * tokens + token] = max + logf(sum);
}

template <typename T>
__device__ void plain_dq(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse,
                         const float* __restrict__ delta, const int* __restrict__ borders, T* __restrict__ dqkv, int documents,
                         int64_t tokens, int heads, int kv_heads, int head_dim, float scale) {
    const int64_t item = thread_index() / 32, token = item / heads, stride = int64_t(heads + 2 * kv_heads) * head_dim;
    if (item >= tokens * heads) return;
    const int head = item % heads, group = head / (heads / kv_heads);
    const T *k = qkv + int64_t(heads + group) * head_dim, *v = k + int64_t(kv_heads) * head_dim;
    const Slice<T> q(qkv + token * stride + int64_t(head) * head_dim, head_dim), d(dout + item * head_dim, head_dim);
    const float row_lse = lse[head * tokens + token], row_delta = delta[head * tokens + token];
    Slice<T> dq;
    for (int64_t j = document_of(borders, documents, token).start; j <= token; j++) {
        const Slice<T> key(k + j * stride, head_dim);
        const float p = expf(scale * q.dot(key) - row_lse);
        dq.add(p * (d.dot(Slice<T>(v + j * stride, head_dim)) - row_delta) * scale, key);
    }
    dq.store(dqkv + token * stride + int64_t(head) * head_dim, head_dim, 1.0f);
}

template <typename T>
__device__ void plain_dkdv(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse,
                           const float* __restrict__ delta, const int* __restrict__ borders, T* __restrict__ dqkv,
                           int documents, int64_t tokens, int heads, int kv_heads, int head_dim, float scale) {
    const int64_t item = thread_index() / 32, token = item / kv_heads, stride = int64_t(heads + 2 * kv_heads) * head_dim;
    if (item >= tokens * kv_heads) return;
    const int group = item % kv_heads, per_group = heads / kv_heads;
    const int64_t k_at = token * stride + int64_t(heads + group) * head_dim, v_at = k_at + int64_t(kv_heads) * head_dim;
    const Slice<T> k(qkv + k_at, head_dim), v(qkv + v_at, head_dim);
    Slice<T> dk, dv;
    const int64_t end = document_of(borders, documents, token).end;
    for (int head = group * per_group; head < (group + 1) * per_group; head++) {
        for (int64_t i = token; i < end; i++) {
            const Slice<T> q(qkv + i * stride + int64_t(head) * head_dim, head_dim);
            const Slice<T> d(dout + (i * heads + head) * head_dim, head_dim);
            const float p = expf(scale * q.dot(k) - lse[head * tokens + i]);
            dv.add(p, d);
            dk.add(p * (d.dot(v) - delta[head * tokens + i]) * scale, q);
        }
    }
    dk.store(dqkv + k_at, head_dim, 1.0f);
    dv.store(dqkv + v_at, head_dim, 1.0f);
}

#define ATTENTION_PLAIN(T, name)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                         \
        attention_plain_forward_##name(const T* qkv, const int* borders, T* out, float* lse, int documents, int64_t tokens,   \
                                       int heads, int kv_heads, int head_dim, float scale) {                                  \
        plain_forward(qkv, borders, out, lse, documents, tokens, heads, kv_heads, head_dim, scale);                           \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                         \
        attention_plain_dq_##name(const T* dout, const T* qkv, const float* lse, const float* delta, const int* borders,      \
                                  T* dqkv, int documents, int64_t tokens, int heads, int kv_heads, int head_dim,              \
                                  float scale) {                                                                              \
        plain_dq(dout, qkv, lse, delta, borders, dqkv, documents, tokens, heads, kv_heads, head_dim, scale);                  \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                                                         \
        attention_plain_dkdv_##name(const T* dout, const T* qkv, const float* lse, const float* delta, const int* borders,    \
                                    T* dqkv, int documents, int64_t tokens, int heads, int kv_heads, int head_dim,            \
                                    float scale) {                                                                            \
        plain_dkdv(dout, qkv, lse, delta, borders, dqkv, documents, tokens, heads, kv_heads, head_dim, scale);                \
    }
ATTENTION_PLAIN(float, f32)
ATTENTION_PLAIN(bf16, bf16)
