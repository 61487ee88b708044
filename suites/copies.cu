// Copies between two memories.

// Copies `vectors` of 16 bytes, then `words` of 8. Each thread has FLIGHT loads in flight before it stores.
#ifndef FLIGHT
#define FLIGHT 4
#endif
extern "C" __global__ void copy(const uint4* source, uint4* target, u64 vectors, u64 words) {
    const u64 step = gb_threads();
    u64 i = gb_thread();
    for (; i + (FLIGHT - 1) * step < vectors; i += FLIGHT * step) {
        uint4 held[FLIGHT];
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) held[k] = gb_word(source + i + k * step);
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) target[i + k * step] = held[k];
    }
    for (; i < vectors; i += step) target[i] = source[i];
    if (gb_thread() < words) ((u64*)(target + vectors))[gb_thread()] = ((const u64*)(source + vectors))[gb_thread()];
}
