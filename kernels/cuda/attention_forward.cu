// Attention forward, bf16 on tensor cores: FlashAttention-2's scheme (Dao 2023, arXiv 2307.08691) over packed documents.
// o_i = sum_{j = s..i} softmax_j(scale q_i . k_j) v_j, s the start of i's document; lse_i the scores' log sum.
//
// Shapes: qkv [tokens, (heads + 2 kv_heads) head_dim], borders [documents + 1] i32, out [tokens, heads head_dim],
// lse [heads, tokens] f32. head_dim a multiple of 8, padded with zeros to DP in shared memory; scale > 0.
// Launch: WARPS x 32 threads; grid.x tiles of BM = 16 MT WARPS query tokens, heaviest first, grid.y query heads. A tile is
// a stretch of the packed tokens and may hold several documents: its keys run from the start of its first token's document
// to its end, and a mask is applied where a tile of BN keys is not below all its rows or crosses a border.
// Keys and values are loaded while the other is multiplied. O(tokens) memory; the order of all sums is fixed.
// Tried at DP = 128 on an H200, 8 x 4096 tokens, 28/4 heads (docs/notes/cuda_ops_h200_2026-11-30.md): MT 2, 4 warps, BN 64
// as here 3.8 ms; BN 32 4.0; MT 1 with BN 32 4.5, 64 4.1, 128 4.3; MT 1 with 8 warps 5.0. The accumulators leave a few values
// no register, which costs less than smaller tiles do.
// spills: attention_forward_bf16_128 160
#include "documents.cuh"
#include "mma.cuh"

template <int DP, int MT, int WARPS, int BN>
__device__ __forceinline__ void forward(const bf16* __restrict__ qkv, const int* __restrict__ borders, bf16* __restrict__ out,
                                        float* __restrict__ lse, int documents, int64_t tokens, int heads, int kv_heads,
                                        int head_dim, float scale) {
    constexpr int BM = 16 * MT * WARPS, THREADS = 32 * WARPS, NT = BN / 8, ROW = DP + 8;
    extern __shared__ __align__(16) bf16 shared[];
    bf16 *q_tile = shared, *k_tile = q_tile + BM * ROW, *v_tile = k_tile + BN * ROW;
    if (blockDim.x != THREADS) __trap();

    const int head = blockIdx.y, group = head / (heads / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t stride = int64_t(heads + 2 * kv_heads) * head_dim;
    const int64_t row0 = int64_t(gridDim.x - 1 - blockIdx.x) * BM, end = min64(row0 + BM, tokens);
    const bf16 *q = qkv + int64_t(head) * head_dim, *k = qkv + int64_t(heads + group) * head_dim,
               *v = k + int64_t(kv_heads) * head_dim;

    const int64_t key0 = document_of(borders, documents, row0).start;
    const int64_t last_start = document_of(borders, documents, end - 1).start;
    const int tiles = int(ceil_div(end - key0, BN));
    const int64_t warp_row = row0 + warp * 16 * MT;
    int* starts = reinterpret_cast<int*>(v_tile + BN * ROW);  // of the rows' documents
    for (int i = threadIdx.x; i < BM; i += THREADS) {
        starts[i] = last_start == key0 ? int(key0) : document_of(borders, documents, min64(row0 + i, end - 1)).start;
    }

    load_tile<BM, DP, THREADS>(q_tile, q, stride, row0, end, head_dim);
    load_tile<BN, DP, THREADS>(k_tile, k, stride, key0, end, head_dim);
    cp_async_commit();

    const float to_log2 = scale * 1.4426950408889634f;
    float o[MT][DP / 8][4], max[MT][2], sum[MT][2];  // max of the scores times to_log2
    clear(o);
#pragma unroll
    for (int m = 0; m < MT; m++) {
        max[m][0] = max[m][1] = -CUDART_INF_F;
        sum[m][0] = sum[m][1] = 0.0f;
    }

    for (int tile = 0; tile < tiles; tile++) {
        const int64_t key = key0 + int64_t(tile) * BN;
        const bool wanted = key < warp_row + 16 * MT;  // some row of this warp sees the tile
        float s[MT][NT][4];
        cp_async_wait_all();
        __syncthreads();
        load_tile<BN, DP, THREADS>(v_tile, v, stride, key, end, head_dim);
        cp_async_commit();
        if (wanted) {
            clear(s);
            multiply_rows<DP, MT, NT>(s, q_tile, warp * 16 * MT, k_tile);
            if (key + BN - 1 > warp_row || key < last_start) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
#pragma unroll
                    for (int n = 0; n < NT; n++) {
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            const int row = warp * 16 * MT + m * 16 + i / 2 * 8 + lane / 4;
                            const int column = int(key) + n * 8 + lane % 4 * 2 + i % 2;
                            if (column > int(row0) + row || column < starts[row]) s[m][n][i] = -CUDART_INF_F;
                        }
                    }
                }
            }
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float high = -CUDART_INF_F;
#pragma unroll
                    for (int n = 0; n < NT; n++) high = fmaxf(high, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
                    high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 1));
                    high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 2));
                    const float before = max[m][half], now = fmaxf(before, high * to_log2);
                    const float shift = now == -CUDART_INF_F ? 0.0f : now;
                    const float shrink = fast_exp2(before - shift);
                    max[m][half] = now;
                    float total = 0.0f;
#pragma unroll
                    for (int n = 0; n < NT; n++) {
#pragma unroll
                        for (int i = half * 2; i < half * 2 + 2; i++) {
                            s[m][n][i] = fast_exp2(fmaf(s[m][n][i], to_log2, -shift));
                            total += s[m][n][i];
                        }
                    }
                    sum[m][half] = sum[m][half] * shrink + total;
#pragma unroll
                    for (int n = 0; n < DP / 8; n++) {
                        o[m][n][half * 2] *= shrink;
                        o[m][n][half * 2 + 1] *= shrink;
                    }
                }
            }
        }
        cp_async_wait_all();
        __syncthreads();
        if (tile + 1 < tiles) load_tile<BN, DP, THREADS>(k_tile, k, stride, key + BN, end, head_dim);
        cp_async_commit();
        if (wanted) multiply_columns<DP, MT, NT>(o, s, v_tile);
    }

    float factor[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(FULL_WARP, total, 1);
            total += __shfl_xor_sync(FULL_WARP, total, 2);
            factor[m][half] = 1.0f / total;
            const int64_t row = warp_row + m * 16 + half * 8 + lane / 4;
            if (row < end && lane % 4 == 0) {
                lse[head * tokens + row] = max[m][half] * 0.6931471805599453f + logf(total);
            }
        }
    }
    store_rows<DP, MT>(out + int64_t(head) * head_dim, int64_t(heads) * head_dim, warp_row, end, head_dim, o, factor);
}

#define ATTENTION_FORWARD(DP, MT, WARPS, BN)                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                                  \
        attention_forward_bf16_##DP(const bf16* qkv, const int* borders, bf16* out, float* lse, int documents, int64_t tokens, \
                                    int heads, int kv_heads, int head_dim, float scale) {                                     \
        forward<DP, MT, WARPS, BN>(qkv, borders, out, lse, documents, tokens, heads, kv_heads, head_dim, scale);              \
    }
ATTENTION_FORWARD(64, 2, 4, 64)
ATTENTION_FORWARD(80, 2, 4, 64)
ATTENTION_FORWARD(96, 2, 4, 64)
ATTENTION_FORWARD(128, 2, 4, 64)
ATTENTION_FORWARD(256, 1, 4, 32)
