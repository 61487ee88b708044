// One thread accesses another device's memory, one access at a time.

// Follows a ring of addresses; state[0] is its position.
extern "C" __global__ void remote_loads(u64 steps, u64* state) {
    u64 here = state[0];
    for (u64 i = 0; i < steps; i++) here = gb_load_l2(here);
    state[0] = here;
}

// Adds one repeatedly, each time after the previous result has arrived. `zero` is 0, which the compiler cannot know.
extern "C" __global__ void remote_adds(u32* counter, u64 steps, u32 zero, u64* state) {
    u32 seen = 0;
    for (u64 i = 0; i < steps; i++) seen = gb_add_and_see(counter + (seen & zero));
    state[0] = seen;
}

// Follows a ring of addresses and writes the cycles of each load to `ticks`: the clock is read when the word has
// arrived. state[0] is the position, state[1] the cycles of all loads, state[2] their nanoseconds.
extern "C" __global__ void timed_loads(u32 steps, u32* ticks, u64* state) {
    volatile __shared__ u32 sink[1];
    u64 here = state[0];
    const u64 since = gb_nanoseconds(), first = gb_clock();
    u64 last = first;
    for (u32 i = 0; i < steps; i++) {
        here = gb_load_l2(here);
        gb_used(sink, (u32)here);
        const u64 now = gb_clock();
        ticks[i] = (u32)(now - last);
        last = now;
    }
    state[2] = gb_nanoseconds() - since;
    state[1] = last - first;
    state[0] = here;
}

// Returns whether the flag reaches the value, or a later one, within `limit` cycles.
static __device__ __forceinline__ bool reaches(const u32* flag, u32 value, u64 limit) {
    const u64 begin = gb_clock();
    while ((int)(gb_seen(flag) - value) < 0)
        if (gb_clock() - begin > limit) return false;
    return true;
}

// Makes `rounds` round trips of a word between two devices: each polls `mine` and writes to `theirs`. The first round
// waits for the other device to start and is not timed; `ticks` has the cycles of each later round. state[0] is the
// round that gave up, counted from 1; state[1] is the cycles of all timed rounds, state[2] their nanoseconds.
extern "C" __global__ void timed_signals(u32* mine, u32* theirs, u32 serves, u32 from, u32 rounds, u64 limit, u32* ticks,
                                         u64* state) {
    u64 since = 0, first = 0, last = 0;
    for (u32 round = 1; round <= rounds; round++) {
        if (serves) gb_post(theirs, from + round);
        if (!reaches(mine, from + round, limit)) {
            state[0] = round;
            return;
        }
        if (!serves) gb_post(theirs, from + round);
        const u64 now = gb_clock();
        if (round == 1) {
            since = gb_nanoseconds();
            first = now;
        } else {
            ticks[round - 2] = (u32)(now - last);
        }
        last = now;
    }
    state[2] = gb_nanoseconds() - since;
    state[1] = last - first;
}
