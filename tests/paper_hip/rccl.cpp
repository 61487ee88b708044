// Collectives on paper, in place of librccl.so.1: ranks are processes of this machine that pass bytes on through rings in
// shared memory, and sum in the order of the ranks. A call is work of its stream. The shared memory is a file without a
// name, which ranks open through the process that made the identifier.
#include <fcntl.h>
#include <hip/hip_runtime_api.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
typedef unsigned long long u64;
enum { DONE = 0, SYSTEM_ERROR = 2, INVALID = 4, IN_USE_WRONGLY = 5, REMOTE_ERROR = 6 };  // ncclResult_t (rccl.h)
constexpr int MOST_RANKS = 8;
constexpr size_t RING = 1 << 18;  // bytes that one rank can send to another before that one receives
constexpr double PATIENCE_S = 60;

struct Ring {
    u64 sent, received;
    char bytes[RING];
};
struct Board {
    u64 joined, is_aborted;
    Ring rings[MOST_RANKS][MOST_RANKS];  // from, to
};
struct Identifier {
    char internal[128];
};
struct Place {  // what an identifier holds
    int process, file;
};
struct Comm {
    Board* board;
    int world, rank, device;
};

double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
u64 read(const u64& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

struct Transfer {
    int peer;
    bool is_send;
    char* place;
    size_t bytes;
    // Moves what the ring has or has room for, and tells whether it moved anything.
    bool advance(Comm& comm) {
        Ring& ring = is_send ? comm.board->rings[comm.rank][peer] : comm.board->rings[peer][comm.rank];
        const u64 sent = read(ring.sent), received = read(ring.received), at = (is_send ? sent : received) % RING;
        const size_t there = is_send ? RING - (sent - received) : sent - received;
        const size_t count = std::min({bytes, there, (size_t)(RING - at)});
        if (!count) return false;
        if (is_send) memcpy(ring.bytes + at, place, count);
        else memcpy(place, ring.bytes + at, count);
        __atomic_fetch_add(is_send ? &ring.sent : &ring.received, count, __ATOMIC_RELEASE);
        place += count;
        bytes -= count;
        return true;
    }
};

// The transfers of a call, or of a group of calls, and what follows them. It stays: a graph may run it again.
struct Calls {
    Comm* comm;
    hipStream_t stream;
    std::vector<Transfer> transfers;
    std::vector<std::function<void()>> after;
};

void run_calls(void* data) {
    const Calls& calls = *(Calls*)data;
    Comm& comm = *calls.comm;
    std::vector<Transfer> left = calls.transfers;
    for (double last = now_s(); !left.empty() && !read(comm.board->is_aborted);) {
        bool is_moving = false, is_held[2][MOST_RANKS] = {};
        for (Transfer& transfer : left) {  // those with one peer are in order
            bool& held = is_held[transfer.is_send][transfer.peer];
            if (!held) is_moving |= transfer.advance(comm);
            held |= transfer.bytes > 0;
        }
        left.erase(std::remove_if(left.begin(), left.end(), [](const Transfer& one) { return !one.bytes; }), left.end());
        if (is_moving) last = now_s();
        else if (now_s() - last > PATIENCE_S) __atomic_store_n(&comm.board->is_aborted, 1, __ATOMIC_RELEASE);
        else sched_yield();
    }
    if (left.empty())
        for (const auto& step : calls.after) step();
}

thread_local int depth = 0;
thread_local std::vector<Calls> group;

int queued(Calls calls) {
    if (depth) return group.push_back(std::move(calls)), DONE;
    return hipLaunchHostFunc(calls.stream, run_calls, new Calls(std::move(calls))) == hipSuccess ? DONE : IN_USE_WRONGLY;
}

size_t bytes_of(int type) {
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type < 0 || type > 9 ? 0 : bytes[type];
}

template <class NUMBER>
void reduce_as(char* total, const char* other, size_t count, int operation) {
    NUMBER* const a = (NUMBER*)total;
    const NUMBER* const b = (const NUMBER*)other;
    for (size_t i = 0; i < count; ++i)
        a[i] = operation == 0 ? a[i] + b[i] : operation == 1 ? a[i] * b[i] : operation == 2 ? std::max(a[i], b[i]) : std::min(a[i], b[i]);
}
void reduce(char* total, const char* other, size_t count, int type, int operation) {
    switch (type) {
        case 0: return reduce_as<signed char>(total, other, count, operation);
        case 1: return reduce_as<unsigned char>(total, other, count, operation);
        case 2: return reduce_as<int>(total, other, count, operation);
        case 3: return reduce_as<unsigned>(total, other, count, operation);
        case 4: return reduce_as<long long>(total, other, count, operation);
        case 5: return reduce_as<u64>(total, other, count, operation);
        case 6: return reduce_as<_Float16>(total, other, count, operation);
        case 7: return reduce_as<float>(total, other, count, operation);
        case 8: return reduce_as<double>(total, other, count, operation);
    }
}
bool can_reduce(int type, int operation) { return type >= 0 && type <= 8 && operation >= 0 && operation <= 3; }

// Sends `count` elements to each rank of `targets`, `step` elements further for each; those of all ranks are reduced here
// where this rank is one of the targets.
int reduced(const void* send, void* receive, size_t count, size_t step, int type, int operation, Comm* comm,
            std::vector<int> targets, hipStream_t stream) {
    if (!can_reduce(type, operation)) return INVALID;
    const size_t bytes = count * bytes_of(type), further = step * bytes_of(type);
    Calls calls = {comm, stream};
    for (size_t i = 0; i < targets.size(); ++i)
        calls.transfers.push_back({targets[i], true, (char*)send + i * further, bytes});
    if (std::count(targets.begin(), targets.end(), comm->rank)) {
        auto* const parts = new std::vector<char>(comm->world * bytes);
        for (int rank = 0; rank < comm->world; ++rank)
            calls.transfers.push_back({rank, false, parts->data() + rank * bytes, bytes});
        calls.after.push_back([=] {
            std::vector<char> total(parts->begin(), parts->begin() + bytes);
            for (int rank = 1; rank < comm->world; ++rank) reduce(total.data(), parts->data() + rank * bytes, count, type, operation);
            memcpy(receive, total.data(), bytes);
        });
    }
    return queued(std::move(calls));
}
std::vector<int> all(const Comm* comm) {
    std::vector<int> ranks(comm->world);
    for (int rank = 0; rank < comm->world; ++rank) ranks[rank] = rank;
    return ranks;
}
}  // namespace

