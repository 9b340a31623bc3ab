// Attention backward, bf16 on tensor cores, deterministic: dK and dV in one pass over queries, dQ in another over keys.
// With p_ij = e^(scale q_i . k_j - lse_i), delta_i = dout_i . out_i and ds_ij = p_ij (dout_i . v_j - delta_i):
// dv_j = sum_i p_ij dout_i, dk_j = scale sum_i ds_ij q_i, dq_i = scale sum_j ds_ij k_j; keys and values sum over the query
// heads of their group, in order. Seven products instead of five, and no atomics.
//
// Shapes: dout, out [tokens, heads head_dim], qkv, dqkv [tokens, (heads + 2 kv_heads) head_dim], lse, delta [heads, tokens]
// f32 (delta is scratch), borders [documents + 1] i32. head_dim a multiple of 8, padded with zeros to DP.
// Launches, in this order:
// 1. attention_delta_*: a warp a (token, head), 256 threads.
// 2. attention_dkdv_bf16_*: grid.x tiles of BK = 16 WARPS key tokens, grid.y kv heads; a warp owns 16 keys and computes the
//    transposed scores, so that p^T and ds^T come out as left factors. Head dimension 256 keeps too much: dV and dK each
//    take a launch of their own there.
// 3. attention_dq_bf16_*: grid.x tiles of BM = 16 MT WARPS query tokens, heaviest first, grid.y query heads.
// Tried at DP = 128 on an H200, 8 x 4096 tokens, 28/4 heads (docs/notes/cuda_ops_h200_2026-11-30.md). dK and dV: 4 warps, BQ
// 64 as here 7.4 ms; BQ 32 8.8, 16 12.7; 8 warps 7.6. dQ: MT 2, 4 warps, BN 32 as here 5.4 ms; BN 16 6.4; MT 1 with BN 32
// 5.8, 64 6.3; MT 1 with 8 warps and BN 32 7.8, 64 6.5.
// spills: attention_dq_bf16_128 64
#include "documents.cuh"
#include "mma.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

template <typename T>
__device__ void attention_delta(const T* __restrict__ dout, const T* __restrict__ out, float* __restrict__ delta,
                                int64_t tokens, int heads, int head_dim) {
    const int lane = threadIdx.x % 32;
    const int64_t item = thread_index() / 32;  // token * heads + head
    if (item >= tokens * heads) return;
    float sum = 0.0f;
    if (all_aligned16(dout, out)) {
        for (int c = lane * 8; c < head_dim; c += 256) {
            float d[8], o[8];
            load_n(d, dout + item * head_dim + c);
            load_n(o, out + item * head_dim + c);
#pragma unroll
            for (int k = 0; k < 8; k++) sum += d[k] * o[k];
        }
    } else {
        for (int c = lane; c < head_dim; c += 32) sum += to_f32(dout[item * head_dim + c]) * to_f32(out[item * head_dim + c]);
    }
    sum = warp_sum(sum);
    if (lane == 0) delta[item % heads * tokens + item / heads] = sum;
}
extern "C" __global__ void __launch_bounds__(256)
    attention_delta_f32(const float* dout, const float* out, float* delta, int64_t tokens, int heads, int head_dim) {
    attention_delta(dout, out, delta, tokens, heads, head_dim);
}
extern "C" __global__ void __launch_bounds__(256)
    attention_delta_bf16(const bf16* dout, const bf16* out, float* delta, int64_t tokens, int heads, int head_dim) {
    attention_delta(dout, out, delta, tokens, heads, head_dim);
}

