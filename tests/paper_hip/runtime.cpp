// A HIP runtime on paper, in place of libamdhip64.so.7: device memory is memory of the host, a stream is a thread that takes
// what is queued in order, events take the host's time, and kernels are shared libraries that rtc.cpp made of their source.
// It shows that calls are right and in order; nothing in it measures.
//
// Memory is of files without names, so that another process can open it by a handle.
#include <dlfcn.h>
#include <sched.h>
#include <execinfo.h>
#include <fcntl.h>
#include <hip/hip_runtime_api.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
typedef std::function<void()> Work;
constexpr int DEVICES = 2;
constexpr unsigned MOST_THREADS = 1024, MOST_SHARED = 65536, UNITS = 2, MOST_THREADS_OF_UNIT = 2048;
thread_local int current = 0;
thread_local hipError_t last = hipSuccess;

hipError_t said(hipError_t error) {
    if (error == hipSuccess) return error;
    if (getenv("PAPER_HIP_TRACE")) {
        void* frames[8];
        backtrace_symbols_fd(frames, backtrace(frames, 8), 2);
    }
    return last = error;
}

double now_ms() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

// ---- streams

struct Graph {
    std::vector<Work> works;
};

class Stream {
  public:
    Stream(int device, unsigned flags, int priority) : device(device), flags(flags), priority(priority) {
        std::thread([this] { work(); }).detach();
    }
    void add(Work work) {
        if (captured) {
            captured->works.push_back(std::move(work));
            return;
        }
        for (Stream* other : before(this)) {  // the null stream waits for the others, and they for it
            const unsigned long long all = other->queued;
            if (other->done < all) push([=] { other->wait_for(all); });
        }
        push(std::move(work));
    }
    void wait() { wait_for(queued); }
    bool is_idle() {
        const std::lock_guard<std::mutex> hold(lock);
        return done == queued;
    }
    const int device;
    const unsigned flags;
    const int priority;
    std::unique_ptr<Graph> captured;

  private:
    static std::vector<Stream*> before(const Stream* stream);
    void push(Work work) {
        const std::lock_guard<std::mutex> hold(lock);
        queue.push_back(std::move(work));
        ++queued;
        changed.notify_all();
    }
    void wait_for(unsigned long long number) {
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [&] { return done >= number; });
    }
    void work() {
        current = device;
        for (;;) {
            Work next;
            {
                std::unique_lock<std::mutex> hold(lock);
                changed.wait(hold, [&] { return !queue.empty(); });
                next = std::move(queue.front());
                queue.pop_front();
            }
            next();
            const std::lock_guard<std::mutex> hold(lock);
            ++done;
            changed.notify_all();
        }
    }
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Work> queue;
    std::atomic<unsigned long long> queued{0}, done{0};
};

std::mutex streams_lock;
std::vector<Stream*> streams;  // threads of destroyed streams stay until the process ends
Stream* nulls[DEVICES];

std::vector<Stream*> Stream::before(const Stream* stream) {
    std::vector<Stream*> found;
    if (stream->flags & hipStreamNonBlocking) return found;
    if (stream != nulls[stream->device]) {
        if (nulls[stream->device]) found.push_back(nulls[stream->device]);
        return found;
    }
    const std::lock_guard<std::mutex> hold(streams_lock);
    for (Stream* other : streams)
        if (other != stream && other->device == stream->device && !(other->flags & hipStreamNonBlocking)) found.push_back(other);
    return found;
}

Stream* made(int device, unsigned flags, int priority) {
    Stream* stream = new Stream(device, flags, priority);
    const std::lock_guard<std::mutex> hold(streams_lock);
    streams.push_back(stream);
    return stream;
}

Stream* stream_of(hipStream_t handle) {
    if (handle && (size_t)handle > 2) return (Stream*)handle;  // 1 and 2 name the null streams too
    if (!nulls[current]) nulls[current] = made(current, 0, 0);
    return nulls[current];
}

