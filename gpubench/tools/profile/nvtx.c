/* Writes the NVTX ranges of a program as marks (gpubench/marks.py). NVTX loads this tool by NVTX_INJECTION64_PATH.
 *
 * The numbers and structures are those of NVTX 3 (nvtx3/nvtxDetail/nvtxTypes.h, nvtx3/nvToolsExt.h), part of its ABI
 * since version 2. Only ranges of the default domain are written: libraries use the other domains for many ranges.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

enum { CALLBACKS = 1, CORE = 1, CORE2 = 5 };                                    /* export table, modules */
enum { START_EX = 4, START_A, START_W, END, PUSH_EX, PUSH_A, PUSH_W, POP };     /* of CORE */
enum { DOMAIN_START = 2, DOMAIN_END, DOMAIN_PUSH, DOMAIN_POP, REGISTER_A = 10, REGISTER_W, CREATE_A, CREATE_W };
enum { MOST_EDGES = 1000000, MOST_NAME = 200 };

struct attributes { /* nvtxEventAttributes_v2 */
    uint16_t version, size;
    uint32_t category, color_type, color, payload_type, reserved;
    uint64_t payload;
    uint32_t message_type; /* 1 text, 2 wide text, 3 registered */
    const void *message;
};
struct callbacks {
    size_t size;
    int (*table)(int module, void ***out, unsigned *count);
};

static int file = -1;
static atomic_int edges;
static atomic_ullong ids;

static void edge(char kind, char side, uint64_t key, const char *name) {
    char line[MOST_NAME + 80];
    struct timespec now;
    if (file < 0 || atomic_fetch_add(&edges, 1) >= MOST_EDGES) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(line, sizeof line - 1, "%c %lld.%09ld %d.%c%llu", kind, (long long)now.tv_sec, now.tv_nsec,
                          (int)getpid(), side, (unsigned long long)key);
    if (kind == 'B') {
        length += snprintf(line + length, sizeof line - 1 - length, " %.*s", MOST_NAME, name ? name : "");
        for (char *at = line; *at; at++) if (*at == '\n' || *at == '\r') *at = ' ';
    }
    line[length++] = '\n';
    if (write(file, line, length) < 0) file = -1;
}

static uint64_t thread(void) { return (uint64_t)syscall(SYS_gettid); }

static const char *narrow(const wchar_t *wide, char *out) {
    size_t length = wide ? wcstombs(out, wide, MOST_NAME) : (size_t)-1;
    out[length == (size_t)-1 ? 0 : length < MOST_NAME ? length : MOST_NAME] = 0;
    return out;
}

static const char *text(const struct attributes *given, char *out) {
    if (!given || !given->message) return "";
    return given->message_type == 2 ? narrow(given->message, out) : given->message;
}

static int push_a(const char *name) { return edge('B', 't', thread(), name), 0; }
static int push_w(const wchar_t *name) { char out[MOST_NAME + 1]; return push_a(narrow(name, out)); }
static int push_ex(const struct attributes *given) { char out[MOST_NAME + 1]; return push_a(text(given, out)); }
static int pop(void) { return edge('E', 't', thread(), 0), 0; }
static uint64_t start_a(const char *name) { uint64_t id = ++ids; edge('B', 'r', id, name); return id; }
static uint64_t start_w(const wchar_t *name) { char out[MOST_NAME + 1]; return start_a(narrow(name, out)); }
static uint64_t start_ex(const struct attributes *given) { char out[MOST_NAME + 1]; return start_a(text(given, out)); }
static void end(uint64_t id) { if (id) edge('E', 'r', id, 0); }

static int domain_push(void *domain, const struct attributes *given) { return domain ? 0 : push_ex(given); }
static int domain_pop(void *domain) { return domain ? 0 : pop(); }
static uint64_t domain_start(void *domain, const struct attributes *given) { return domain ? 0 : start_ex(given); }
static void domain_end(void *domain, uint64_t id) { (void)domain; end(id); }
static void *create(const void *name) { (void)name; return &ids; } /* any handle that is not the default domain's */
static void *register_a(void *domain, const char *name) { (void)domain; return name ? strdup(name) : 0; }
static void *register_w(void *domain, const wchar_t *name) {
    char out[MOST_NAME + 1];
    return register_a(domain, narrow(name, out));
}

static int install(const struct callbacks *from, int module, const int *which, void *const *what, int count) {
    void **table = 0;
    unsigned size = 0;
    if (!from->table(module, &table, &size)) return 0;
    for (int i = 0; i < count; i++)
        if ((unsigned)which[i] < size && table[which[i]]) *(void **)table[which[i]] = what[i];
    return 1;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    static const int core[] = {START_EX, START_A, START_W, END, PUSH_EX, PUSH_A, PUSH_W, POP};
    static void *const of_core[] = {start_ex, start_a, start_w, end, push_ex, push_a, push_w, pop};
    static const int core2[] = {DOMAIN_START, DOMAIN_END, DOMAIN_PUSH, DOMAIN_POP, REGISTER_A, REGISTER_W, CREATE_A, CREATE_W};
    static void *const of_core2[] = {domain_start, domain_end, domain_push, domain_pop, register_a, register_w, create, create};
    const struct callbacks *from = export_table(CALLBACKS);
    const char *path = getenv("GPUBENCH_MARKS");
    if (!from || !path) return 0;
    if (file < 0) file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    int done = install(from, CORE, core, of_core, 8);
    install(from, CORE2, core2, of_core2, 8);
    return done;
}
