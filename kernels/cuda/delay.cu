// Holds a stream for a given time, so that tests can make any lane late. Touches no memory.
//
// Launch: one thread. Waits by the GPU's global timer, whose steps are about a microsecond on current GPUs.

#include "common.cuh"

extern "C" __global__ void delay(int64_t nanoseconds) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < static_cast<uint64_t>(nanoseconds));
}
