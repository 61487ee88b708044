// The gate in front of a batch: the stream waits here until the host opens it (words[0] = 1) or
// `limit` device-clock cycles are over (words[1] = 1), so that it can never hang.
extern "C" __global__ void gate(unsigned long long address, long long limit) {
    volatile unsigned int* words = (volatile unsigned int*)address;
    long long start = clock64();
    while (words[0] == 0u) {
        if (clock64() - start > limit) {
            words[1] = 1u;
            return;
        }
    }
}
