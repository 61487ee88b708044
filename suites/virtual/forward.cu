// The kernel of forwarded launches: adds a value to each of `count` words, so that a check detects a lost launch.
extern "C" __global__ void add_words(unsigned long long* words, unsigned long long count, unsigned long long value) {
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (unsigned long long)gridDim.x * blockDim.x)
        words[i] += value;
}