void wait_for_device(int device) {
    std::vector<Stream*> all;
    {
        const std::lock_guard<std::mutex> hold(streams_lock);
        all = streams;
    }
    for (Stream* stream : all)
        if (stream->device == device) stream->wait();
}

// ---- memory

struct Region {
    size_t bytes;
    int file, device;  // -1 of the host's memory
    hipMemoryType type;
};
std::mutex regions_lock;
std::map<char*, Region> regions;
constexpr size_t PAGE = 4096;
// A device may be given less memory than usual, so that what would take hours on the host does not fit.
const size_t TOTAL = (getenv("PAPER_HIP_GIB") ? strtoull(getenv("PAPER_HIP_GIB"), nullptr, 10) : 64) << 30;
size_t used[DEVICES];

hipError_t allocated(void** place, size_t bytes, hipMemoryType type) {
    if (!place) return said(hipErrorInvalidValue);
    *place = nullptr;
    if (!bytes) return hipSuccess;
    const size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    if (type == hipMemoryTypeDevice && used[current] + room > TOTAL) return said(hipErrorOutOfMemory);
    const int file = (int)syscall(SYS_memfd_create, "paper", 0);
    if (file < 0 || ftruncate(file, room)) return said(hipErrorOutOfMemory);
    void* found = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED) {
        close(file);
        return said(hipErrorOutOfMemory);
    }
    const std::lock_guard<std::mutex> hold(regions_lock);
    regions[(char*)found] = {room, file, type == hipMemoryTypeHost ? -1 : current, type};
    if (type == hipMemoryTypeDevice) used[current] += room;
    *place = found;
    return hipSuccess;
}

hipError_t freed(void* place) {
    if (!place) return hipSuccess;
    for (int device = 0; device < DEVICES; ++device) wait_for_device(device);  // as hipFree does
    const std::lock_guard<std::mutex> hold(regions_lock);
    const auto found = regions.find((char*)place);
    if (found == regions.end()) return said(hipErrorInvalidValue);
    if (found->second.type == hipMemoryTypeDevice && found->second.file >= 0) used[found->second.device] -= found->second.bytes;
    munmap(place, found->second.bytes);
    if (found->second.file >= 0) close(found->second.file);
    regions.erase(found);
    return hipSuccess;
}

// The region that an address lies in; end() of another address.
std::map<char*, Region>::iterator region_of(const void* place) {
    auto found = regions.upper_bound((char*)place);
    if (found == regions.begin()) return regions.end();
    --found;
    return (char*)place < found->first + found->second.bytes ? found : regions.end();
}

// Whether an address is in the data of a module, as `__constant__` arrays are.
bool is_of_module(const void* place) {
    Dl_info found;
    return dladdr(place, &found) && strstr(found.dli_fname, "paper-hip-module");
}

// As hipMemcpyAsync does, it waits for the copy where the host's memory is not pinned (HIP's reference of that function).
hipError_t queued_copy(void* to, const void* from, size_t bytes, hipStream_t stream, hipMemcpyKind kind = hipMemcpyDefault,
                       int to_device = -1, int from_device = -1) {
    if (bytes && (!to || !from)) return said(hipErrorInvalidValue);
    bool is_pageable;
    {
        const std::lock_guard<std::mutex> hold(regions_lock);
        const auto target = region_of(to), source = region_of(from);
        is_pageable = target == regions.end() || source == regions.end();
        const bool is_to = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice || to_device >= 0;
        const bool is_from = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice || from_device >= 0;
        if ((is_to && target == regions.end() && !is_of_module(to)) || (is_from && source == regions.end() && !is_of_module(from)))
            return said(hipErrorInvalidMemcpyDirection);
        if ((to_device >= 0 && target->second.device != to_device) || (from_device >= 0 && source->second.device != from_device))
            return said(hipErrorInvalidDevice);
    }
    Stream* const in = stream_of(stream);
    in->add([=] { memcpy(to, from, bytes); });
    if (is_pageable && !in->captured) in->wait();
    return hipSuccess;
}

// ---- events

