// Documents packed one behind another, found by their borders.
#pragma once
#include "common.cuh"

struct Document {
    int start, end;  // tokens start..end
};

// The document that holds a token, by bisection of the ascending borders [documents + 1]; empty documents hold none.
__device__ __forceinline__ Document document_of(const int* __restrict__ borders, int documents, int64_t token) {
    int low = 0, high = documents;  // borders[low] <= token < borders[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (borders[middle] <= token) low = middle;
        else high = middle;
    }
    return {borders[low], borders[high]};
}