template <int DP, int WARPS, int BQ, bool DK, bool DV>
__device__ __forceinline__ void dkdv(const bf16* __restrict__ dout, const bf16* __restrict__ qkv,
                                     const float* __restrict__ lse, const float* __restrict__ delta,
                                     const int* __restrict__ borders, bf16* __restrict__ dqkv, int documents, int64_t tokens,
                                     int heads, int kv_heads, int head_dim, float scale) {
    constexpr int BK = 16 * WARPS, THREADS = 32 * WARPS, NT = BQ / 8, ROW = DP + 8;
    extern __shared__ __align__(16) bf16 shared[];
    bf16 *k_tile = shared, *v_tile = k_tile + BK * ROW, *stages = v_tile + BK * ROW;  // two stages of q and dout tiles
    float* row_stages = reinterpret_cast<float*>(stages + 4 * BQ * ROW);                // two stages of lse and delta
    if (blockDim.x != THREADS) __trap();

    const int kv_head = blockIdx.y, per_group = heads / kv_heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t stride = int64_t(heads + 2 * kv_heads) * head_dim, out_stride = int64_t(heads) * head_dim;
    const int64_t key0 = int64_t(blockIdx.x) * BK, key_end = min64(key0 + BK, tokens);
    const int64_t k_at = int64_t(heads + kv_head) * head_dim, v_at = k_at + int64_t(kv_heads) * head_dim;
    const int first_end = document_of(borders, documents, key0).end;
    const int64_t row_end = document_of(borders, documents, key_end - 1).end;
    const int64_t warp_key = key0 + warp * 16;
    int ends[2];  // of the documents of this lane's two keys
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t key = warp_key + half * 8 + lane / 4;
        ends[half] = key >= key_end ? 0 : first_end == row_end ? first_end : document_of(borders, documents, key).end;
    }

    const int row_tiles = int(ceil_div(row_end - key0, BQ)), steps = row_tiles * per_group;
    const auto load_step = [&](int step) {
        const int head = kv_head * per_group + step / row_tiles;
        const int64_t row = key0 + int64_t(step % row_tiles) * BQ;
        bf16* q_tile = stages + step % 2 * 2 * BQ * ROW;
        load_tile<BQ, DP, THREADS>(q_tile, qkv + int64_t(head) * head_dim, stride, row, row_end, head_dim);
        load_tile<BQ, DP, THREADS>(q_tile + BQ * ROW, dout + int64_t(head) * head_dim, out_stride, row, row_end, head_dim);
        float* rows = row_stages + step % 2 * 2 * BQ;
        for (int i = threadIdx.x; i < 2 * BQ; i += THREADS) {
            const float* from = (i < BQ ? lse : delta) + head * tokens;
            const bool valid = row + i % BQ < row_end;
            cp_async_4(rows + i, valid ? from + row + i % BQ : from, valid);
        }
        cp_async_commit();
    };

    load_tile<BK, DP, THREADS>(k_tile, qkv + k_at, stride, key0, key_end, head_dim);
    load_tile<BK, DP, THREADS>(v_tile, qkv + v_at, stride, key0, key_end, head_dim);
    load_step(0);

    const float to_log2 = scale * LOG2_E;
    float dk[1][DK ? DP / 8 : 1][4], dv[1][DV ? DP / 8 : 1][4];
    clear(dk);
    clear(dv);
    for (int step = 0; step < steps; step++) {
        cp_async_wait_all();
        __syncthreads();
        if (step + 1 < steps) load_step(step + 1);
        const int64_t row0 = key0 + int64_t(step % row_tiles) * BQ;
        const bf16 *q_tile = stages + step % 2 * 2 * BQ * ROW, *dout_tile = q_tile + BQ * ROW;
        const float *lse_rows = row_stages + step % 2 * 2 * BQ, *delta_rows = lse_rows + BQ;
        if (row0 + BQ <= warp_key) continue;  // all of the tile's queries come before this warp's keys

        float p[1][NT][4];
        clear(p);
        multiply_rows<DP, 1, NT>(p, k_tile, warp * 16, q_tile);
        const bool masked = row0 < warp_key + 15 || row0 + BQ > first_end;
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column = n * 8 + lane % 4 * 2 + i % 2;
                p[0][n][i] = fast_exp2(fmaf(p[0][n][i], to_log2, -lse_rows[column] * LOG2_E));
                if (masked) {
                    const int row = int(row0) + column, key = int(warp_key) + i / 2 * 8 + lane / 4;
                    if (row < key || row >= ends[i / 2]) p[0][n][i] = 0.0f;
                }
            }
        }
        if constexpr (DV) multiply_columns<DP, 1, NT>(dv, p, dout_tile);
        if constexpr (DK) {
            float ds[1][NT][4];
            clear(ds);
            multiply_rows<DP, 1, NT>(ds, v_tile, warp * 16, dout_tile);
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - delta_rows[n * 8 + lane % 4 * 2 + i % 2]);
                }
            }
            multiply_columns<DP, 1, NT>(dk, ds, q_tile);
        }
    }
    if constexpr (DK) {
        const float factor[1][2] = {{scale, scale}};
        store_rows<DP, 1>(dqkv + k_at, stride, warp_key, key_end, head_dim, dk, factor);
    }
    if constexpr (DV) {
        const float factor[1][2] = {{1.0f, 1.0f}};
        store_rows<DP, 1>(dqkv + v_at, stride, warp_key, key_end, head_dim, dv, factor);
    }
}