struct Event {
    unsigned flags = 0;
    std::mutex lock;
    std::condition_variable changed;
    unsigned long long recorded = 0, done = 0;
    double at_ms = 0;
    void finish(unsigned long long number) {
        const std::lock_guard<std::mutex> hold(lock);
        if (number < done) return;
        at_ms = now_ms();
        done = number;
        changed.notify_all();
    }
    void wait(unsigned long long number) {
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [&] { return done >= number; });
    }
};

// ---- kernels

struct Module {
    void* library;
};
struct Function {  // what rtc.cpp generates for each kernel
    void* (*pack)(void** arguments);
    void (*launch)(void* packed, const unsigned* grid, const unsigned* block, unsigned long long* next, void (*waits)());
    void (*drop)(void* packed);
};

// A grid that runs: as many threads of the host as there are cores take its blocks, and one more whenever a block may be
// waiting for another, up to the number of blocks that the device would hold at once.
class Running {
  public:
    Running(const Function& function, void* packed, const unsigned* grid, const unsigned* block)
        : function(function), packed(packed), grid(grid), block(block),
          blocks((unsigned long long)grid[0] * grid[1] * grid[2]),
          most((int)(UNITS * (MOST_THREADS_OF_UNIT / (block[0] * block[1] * block[2])))) {}
    void run() {
        const unsigned cores = std::thread::hardware_concurrency();
        for (unsigned i = 1; i < cores && i < blocks; ++i) add_thread();
        take();
        std::unique_lock<std::mutex> hold(lock);
        changed.wait(hold, [&] { return !helpers; });
    }

  private:
    void take() {
        mine = this;
        function.launch(packed, grid, block, &next, [] { mine->add_thread(); });
    }
    void add_thread();
    void help() {
        take();
        const std::lock_guard<std::mutex> hold(lock);
        --helpers;
        changed.notify_all();
    }
    static thread_local Running* mine;
    const Function& function;
    void* const packed;
    const unsigned *const grid, *const block;
    const unsigned long long blocks;
    const int most;
    unsigned long long next = 0;
    int helpers = 0;
    std::mutex lock;
    std::condition_variable changed;
    friend class Helpers;
};
thread_local Running* Running::mine;

// Threads that help with grids: they stay, since each has shared memory and stacks of its own in every module.
class Helpers {
  public:
    void add(Running* grid) {
        const std::lock_guard<std::mutex> hold(lock);
        waiting.push_back(grid);
        if (idle < waiting.size()) std::thread([this] { work(); }).detach();
        else changed.notify_one();
    }

  private:
    void work() {
        std::unique_lock<std::mutex> hold(lock);
        for (;;) {
            ++idle;
            changed.wait(hold, [&] { return !waiting.empty(); });
            --idle;
            Running* const grid = waiting.front();
            waiting.pop_front();
            hold.unlock();
            grid->help();
            hold.lock();
        }
    }
    std::mutex lock;
    std::condition_variable changed;
    std::deque<Running*> waiting;
    size_t idle = 0;
};
Helpers* const helpers_of_all = new Helpers;

void Running::add_thread() {
    bool is_wanted;
    {
        const std::lock_guard<std::mutex> hold(lock);
        is_wanted = __atomic_load_n(&next, __ATOMIC_SEQ_CST) < blocks && helpers + 1 < most;
        helpers += is_wanted;
    }
    if (is_wanted) helpers_of_all->add(this);
    sched_yield();
}
}  // namespace

// ---- devices

