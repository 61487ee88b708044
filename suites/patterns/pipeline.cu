// The computation of a pipeline: rounds of a linear congruential generator over every word of a chunk. Each thread
// writes the exclusive or of its words to `digests`. The constants are arguments, so that the compiler merges no
// rounds.
extern "C" __global__ void digest(const u32* words, u32 count, u32 factor, u32 term, u32 rounds, u32* digests) {
    u32 mine = 0;
    for (u32 i = (u32)gb_thread(); i < count; i += (u32)gb_threads()) {
        u32 word = words[i] ^ i;
        for (u32 round = 0; round < rounds; round++) word = word * factor + term;
        mine ^= word;
    }
    digests[gb_thread()] = mine;
}
