// Kernels of programs that share a device: work of a fixed length, counts, time stamps, and the units on which blocks
// run.

// A chain of multiply-adds that cannot be shortened. Its length is an amount of work, which a context switch only
// delays. A loop that waits for a time by the clock would continue to count while other programs have the device.
static __device__ __forceinline__ u32 chain(u32 x, u32 steps) {
#pragma unroll 16
    for (u32 i = 0; i < steps; ++i) x = gb_vreg(x * 1664525u + 1013904223u);
    return x;
}

// Each thread writes the end of the chain that begins with its number.
extern "C" __global__ void spin(u32 steps, u32* ends) { ends[gb_thread()] = chain((u32)gb_thread(), steps); }

// Counts one in counter[0] after a chain of work, whose end it writes to counter[1]. The kernels of one stream run one
// after another, so that no atomic is needed.
extern "C" __global__ void tick(u64* counter, u32 steps) {
    counter[1] = chain(0, steps);
    counter[0] += 1;
}

// Writes the number of calls that have ended to a word that the host and other processes see.
extern "C" __global__ void done(u32* word, u32 calls) { gb_post(word, calls); }

extern "C" __global__ void nothing() {}

// The time by the clock that all processes on the device share. An event of one context cannot be recorded in another
// one.
extern "C" __global__ void now(u64* nanoseconds) { *nanoseconds = gb_nanoseconds(); }

// Pieces of work with the time between them. A piece that lasts longer than `away_ns` was interrupted: meanwhile the
// device was given to another process. Writes the begin and the end of each period without an interruption; the last of
// `most` such periods also contains the interruptions for which there is no room. `end` receives the end of the chain.
extern "C" __global__ void stamp(u64* begins_and_ends, u32 most, u32 pieces, u32 steps, u64 away_ns, u32* end) {
    u32 x = 0, place = 0;
    u64 begin = gb_nanoseconds(), last = begin;
    for (u32 piece = 0; piece < pieces; ++piece) {
        x = chain(x, steps);
        const u64 now = gb_nanoseconds();
        if (now - last > away_ns && place + 1 < most) {
            begins_and_ends[2 * place] = begin;
            begins_and_ends[2 * place + 1] = last;
            ++place;
            begin = now;
        }
        last = now;
    }
    *end = x;
    begins_and_ends[2 * place] = begin;
    begins_and_ends[2 * place + 1] = last;
}

// Marks the compute unit on which each block runs, and occupies it for a while, so that every unit gets a block.
extern "C" __global__ void mark_unit(u32* marks, u32 steps, u32* ends) {
    if (threadIdx.x == 0) marks[gb_unit()] = 1;
    ends[gb_thread()] = chain((u32)gb_thread(), steps);
}

// A ring over lines of 128 bytes: line i leads to line (factor · i + term) modulo a power of two. This is one cycle
// over all lines if term is odd and factor - 1 is a multiple of four (Hull & Dobell, SIAM Review 4, 1962).
const u64 RING_LINE = 128;

extern "C" __global__ void link_ring(u8* ring, u64 lines, u64 factor, u64 term) {
    for (u64 i = gb_thread(); i < lines; i += gb_threads())
        *(u64*)(ring + i * RING_LINE) = (u64)ring + ((factor * i + term) & (lines - 1)) * RING_LINE;
}

// Continues the walk from the address in place[0].
extern "C" __global__ void walk_ring(u64* place, u32 steps) {
    u64 here = gb_vreg(place[0]);
#pragma unroll 16
    for (u32 i = 0; i < steps; ++i) here = gb_load(here);
    place[0] = here;
}