EXPORT hipError_t hipGetDeviceCount(int* count) { return *count = DEVICES, hipSuccess; }
EXPORT hipError_t hipGetDevice(int* device) { return *device = current, hipSuccess; }
EXPORT hipError_t hipSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return said(hipErrorInvalidDevice);
    current = device;
    return hipSuccess;
}
EXPORT hipError_t hipDriverGetVersion(int* version) { return *version = 70051831, hipSuccess; }
EXPORT hipError_t hipRuntimeGetVersion(int* version) { return *version = 70051831, hipSuccess; }
EXPORT hipError_t hipDeviceSynchronize() { return wait_for_device(current), hipSuccess; }
EXPORT hipError_t hipDeviceGetPCIBusId(char* text, int length, int device) {
    return snprintf(text, length, "0000:%02x:00.0", 0x0c + 0x11 * device), hipSuccess;
}
EXPORT hipError_t hipDeviceGetByPCIBusId(int* device, const char* text) {
    for (*device = 0; *device < DEVICES; ++*device) {
        char own[16];
        hipDeviceGetPCIBusId(own, sizeof own, *device);
        if (!strcasecmp(own, text)) return hipSuccess;
    }
    return said(hipErrorInvalidValue);
}
EXPORT hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) { return *can = device != peer, hipSuccess; }
EXPORT hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    static bool enabled[DEVICES][DEVICES];
    if (peer < 0 || peer >= DEVICES || peer == current || flags) return said(hipErrorInvalidValue);
    if (enabled[current][peer]) return said(hipErrorPeerAccessAlreadyEnabled);
    enabled[current][peer] = true;
    return hipSuccess;
}
EXPORT hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* of, int device) {
    memset(of, 0, sizeof *of);
    strcpy(of->name, "GPU on paper");
    strcpy(of->gcnArchName, "gfx90a:sramecc+:xnack-");
    memset(&of->uuid, 0x40 + device, sizeof of->uuid);
    of->totalGlobalMem = TOTAL;
    of->sharedMemPerBlock = of->maxSharedMemoryPerMultiProcessor = MOST_SHARED;
    of->regsPerBlock = of->regsPerMultiprocessor = 65536;
    of->warpSize = 64;
    of->maxThreadsPerBlock = MOST_THREADS;
    of->maxThreadsPerMultiProcessor = MOST_THREADS_OF_UNIT;
    for (int i = 0; i < 3; ++i) of->maxThreadsDim[i] = MOST_THREADS, of->maxGridSize[i] = 2147483647;
    of->clockRate = 1700000;
    of->memoryClockRate = 1600000;
    of->memoryBusWidth = 4096;
    of->multiProcessorCount = UNITS;
    of->l2CacheSize = 262144;
    of->major = 9;
    of->minor = 0;
    of->pciBusID = 0x0c + 0x11 * device;
    of->managedMemory = of->concurrentKernels = of->canMapHostMemory = 1;
    of->asyncEngineCount = 2;
    return hipSuccess;
}
EXPORT hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t what, int device) {
    hipDeviceProp_tR0600 of;
    hipGetDevicePropertiesR0600(&of, device);
    switch (what) {
        case hipDeviceAttributeComputeCapabilityMajor: *value = of.major; break;
        case hipDeviceAttributeComputeCapabilityMinor: *value = of.minor; break;
        case hipDeviceAttributeMultiprocessorCount: *value = of.multiProcessorCount; break;
        case hipDeviceAttributeWarpSize: *value = of.warpSize; break;
        case hipDeviceAttributeMaxThreadsPerBlock: *value = of.maxThreadsPerBlock; break;
        case hipDeviceAttributeMaxSharedMemoryPerBlock: *value = (int)of.sharedMemPerBlock; break;
        case hipDeviceAttributeMaxThreadsPerMultiProcessor: *value = of.maxThreadsPerMultiProcessor; break;
        case hipDeviceAttributeClockRate: *value = of.clockRate; break;
        case hipDeviceAttributeL2CacheSize: *value = of.l2CacheSize; break;
        case hipDeviceAttributeMaxGridDimX:
        case hipDeviceAttributeMaxGridDimY:
        case hipDeviceAttributeMaxGridDimZ: *value = of.maxGridSize[0]; break;
        case hipDeviceAttributeMaxBlockDimX:
        case hipDeviceAttributeMaxBlockDimY:
        case hipDeviceAttributeMaxBlockDimZ: *value = MOST_THREADS; break;
        default: *value = 0;
    }
    return hipSuccess;
}

// ---- errors