template <int DP, int MT, int WARPS, int BN>
__device__ __forceinline__ void dq(const bf16* __restrict__ dout, const bf16* __restrict__ qkv, const float* __restrict__ lse,
                                   const float* __restrict__ delta, const int* __restrict__ borders, bf16* __restrict__ dqkv,
                                   int documents, int64_t tokens, int heads, int kv_heads, int head_dim, float scale) {
    constexpr int BM = 16 * MT * WARPS, THREADS = 32 * WARPS, NT = BN / 8, ROW = DP + 8;
    extern __shared__ __align__(16) bf16 shared[];
    bf16 *q_tile = shared, *dout_tile = q_tile + BM * ROW, *stages = dout_tile + BM * ROW;  // two stages of k and v tiles
    if (blockDim.x != THREADS) __trap();

    const int head = blockIdx.y, group = head / (heads / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t stride = int64_t(heads + 2 * kv_heads) * head_dim, out_stride = int64_t(heads) * head_dim;
    const int64_t row0 = int64_t(gridDim.x - 1 - blockIdx.x) * BM, end = min64(row0 + BM, tokens);
    const bf16 *k = qkv + int64_t(heads + group) * head_dim, *v = k + int64_t(kv_heads) * head_dim;
    const int64_t key0 = document_of(borders, documents, row0).start;
    const int64_t last_start = document_of(borders, documents, end - 1).start;
    const int tiles = int(ceil_div(end - key0, BN));
    const int64_t warp_row = row0 + warp * 16 * MT;

    const auto load_keys = [&](int tile) {
        bf16* k_tile = stages + tile % 2 * 2 * BN * ROW;
        load_tile<BN, DP, THREADS>(k_tile, k, stride, key0 + int64_t(tile) * BN, end, head_dim);
        load_tile<BN, DP, THREADS>(k_tile + BN * ROW, v, stride, key0 + int64_t(tile) * BN, end, head_dim);
        cp_async_commit();
    };
    load_tile<BM, DP, THREADS>(q_tile, qkv + int64_t(head) * head_dim, stride, row0, end, head_dim);
    load_tile<BM, DP, THREADS>(dout_tile, dout + int64_t(head) * head_dim, out_stride, row0, end, head_dim);
    load_keys(0);

    int* starts = reinterpret_cast<int*>(stages + 4 * BN * ROW);  // of the rows' documents
    for (int i = threadIdx.x; i < BM; i += THREADS) {
        starts[i] = last_start == key0 ? int(key0) : document_of(borders, documents, min64(row0 + i, end - 1)).start;
    }
    float row_lse[MT][2], row_delta[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t row = min64(warp_row + m * 16 + half * 8 + lane / 4, end - 1);
            row_lse[m][half] = lse[head * tokens + row] * LOG2_E;
            row_delta[m][half] = delta[head * tokens + row];
        }
    }
    const float to_log2 = scale * LOG2_E;
    float grad[MT][DP / 8][4];
    clear(grad);
    for (int tile = 0; tile < tiles; tile++) {
        cp_async_wait_all();
        __syncthreads();
        if (tile + 1 < tiles) load_keys(tile + 1);
        const int64_t key = key0 + int64_t(tile) * BN;
        if (key >= warp_row + 16 * MT) continue;  // all of the tile's keys come after this warp's queries
        const bf16 *k_tile = stages + tile % 2 * 2 * BN * ROW, *v_tile = k_tile + BN * ROW;
        float p[MT][NT][4], ds[MT][NT][4];
        clear(p);
        clear(ds);
        multiply_rows<DP, MT, NT>(p, q_tile, warp * 16 * MT, k_tile);
        multiply_rows<DP, MT, NT>(ds, dout_tile, warp * 16 * MT, v_tile);
        const bool masked = key + BN - 1 > warp_row || key < last_start;
#pragma unroll
        for (int m = 0; m < MT; m++) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int half = i / 2;
                    float x = fast_exp2(fmaf(p[m][n][i], to_log2, -row_lse[m][half]));
                    if (masked) {
                        const int row = warp * 16 * MT + m * 16 + half * 8 + lane / 4;
                        const int column = int(key) + n * 8 + lane % 4 * 2 + i % 2;
                        if (column > int(row0) + row || column < starts[row]) x = 0.0f;
                    }
                    ds[m][n][i] = x * (ds[m][n][i] - row_delta[m][half]);
                }
            }
        }
        multiply_columns<DP, MT, NT>(grad, ds, k_tile);
    }
    float factor[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) factor[m][0] = factor[m][1] = scale;
    store_rows<DP, MT>(dqkv + int64_t(head) * head_dim, stride, warp_row, end, head_dim, grad, factor);
}

#define BACKWARD_PARAMETERS                                                                                                \
    const bf16 *dout, const bf16 *qkv, const float *lse, const float *delta, const int *borders, bf16 *dqkv, int documents, \
        int64_t tokens, int heads, int kv_heads, int head_dim, float scale
#define BACKWARD_ARGUMENTS dout, qkv, lse, delta, borders, dqkv, documents, tokens, heads, kv_heads, head_dim, scale
#define ATTENTION_DKDV(name, DP, WARPS, BQ, DK, DV)                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_##name##_bf16_##DP(BACKWARD_PARAMETERS) { \
        dkdv<DP, WARPS, BQ, DK, DV>(BACKWARD_ARGUMENTS);                                                            \
    }
#define ATTENTION_DQ(DP, MT, WARPS, BN)                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_dq_bf16_##DP(BACKWARD_PARAMETERS) { \
        dq<DP, MT, WARPS, BN>(BACKWARD_ARGUMENTS);                                                           \
    }
ATTENTION_DKDV(dkdv, 64, 4, 64, true, true)
ATTENTION_DKDV(dkdv, 80, 4, 64, true, true)
ATTENTION_DKDV(dkdv, 96, 4, 64, true, true)
ATTENTION_DKDV(dkdv, 128, 4, 64, true, true)
ATTENTION_DKDV(dv, 256, 4, 32, false, true)
ATTENTION_DKDV(dk, 256, 4, 32, true, false)
ATTENTION_DQ(64, 2, 4, 32)
ATTENTION_DQ(80, 2, 4, 32)
ATTENTION_DQ(96, 2, 4, 32)
ATTENTION_DQ(128, 2, 4, 32)
ATTENTION_DQ(256, 1, 4, 32)
