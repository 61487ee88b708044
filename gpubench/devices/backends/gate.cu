// The gate in front of a batch: the stream waits here until the host opens the gate (words[0] = 1), at most for `limit`
// cycles of the device's clock, so that it never hangs. After that time the gate opens itself and sets words[1] = 1.
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