EXPORT hipError_t hipGetLastError() {
    const hipError_t found = last;
    return last = hipSuccess, found;
}
EXPORT hipError_t hipPeekAtLastError() { return last; }
EXPORT const char* hipGetErrorName(hipError_t error) {
    static const std::map<int, const char*> names = {
        {hipSuccess, "hipSuccess"}, {hipErrorInvalidValue, "hipErrorInvalidValue"},
        {hipErrorOutOfMemory, "hipErrorOutOfMemory"}, {hipErrorInvalidConfiguration, "hipErrorInvalidConfiguration"},
        {hipErrorInvalidDevice, "hipErrorInvalidDevice"}, {hipErrorInvalidHandle, "hipErrorInvalidHandle"},
        {hipErrorNotFound, "hipErrorNotFound"}, {hipErrorNotReady, "hipErrorNotReady"},
        {hipErrorPeerAccessAlreadyEnabled, "hipErrorPeerAccessAlreadyEnabled"},
        {hipErrorNotSupported, "hipErrorNotSupported"}, {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu"}};
    const auto found = names.find(error);
    return found == names.end() ? "hipErrorUnknown" : found->second;
}
EXPORT const char* hipGetErrorString(hipError_t error) { return hipGetErrorName(error); }

// ---- memory

EXPORT hipError_t hipMalloc(void** place, size_t bytes) { return allocated(place, bytes, hipMemoryTypeDevice); }
EXPORT hipError_t hipHostMalloc(void** place, size_t bytes, unsigned) {
    return allocated(place, bytes, hipMemoryTypeHost);
}
EXPORT hipError_t hipMallocManaged(void** place, size_t bytes, unsigned) {
    return allocated(place, bytes, hipMemoryTypeManaged);
}
EXPORT hipError_t hipFree(void* place) { return freed(place); }
EXPORT hipError_t hipHostFree(void* place) { return freed(place); }
EXPORT hipError_t hipMemGetInfo(size_t* left, size_t* total) {
    *total = TOTAL;
    *left = TOTAL - used[current];
    return hipSuccess;
}
EXPORT hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
    const hipError_t error = queued_copy(to, from, bytes, nullptr, kind);
    stream_of(nullptr)->wait();
    return error;
}
EXPORT hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
    return queued_copy(to, from, bytes, stream, kind);
}
EXPORT hipError_t hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                     hipStream_t stream) {
    return queued_copy(to, from, bytes, stream, hipMemcpyDefault, to_device, from_device);
}
EXPORT hipError_t hipMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
    const hipError_t error = queued_copy(to, from, bytes, nullptr, hipMemcpyDefault, to_device, from_device);
    stream_of(nullptr)->wait();
    return error;
}
EXPORT hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
    if (bytes && !to) return said(hipErrorInvalidValue);
    stream_of(stream)->add([=] { memset(to, value, bytes); });
    return hipSuccess;
}
EXPORT hipError_t hipMemset(void* to, int value, size_t bytes) {
    const hipError_t error = hipMemsetAsync(to, value, bytes, nullptr);
    stream_of(nullptr)->wait();
    return error;
}
EXPORT hipError_t hipMemAdvise(const void*, size_t, hipMemoryAdvise, int) { return hipSuccess; }
EXPORT hipError_t hipMemPrefetchAsync(const void*, size_t, int, hipStream_t) { return hipSuccess; }
EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t* of, const void* place) {
    const std::lock_guard<std::mutex> hold(regions_lock);
    const auto found = region_of(place);
    memset(of, 0, sizeof *of);
    of->type = hipMemoryTypeUnregistered;  // an answer and no error since ROCm 6: CuPy asks it of every NumPy array
    if (found == regions.end()) return hipSuccess;
    of->type = found->second.type;
    of->device = found->second.device;
    of->devicePointer = of->hostPointer = (void*)place;
    return hipSuccess;
}

