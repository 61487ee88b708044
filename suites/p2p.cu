// One thread, one access at a time, to another device's memory.

// Follows a ring of addresses; state[0] is where it stands.
extern "C" __global__ void remote_loads(u64 steps, u64* state) {
    u64 here = state[0];
    for (u64 i = 0; i < steps; i++) here = gb_load_l2(here);
    state[0] = here;
}

// Adds one, again and again, each time only when the last answer is there. `zero` is 0, which the compiler cannot know.
extern "C" __global__ void remote_adds(u32* counter, u64 steps, u32 zero, u64* state) {
    u32 seen = 0;
    for (u64 i = 0; i < steps; i++) seen = gb_add_and_see(counter + (seen & zero));
    state[0] = seen;
}
