// A stand-in for libcuda.so.1 that works on the host's memory: physical memory is a memfd, mapping is mmap, access is
// mprotect. It checks the arguments that a program hands over as the driver's header declares them, so that calls
// through cuda-bindings can be tried without a GPU. The context is 0x1234, the stream 0x77, the kernel 0x55.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long u64;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
enum { PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, PAGE = 2 << 20 };

struct location { int type, id; };
struct properties {  // CUmemAllocationProp
    int type, handles;
    struct location place;
    void* attributes;
    unsigned char compression, rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
struct access { struct location place; int flags; };

static void* const CONTEXT = (void*)0x1234;
static void* const STREAM = (void*)0x77;
static void* const COPIES = (void*)0x88;
static void* const KERNEL = (void*)0x55;
static const int NOTHING = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

static void* itself(void) {
    static void* handle;
    Dl_info found;
    if (!handle && dladdr((void*)itself, &found)) handle = dlopen(found.dli_fname, RTLD_NOW);
    return handle;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : OK; }
int cuDriverGetVersion(int* version) { return *version = 13000, OK; }

int cuGetProcAddress_v2(const char* symbol, void** place, int version, u64 flags, int* status) {
    char second[128];
    snprintf(second, sizeof second, "%s_v2", symbol);
    *place = dlsym(itself(), second);
    if (!*place) *place = dlsym(itself(), symbol);
    if (status) *status = *place ? 0 : 1;
    return OK;
}
int cuGetProcAddress(const char* symbol, void** place, int version, u64 flags) {
    return cuGetProcAddress_v2(symbol, place, version, flags, 0);
}

int cuCtxGetCurrent(void** context) { return *context = CONTEXT, OK; }
int cuCtxSetCurrent(void* context) { return context == CONTEXT ? OK : INVALID_CONTEXT; }

int cuMemGetAllocationGranularity(size_t* granule, const struct properties* asked, int option) {
    if (asked->type != PINNED || asked->place.type != ON_DEVICE || option) return INVALID_VALUE;
    return *granule = PAGE, OK;
}
int cuMemAddressReserve(u64* address, size_t size, size_t alignment, u64 hint, u64 flags) {
    void* found = mmap(0, size, PROT_NONE, NOTHING, -1, 0);
    if (size % PAGE || alignment || hint || flags) return INVALID_VALUE;
    return *address = (u64)found, found == MAP_FAILED ? OUT_OF_MEMORY : OK;
}
int cuMemAddressFree(u64 address, size_t size) { return munmap((void*)address, size) ? INVALID_VALUE : OK; }

int cuMemCreate(u64* handle, size_t size, const struct properties* asked, u64 flags) {
    int file = memfd_create("stand-in", 0);
    if (size % PAGE || asked->type != PINNED || asked->place.type != ON_DEVICE || asked->place.id || flags)
        return INVALID_VALUE;
    if (file < 0 || ftruncate(file, size)) return OUT_OF_MEMORY;
    return *handle = (u64)file | (u64)asked->compression << 32, OK;
}
int cuMemRelease(u64 handle) { return close((int)handle) ? INVALID_VALUE : OK; }
int cuMemGetAllocationPropertiesFromHandle(struct properties* found, u64 handle) {
    memset(found, 0, sizeof *found);
    found->type = PINNED;
    found->compression = handle >> 32;
    return OK;
}
int cuMemMap(u64 address, size_t size, size_t offset, u64 handle, u64 flags) {
    void* found = mmap((void*)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, offset);
    return found == MAP_FAILED || flags ? INVALID_VALUE : OK;
}
int cuMemUnmap(u64 address, size_t size) {
    return mmap((void*)address, size, PROT_NONE, NOTHING | MAP_FIXED, -1, 0) == MAP_FAILED ? INVALID_VALUE : OK;
}
int cuMemSetAccess(u64 address, size_t size, const struct access* asked, size_t count) {
    if (count != 1 || asked->place.type != ON_DEVICE || asked->flags != READ_WRITE) return INVALID_VALUE;
    return mprotect((void*)address, size, PROT_READ | PROT_WRITE) ? INVALID_VALUE : OK;
}

int cuMemGetInfo_v2(size_t* available, size_t* total) { return *available = 1 << 20, *total = 1 << 21, OK; }
int cuMemAlloc_v2(u64* address, size_t size) { return (*address = (u64)malloc(size)) ? OK : OUT_OF_MEMORY; }
int cuMemFree_v2(u64 address) { return free((void*)address), OK; }
int cuMemcpyHtoD_v2(u64 target, const void* source, size_t size) { return memcpy((void*)target, source, size), OK; }
int cuMemcpyDtoH_v2(void* target, u64 source, size_t size) { return memcpy(target, (void*)source, size), OK; }
int cuMemcpyHtoDAsync_v2(u64 target, const void* source, size_t size, void* stream) {
    return stream == COPIES ? cuMemcpyHtoD_v2(target, source, size) : INVALID_HANDLE;
}
int cuMemcpyDtoHAsync_v2(void* target, u64 source, size_t size, void* stream) {
    return stream == COPIES ? cuMemcpyDtoH_v2(target, source, size) : INVALID_HANDLE;
}
int cuStreamCreate(void** stream, unsigned flags) { return *stream = COPIES, flags == 1 ? OK : INVALID_VALUE; }
int cuStreamDestroy_v2(void* stream) { return stream == COPIES ? OK : INVALID_HANDLE; }
int cuStreamSynchronize(void* stream) { return stream == STREAM || stream == COPIES ? OK : INVALID_HANDLE; }
int cuEventQuery(void* event) { return event == (void*)0x99 ? OK : INVALID_HANDLE; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    return *value = attribute == 16 ? 2 : 0, device ? INVALID_VALUE : OK;
}
int cuPointerGetAttribute(void* value, int attribute, u64 address) {
    return *(unsigned*)value = attribute == 2 ? 2 : 0, address ? OK : INVALID_VALUE;
}
int cuLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned dx, unsigned dy, unsigned dz,
                   unsigned shared, void* stream, void** parameters, void** more) {
    if (kernel != KERNEL || stream != STREAM || !x || y != 1 || z != 1 || !dx || dy != 1 || dz != 1 || shared || more)
        return INVALID_VALUE;
    u64 *words = *(u64**)parameters[0], count = *(u64*)parameters[1], value = *(u64*)parameters[2];
    for (u64 i = 0; i < count; i++) words[i] += value;
    return OK;
}