struct Shared {  // what a memory handle holds: the process and its file
    int process, file, device;
    size_t bytes;
};
EXPORT hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t* handle, void* place) {
    const std::lock_guard<std::mutex> hold(regions_lock);
    const auto found = region_of(place);
    if (found == regions.end() || found->first != (char*)place || found->second.type != hipMemoryTypeDevice)
        return said(hipErrorInvalidValue);
    const Shared shared = {getpid(), found->second.file, found->second.device, found->second.bytes};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &shared, sizeof shared);
    return hipSuccess;
}
EXPORT hipError_t hipIpcOpenMemHandle(void** place, hipIpcMemHandle_t handle, unsigned) {
    Shared shared;
    memcpy(&shared, &handle, sizeof shared);
    if (shared.process == getpid()) return said(hipErrorInvalidValue);  // as the real one: not in the same process
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.process, shared.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return said(hipErrorInvalidValue);
    void* found = mmap(nullptr, shared.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED) return said(hipErrorInvalidValue);
    const std::lock_guard<std::mutex> hold(regions_lock);
    regions[(char*)found] = {shared.bytes, -1, shared.device, hipMemoryTypeDevice};
    *place = found;
    return hipSuccess;
}
EXPORT hipError_t hipIpcCloseMemHandle(void* place) { return freed(place); }

// ---- streams and graphs

EXPORT hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
    return *stream = (hipStream_t)made(current, flags, priority), hipSuccess;
}
EXPORT hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
    return hipStreamCreateWithPriority(stream, flags, 0);
}
EXPORT hipError_t hipStreamCreate(hipStream_t* stream) { return hipStreamCreateWithPriority(stream, 0, 0); }
EXPORT hipError_t hipStreamDestroy(hipStream_t stream) { return stream_of(stream)->wait(), hipSuccess; }
EXPORT hipError_t hipStreamSynchronize(hipStream_t stream) { return stream_of(stream)->wait(), hipSuccess; }
EXPORT hipError_t hipStreamQuery(hipStream_t stream) {
    return stream_of(stream)->is_idle() ? hipSuccess : hipErrorNotReady;
}
EXPORT hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
    return *priority = stream_of(stream)->priority, hipSuccess;
}
EXPORT hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
    return *flags = stream_of(stream)->flags, hipSuccess;
}
EXPORT hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
    *status = stream_of(stream)->captured ? hipStreamCaptureStatusActive : hipStreamCaptureStatusNone;
    return hipSuccess;
}
EXPORT hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode) {
    return stream_of(stream)->captured.reset(new Graph), hipSuccess;
}
EXPORT hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
    if (!stream_of(stream)->captured) return said(hipErrorInvalidValue);
    return *graph = (hipGraph_t)stream_of(stream)->captured.release(), hipSuccess;
}
EXPORT hipError_t hipGraphInstantiate(hipGraphExec_t* made, hipGraph_t graph, hipGraphNode_t*, char*, size_t) {
    return *made = (hipGraphExec_t) new Graph(*(Graph*)graph), hipSuccess;
}
EXPORT hipError_t hipGraphLaunch(hipGraphExec_t graph, hipStream_t stream) {
    for (const Work& work : ((Graph*)graph)->works) stream_of(stream)->add(work);
    return hipSuccess;
}
EXPORT hipError_t hipGraphDestroy(hipGraph_t graph) { return delete (Graph*)graph, hipSuccess; }
EXPORT hipError_t hipGraphExecDestroy(hipGraphExec_t graph) { return delete (Graph*)graph, hipSuccess; }
EXPORT hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data) {
    return stream_of(stream)->add([=] { function(data); }), hipSuccess;
}
EXPORT hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t function, void* data, unsigned) {
    return stream_of(stream)->add([=] { function(stream, hipSuccess, data); }), hipSuccess;
}

// ---- events

