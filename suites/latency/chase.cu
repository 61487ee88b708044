// Dependent loads by one lane. A ring is a single random cycle: each node holds the address of the next one in a form
// that needs no arithmetic, so that the loop is a chain of loads and nothing else. state[0] is the walk's byte offset
// and state[3] its position in the order; both are kept from launch to launch. state[1] receives the device cycles of
// the timed steps, state[2] the compute unit that they ran on.

// The order of a ring: nodes nth(0), nth(1), …, nth(nodes - 1), and then from the start again. It permutes the numbers
// below a power of two (each step can be undone), repeatedly until the number is that of a node. A node is one line;
// nodes are `stride` bytes apart, each on a random line of its own stride.
#define ORDER u64 nodes, u64 mask, u64 shift, u64 add, u64 f1, u64 f2, u64 f3, u64 f4, u64 stride, u64 others
#define GIVEN nodes, mask, shift, add, f1, f2, f3, f4, stride, others
const u64 LINE_BYTES = 128;

static __device__ __forceinline__ u64 offset_of(u64 i, ORDER) {
    do {
        i = (i + add) & mask;
        i = (i ^ i >> shift) * f1 & mask;
        i = (i ^ i >> shift) * f2 & mask;
        i = (i ^ i >> shift) * f3 & mask;
        i = (i ^ i >> shift) * f4 & mask;
        i ^= i >> shift;
    } while (i >= nodes);
    return i * stride + (gb_random(add, i) & others) * LINE_BYTES;
}

// Writes the ring in its own order. It writes all 32 bytes that a load fetches, so that no write has to fetch the rest
// first.
extern "C" __global__ void link(u8* ring, ORDER) {
    for (u64 i = gb_thread(); i < 4 * nodes; i += gb_threads()) {
        u64 node = i / 4, next = node + 1 == nodes ? 0 : node + 1;
        ((u64*)(ring + offset_of(node, GIVEN)))[i % 4] = (u64)ring + offset_of(next, GIVEN);
    }
}

// Walks `steps` steps, timed. First the whole block loads the next `sweep` nodes in the order of the ring, untimed. If
// that is the whole ring, the caches are in the state that a complete walk leaves.
#define CHASE(name, load)                                                                          \
    extern "C" __global__ void __launch_bounds__(1024) name(const u8* ring, ORDER, u64 sweep,      \
                                                            u64 steps, u64* state) {               \
        u64 here = gb_vreg((u64)ring + state[0]), position = state[3], seen = 0;                   \
        for (u64 i = threadIdx.x; i < sweep; i += blockDim.x) {                                    \
            u64 place = (position + i) % nodes;                                                    \
            seen ^= load(gb_vreg((u64)ring + offset_of(place, GIVEN)));                            \
        }                                                                                          \
        if (seen == 1) state[7] = seen; /* never true; it keeps loads from being removed */        \
        __syncthreads();                                                                           \
        if (threadIdx.x != 0) return;                                                              \
        u64 start = gb_clock();                                                                    \
        _Pragma("unroll 16") for (u64 i = 0; i < steps; ++i) here = load(here);                    \
        here = gb_vreg(here);                                                                      \
        u64 end = gb_clock();                                                                      \
        state[0] = here - (u64)ring;                                                               \
        state[1] = end - start;                                                                    \
        state[2] = gb_unit();                                                                      \
        state[3] = (position + steps) % nodes;                                                     \
    }
CHASE(chase, gb_load)
CHASE(chase_l2, gb_load_l2)

// Times each load by itself: took[i] is the cycles of load i and of two readings of the clock. A store of the loaded
// value makes the second reading wait for it. `warm` untimed steps come first. The cost of the readings is measured on
// a node that points at itself, in the first-level cache: took[steps + i] are loads of it timed in the same way, and
// state[6] the cycles of LINKS loads of it in a chain. state[1] and state[4] receive the cycles and nanoseconds of the
// whole walk.
const u32 LINKS = 1024;

#define SINGLE(name, load)                                                                         \
    extern "C" __global__ void name(const u8* ring, u64 warm, u32 steps, u32 pairs, u32* took,     \
                                    u64* state) {                                                  \
        extern __shared__ u32 cycles[];                                                            \
        volatile __shared__ u32 sink[1];                                                           \
        if (threadIdx.x == 0) {                                                                    \
            u64 here = gb_vreg((u64)ring + state[0]);                                              \
            for (u64 i = 0; i < warm; ++i) here = load(here);                                      \
            u64 since = gb_nanoseconds(), start = gb_clock();                                      \
            for (u32 i = 0; i < steps; ++i) {                                                      \
                u64 before = gb_clock();                                                           \
                here = load(here);                                                                 \
                gb_used(sink, (u32)here);                                                          \
                cycles[i] = (u32)(gb_clock() - before);                                            \
            }                                                                                      \
            state[1] = gb_clock() - start;                                                         \
            state[4] = gb_nanoseconds() - since;                                                   \
            state[0] = here - (u64)ring;                                                           \
            state[5] = (u64)(state + 5);                                                           \
            __threadfence();                                                                       \
            here = gb_load(gb_vreg((u64)(state + 5)));                                             \
            here = gb_load(here);                                                                  \
            start = gb_clock();                                                                    \
            _Pragma("unroll 16") for (u32 i = 0; i < LINKS; ++i) here = gb_load(here);             \
            here = gb_vreg(here);                                                                  \
            state[6] = gb_clock() - start;                                                         \
            for (u32 i = 0; i < pairs; ++i) {                                                      \
                u64 before = gb_clock();                                                           \
                here = gb_load(here);                                                              \
                gb_used(sink, (u32)here);                                                          \
                cycles[steps + i] = (u32)(gb_clock() - before);                                    \
            }                                                                                      \
        }                                                                                          \
        __syncthreads();                                                                           \
        for (u32 i = threadIdx.x; i < steps + pairs; i += blockDim.x) took[i] = cycles[i];         \
    }
SINGLE(single, gb_load)
SINGLE(single_l2, gb_load_l2)
