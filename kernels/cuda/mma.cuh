// Tensor-core building blocks for bf16 (sm_80 and later): asynchronous tile loads, ldmatrix, mma.m16n8k16.
//
// Tiles lie in shared memory as [rows][DP + 8] bf16. The 8 elements of padding put the eight 16-byte rows that one ldmatrix
// phase reads into different banks, for every DP that is a multiple of 16.
//
// Fragments, with g = lane / 4 and t = lane % 4. An accumulator c of a 16 x 8 tile: c[0], c[1] at row g, columns 2t, 2t + 1;
// c[2], c[3] at row g + 8. Two neighbouring accumulators, rounded to bf16, are the left factor of a 16 x 16 step: so a
// product's result is the next product's left factor without leaving the registers.
#pragma once
#include "common.cuh"

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// 16 bytes to shared memory, zeros where `valid` is false (the source is then not read).
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void cp_async_4(void* to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::); }
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_group 0;\n" ::: "memory"); }

__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
}
// 2^x, two units in the last place; results below the smallest normal number are 0.
__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Starts loading rows first..first + ROWS of a matrix (`head_dim` used columns, rows `stride` apart); rows from `end` on and
// columns from `head_dim` on become zero.
template <int ROWS, int DP, int THREADS>
__device__ __forceinline__ void load_tile(bf16* tile, const bf16* base, int64_t stride, int64_t first, int64_t end,
                                          int head_dim) {
    constexpr int CHUNKS = DP / 8;
#pragma unroll
    for (int c = threadIdx.x; c < ROWS * CHUNKS; c += THREADS) {
        const int row = c / CHUNKS, column = c % CHUNKS * 8;
        const bool valid = first + row < end && column < head_dim;
        cp_async_16(tile + row * (DP + 8) + column, valid ? base + (first + row) * stride + column : base, valid);
    }
}

// Left factor, rows row..row + 16, columns k..k + 16.
template <int DP> __device__ __forceinline__ void load_left(uint32_t (&a)[4], const bf16* tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix(a, tile + (row + lane % 16) * (DP + 8) + k + lane / 16 * 8);
}
// Right factor of x y^T for y's rows n..n + 16 and columns k..k + 16: b[0], b[1] for the first eight rows, b[2], b[3] for
// the others.
template <int DP> __device__ __forceinline__ void load_right_rows(uint32_t (&b)[4], const bf16* tile, int n, int k) {
    const int lane = threadIdx.x % 32;
    ldmatrix(b, tile + (n + lane % 8 + lane / 16 * 8) * (DP + 8) + k + lane / 8 % 2 * 8);
}
// Right factor of x y for y's rows k..k + 16 and columns n..n + 16.
template <int DP> __device__ __forceinline__ void load_right_columns(uint32_t (&b)[4], const bf16* tile, int k, int n) {
    const int lane = threadIdx.x % 32;
    ldmatrix_transposed(b, tile + (k + lane % 16) * (DP + 8) + n + lane / 16 * 8);
}

// c[MT x 16, NT x 8] += x[row.., DP] y[0.., DP]^T, both tiles.
template <int DP, int MT, int NT>
__device__ __forceinline__ void multiply_rows(float (&c)[MT][NT][4], const bf16* x, int row, const bf16* y) {
#pragma unroll
    for (int k = 0; k < DP; k += 16) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) load_left<DP>(a[m], x, row + m * 16, k);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t b[4];
            load_right_rows<DP>(b, y, n * 8, k);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(c[m][n], a[m], b[0], b[1]);
                mma(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// c[MT x 16, DP] += p[MT x 16, KT x 8] y[0.., DP]: p rounded to bf16, y a tile.
template <int DP, int MT, int KT>
__device__ __forceinline__ void multiply_columns(float (&c)[MT][DP / 8][4], const float (&p)[MT][KT][4], const bf16* y) {
#pragma unroll
    for (int k = 0; k < KT; k += 2) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = pack_bf16(p[m][k][0], p[m][k][1]);
            a[m][1] = pack_bf16(p[m][k][2], p[m][k][3]);
            a[m][2] = pack_bf16(p[m][k + 1][0], p[m][k + 1][1]);
            a[m][3] = pack_bf16(p[m][k + 1][2], p[m][k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < DP / 8; n += 2) {
            uint32_t b[4];
            load_right_columns<DP>(b, y, k * 8, n * 8);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma(c[m][n], a[m], b[0], b[1]);
                mma(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int MT, int NT> __device__ __forceinline__ void clear(float (&c)[MT][NT][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f;
    }
}

// Stores accumulators, times `factor` a row, as bf16: rows row.. (those before `end`), columns below `head_dim`.
template <int DP, int MT>
__device__ __forceinline__ void store_rows(bf16* base, int64_t stride, int64_t row, int64_t end, int head_dim,
                                           const float (&c)[MT][DP / 8][4], const float (&factor)[MT][2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t r = row + m * 16 + half * 8 + lane / 4;
            if (r >= end) continue;
            bf16* to = base + r * stride + lane % 4 * 2;
            const float f = factor[m][half];
#pragma unroll
            for (int n = 0; n < DP / 8; n++) {
                if (n * 8 < head_dim) {
                    *reinterpret_cast<uint32_t*>(to + n * 8) = pack_bf16(c[m][n][half * 2] * f, c[m][n][half * 2 + 1] * f);
                }
            }
        }
    }
}