EXPORT const char* ncclGetErrorString(int error) {
    static const char* const words[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error"};
    return error >= 0 && error <= 6 ? words[error] : "unknown result code";
}
EXPORT int ncclGetVersion(int* version) { return *version = 22700, DONE; }
EXPORT int ncclGetUniqueId(Identifier* identifier) {
    const int file = (int)syscall(SYS_memfd_create, "paper-rccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Board))) return SYSTEM_ERROR;
    const Place place = {getpid(), file};
    memset(identifier, 0, sizeof *identifier);
    memcpy(identifier, &place, sizeof place);
    return DONE;
}
EXPORT int ncclCommInitRankConfig(Comm** comm, int world, Identifier identifier, int rank, void*) {
    if (world < 1 || world > MOST_RANKS || rank < 0 || rank >= world) return INVALID;
    Place place;
    memcpy(&place, &identifier, sizeof place);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", place.process, place.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return SYSTEM_ERROR;
    void* const board = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (board == MAP_FAILED) return SYSTEM_ERROR;
    int device = 0;
    hipGetDevice(&device);
    Comm* const made = new Comm{(Board*)board, world, rank, device};
    __atomic_fetch_add(&made->board->joined, 1, __ATOMIC_SEQ_CST);
    for (const double begun = now_s(); read(made->board->joined) < (u64)world; sched_yield())
        if (now_s() - begun > PATIENCE_S) return REMOTE_ERROR;
    if (place.process == getpid()) close(place.file);
    return *comm = made, DONE;
}
EXPORT int ncclCommDestroy(Comm* comm) {
    hipDeviceSynchronize();
    munmap(comm->board, sizeof(Board));
    return delete comm, DONE;
}
EXPORT int ncclCommAbort(Comm* comm) {
    __atomic_store_n(&comm->board->is_aborted, 1, __ATOMIC_RELEASE);
    return ncclCommDestroy(comm);
}
EXPORT int ncclCommGetAsyncError(Comm* comm, int* error) {
    return *error = read(comm->board->is_aborted) ? REMOTE_ERROR : DONE, DONE;
}
EXPORT int ncclCommCount(const Comm* comm, int* count) { return *count = comm->world, DONE; }
EXPORT int ncclCommCuDevice(const Comm* comm, int* device) { return *device = comm->device, DONE; }
EXPORT int ncclCommUserRank(const Comm* comm, int* rank) { return *rank = comm->rank, DONE; }

EXPORT int ncclGroupStart() { return ++depth, DONE; }
EXPORT int ncclGroupEnd() {
    if (!depth) return IN_USE_WRONGLY;
    if (--depth) return DONE;
    std::vector<Calls> joined;  // one for each communicator and stream
    for (Calls& calls : group) {
        const auto same = [&](const Calls& other) { return other.comm == calls.comm && other.stream == calls.stream; };
        auto one = std::find_if(joined.begin(), joined.end(), same);
        if (one == joined.end()) one = joined.insert(joined.end(), Calls{calls.comm, calls.stream});
        one->transfers.insert(one->transfers.end(), calls.transfers.begin(), calls.transfers.end());
        one->after.insert(one->after.end(), calls.after.begin(), calls.after.end());
    }
    group.clear();
    for (Calls& calls : joined)
        if (const int error = queued(std::move(calls))) return error;
    return DONE;
}

EXPORT int ncclSend(const void* place, size_t count, int type, int peer, Comm* comm, hipStream_t stream) {
    if (peer < 0 || peer >= comm->world || !bytes_of(type)) return INVALID;
    return queued({comm, stream, {{peer, true, (char*)place, count * bytes_of(type)}}});
}
EXPORT int ncclRecv(void* place, size_t count, int type, int peer, Comm* comm, hipStream_t stream) {
    if (peer < 0 || peer >= comm->world || !bytes_of(type)) return INVALID;
    return queued({comm, stream, {{peer, false, (char*)place, count * bytes_of(type)}}});
}
EXPORT int ncclAllReduce(const void* send, void* receive, size_t count, int type, int operation, Comm* comm, hipStream_t stream) {
    return reduced(send, receive, count, 0, type, operation, comm, all(comm), stream);
}
EXPORT int ncclReduceScatter(const void* send, void* receive, size_t count, int type, int operation, Comm* comm,
                             hipStream_t stream) {
    return reduced(send, receive, count, count, type, operation, comm, all(comm), stream);
}
EXPORT int ncclReduce(const void* send, void* receive, size_t count, int type, int operation, int root, Comm* comm,
                      hipStream_t stream) {
    return reduced(send, receive, count, 0, type, operation, comm, {root}, stream);
}
EXPORT int ncclAllGather(const void* send, void* receive, size_t count, int type, Comm* comm, hipStream_t stream) {
    if (!bytes_of(type)) return INVALID;
    const size_t bytes = count * bytes_of(type);
    Calls calls = {comm, stream};
    for (int rank = 0; rank < comm->world; ++rank) {
        calls.transfers.push_back({rank, true, (char*)send, bytes});
        calls.transfers.push_back({rank, false, (char*)receive + rank * bytes, bytes});
    }
    return queued(std::move(calls));
}
EXPORT int ncclBroadcast(const void* send, void* receive, size_t count, int type, int root, Comm* comm, hipStream_t stream) {
    if (root < 0 || root >= comm->world || !bytes_of(type)) return INVALID;
    const size_t bytes = count * bytes_of(type);
    Calls calls = {comm, stream, {{root, false, (char*)receive, bytes}}};
    for (int rank = 0; comm->rank == root && rank < comm->world; ++rank)
        calls.transfers.push_back({rank, true, (char*)send, bytes});
    return queued(std::move(calls));
}
EXPORT int ncclBcast(void* place, size_t count, int type, int root, Comm* comm, hipStream_t stream) {
    return ncclBroadcast(place, place, count, type, root, comm, stream);
}
