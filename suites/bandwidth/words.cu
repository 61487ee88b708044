// Random 64-bit words: word i of the data of a seed is gb_random(seed, i).
extern "C" __global__ void fill(u64* a, u64 n, u64 seed) {
    for (u64 i = gb_thread(); i < n; i += gb_threads()) a[i] = gb_random(seed, i);
}

// Adds to `wrong` the number of words of `a` that differ from the expected ones.
extern "C" __global__ void mistakes(const u64* a, u64 n, u64 seed, u64* wrong) {
    u64 mine = 0;
    for (u64 i = gb_thread(); i < n; i += gb_threads()) mine += a[i] != gb_random(seed, i);
    if (mine != 0) atomicAdd(wrong, mine);
}
