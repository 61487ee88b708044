// Copies of blocks as a C program makes them: a loop of cuMemcpyAsync, or one call of cuMemcpyBatchAsync.
//
// Each sample is timed as gpubench times one: two events around the copies on an idle stream, and the host's clock
// around their submission. blocks_beside_c.py compiles this file and calls it in turn with gpubench's own copies.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>

typedef unsigned long long Address;
typedef int Status;
typedef Status (*Copy)(Address, Address, size_t, void*);
typedef Status (*Batch)(Address*, Address*, size_t*, size_t, void*, size_t*, size_t, size_t*, void*);

enum { SIGNATURES = 12080, IN_STREAM_ORDER = 1 };  // the version of the driver's functions; CUmemcpySrcAccessOrder

static struct {
    void *before, *after;
    Copy copy;
    Batch batch;
    Status (*create)(void**, unsigned), (*record)(void*, void*), (*wait)(void*), (*elapsed)(float*, void*, void*);
} driver;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

// Find the driver's functions and make the events, in the context of the calling thread; 0 is success.
Status prepare(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return -1;
    Status (*find)(const char*, void**, int, unsigned long long, int*) = dlsym(library, "cuGetProcAddress_v2");
    driver.create = dlsym(library, "cuEventCreate");
    driver.record = dlsym(library, "cuEventRecord");
    driver.wait = dlsym(library, "cuEventSynchronize");
    driver.elapsed = dlsym(library, "cuEventElapsedTime");
    int found = 0;
    Status status = find("cuMemcpyAsync", (void**)&driver.copy, SIGNATURES, 0, &found);
    if (!status) status = find("cuMemcpyBatchAsync", (void**)&driver.batch, SIGNATURES, 0, &found);
    if (!status) status = driver.create(&driver.before, 0);
    if (!status) status = driver.create(&driver.after, 0);
    return status;
}

// Take samples of the copy of `count` blocks and write the seconds of the device and of the submission; 0 is success.
Status measure(int is_batch, Address* targets, Address* sources, size_t* sizes, size_t count, void* stream, int samples,
               double* device_s, double* host_s) {
    for (int sample = 0; sample < samples; ++sample) {
        int attributes[6] = {IN_STREAM_ORDER};
        size_t first = 0, failed = 0;
        float milliseconds = 0;
        Status status = driver.record(driver.before, stream);
        double begin = now();
        if (is_batch) {
            if (!status)
                status = driver.batch(targets, sources, sizes, count, attributes, &first, 1, &failed, stream);
        } else {
            for (size_t i = 0; i < count && !status; ++i) status = driver.copy(targets[i], sources[i], sizes[i], stream);
        }
        host_s[sample] = now() - begin;
        if (!status) status = driver.record(driver.after, stream);
        if (!status) status = driver.wait(driver.after);
        if (!status) status = driver.elapsed(&milliseconds, driver.before, driver.after);
        if (status) return status;
        device_s[sample] = 1e-3 * milliseconds;
    }
    return 0;
}