EXPORT hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
    Event* found = new Event;
    found->flags = flags;
    return *event = (hipEvent_t)found, hipSuccess;
}
EXPORT hipError_t hipEventCreate(hipEvent_t* event) { return hipEventCreateWithFlags(event, 0); }
EXPORT hipError_t hipEventDestroy(hipEvent_t) { return hipSuccess; }  // a queued record may still name it
EXPORT hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
    Event* found = (Event*)event;
    const unsigned long long number = ++found->recorded;
    return stream_of(stream)->add([=] { found->finish(number); }), hipSuccess;
}
EXPORT hipError_t hipEventSynchronize(hipEvent_t event) { return ((Event*)event)->wait(((Event*)event)->recorded), hipSuccess; }
EXPORT hipError_t hipEventQuery(hipEvent_t event) {
    Event* found = (Event*)event;
    const std::lock_guard<std::mutex> hold(found->lock);
    return found->done == found->recorded ? hipSuccess : hipErrorNotReady;
}
EXPORT hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
    Event* found = (Event*)event;
    const unsigned long long number = found->recorded;
    return stream_of(stream)->add([=] { found->wait(number); }), hipSuccess;
}
EXPORT hipError_t hipEventElapsedTime(float* ms, hipEvent_t from, hipEvent_t to) {
    Event *first = (Event*)from, *second = (Event*)to;
    if ((first->flags | second->flags) & hipEventDisableTiming) return said(hipErrorInvalidHandle);
    if (!first->recorded || !second->recorded) return said(hipErrorInvalidHandle);
    if (hipEventQuery(from) != hipSuccess || hipEventQuery(to) != hipSuccess) return said(hipErrorNotReady);
    return *ms = (float)(second->at_ms - first->at_ms), hipSuccess;
}

// ---- kernels

EXPORT hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
    if (memcmp(image, "PAPERELF", 8)) return said(hipErrorNoBinaryForGpu);
    size_t bytes;
    memcpy(&bytes, (const char*)image + 8, sizeof bytes);
    char path[] = "/tmp/paper-hip-module-XXXXXX";  // each by a name of its own: the loader knows libraries by name
    const int file = mkstemp(path);
    if (file < 0 || write(file, (const char*)image + 16, bytes) != (ssize_t)bytes) return said(hipErrorOutOfMemory);
    close(file);
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "paper HIP: %s\n", dlerror());
    unlink(path);
    if (!library) return said(hipErrorNoBinaryForGpu);
    return *module = (hipModule_t) new Module{library}, hipSuccess;
}
EXPORT hipError_t hipModuleUnload(hipModule_t) { return hipSuccess; }  // a queued launch may still run it
EXPORT hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
    void* const library = ((Module*)module)->library;
    const std::string of = name;
    const auto part = [&](const char* kind) { return dlsym(library, ("paper_" + std::string(kind) + "_" + of).c_str()); };
    Function found = {(decltype(Function::pack))part("pack"), (decltype(Function::launch))part("launch"),
                      (decltype(Function::drop))part("drop")};
    if (!found.pack || !found.launch || !found.drop) return said(hipErrorNotFound);
    return *function = (hipFunction_t) new Function(found), hipSuccess;
}
EXPORT hipError_t hipModuleGetGlobal(void** place, size_t* bytes, hipModule_t module, const char* name) {
    void* const library = ((Module*)module)->library;
    *place = dlsym(library, name);
    const size_t* size = (const size_t*)dlsym(library, (std::string("paper_size_") + name).c_str());
    if (!*place) return said(hipErrorNotFound);
    if (bytes) *bytes = size ? *size : 0;
    return hipSuccess;
}
EXPORT hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute what, hipFunction_t) {
    *value = what == HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? (int)MOST_THREADS : 0;
    return hipSuccess;
}
EXPORT hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                        unsigned by, unsigned bz, unsigned shared_bytes, hipStream_t stream, void** arguments,
                                        void** extra) {
    if (!gx || !gy || !gz || !bx || !by || !bz || (unsigned long long)bx * by * bz > MOST_THREADS || shared_bytes > MOST_SHARED)
        return said(hipErrorInvalidConfiguration);
    if (extra) return said(hipErrorNotSupported);
    const Function found = *(Function*)function;
    const std::shared_ptr<void> packed(found.pack(arguments), found.drop);  // arguments are taken at the call
    stream_of(stream)->add([=] {
        const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
        Running(found, packed.get(), grid, block).run();
    });
    return hipSuccess;
}
