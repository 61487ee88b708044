/* A libnvidia-ml.so.1 without a driver: it answers what the file named by FAKE_NVML says, read again at each call.
 *
 * A line is a name and a number, the answer; or a name and an error such as `!3` (nvml.h, nvmlReturn_t), which the call
 * returns; `hang` and `crash` are what they say. What the file does not name, a healthy H200 answers. Each line
 * `event 79` is an Xid; a set of events tells those lines that were added after it was made.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { unsigned field, scope; long long at, latency; unsigned type; int status; u64 value; } FieldValue;
typedef struct { unsigned pid; u64 used; unsigned gpu, compute; } Process;
typedef struct { void *device; u64 type, data; unsigned gpu, compute; } Event;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMED_OUT = 10 };

static int look_up(const char *name, u64 *answer) {
    char line[256], key[128], word[128];
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    int status = SUCCESS;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%127s %127s", key, word) != 2 || strcmp(key, name)) continue;
        if (!strcmp(word, "hang")) for (;;) sleep(60);
        if (!strcmp(word, "crash")) abort();
        if (word[0] == '!') status = atoi(word + 1);
        else *answer = strtoull(word, NULL, 10);
    }
    if (file) fclose(file);
    return status;
}

static int number(const char *name, u64 healthy, unsigned *answer) {
    u64 found = healthy;
    int status = look_up(name, &found);
    if (!status) *answer = (unsigned)found;
    return status;
}

static int event(int place, u64 *answer) {
    char line[256], word[128];
    int count = 0, found = 0;
    FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "event %127s", word) == 1 && count++ == place) found = 1, *answer = strtoull(word, NULL, 10);
    if (file) fclose(file);
    return place < 0 ? count : found;
}

static int seen;

int nvmlInitWithFlags(unsigned flags) { u64 unused; (void)flags; return look_up("init", &unused); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "999.99"); return SUCCESS; }

const char *nvmlErrorString(int status) {
    static char text[32];
    switch (status) {
        case 3: return "Not Supported";
        case 4: return "Insufficient Permissions";
        case 15: return "GPU is lost";
        case 999: return "Unknown Error";
    }
    snprintf(text, sizeof text, "error %d", status);
    return text;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
    u64 unused;
    (void)uuid;
    *gpu = (void *)1;
    return look_up("handle", &unused);
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, u64 *count) {
    (void)gpu;
    *count = 0;
    return look_up(kind == 0 ? "ecc.corrected" : counter == 0 ? "ecc.volatile" : "ecc.aggregate", count);
}

int nvmlDeviceGetRemappedRows(void *gpu, unsigned *correctable, unsigned *rows, unsigned *pending, unsigned *failure) {
    (void)gpu;
    *correctable = 0;
    int status = number("rows", 0, rows);
    if (!status) status = number("pending", 0, pending);
    return status ? status : number("failure", 0, failure);
}

int nvmlDeviceValidateInforom(void *gpu) {
    u64 unused;
    (void)gpu;
    return look_up("inforom", &unused);
}

int nvmlDeviceGetRetiredPages(void *gpu, int cause, unsigned *count, u64 *pages) {
    unsigned pages_retired;
    int status = number("pages", 0, &pages_retired);
    (void)gpu, (void)cause;
    if (status) return status;
    if (!pages && pages_retired) { *count = pages_retired; return INSUFFICIENT_SIZE; }
    if (pages) memset(pages, 0, pages_retired * sizeof *pages);
    *count = pages_retired;
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *gpu, int *pending) {
    (void)gpu;
    return number("pages.pending", 0, (unsigned *)pending);
}

int nvmlDeviceGetUtilizationRates(void *gpu, unsigned rates[2]) {
    (void)gpu;
    rates[1] = 0;
    return number("busy", 0, &rates[0]);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *gpu, u64 *reasons) {
    (void)gpu;
    *reasons = 1;
    return look_up("reasons", reasons);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *processes) {
    unsigned running;
    int status = number("processes", 0, &running);
    (void)gpu;
    if (status) return status;
    if (!processes && running) { *count = running; return INSUFFICIENT_SIZE; }
    *count = running;
    u64 first = 1000, used = 0;
    look_up("process.first", &first);
    look_up("process.memory", &used);
    for (unsigned i = 0; processes && i < running; i++) processes[i] = (Process){(unsigned)first + i, used, 0, 0};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *gpu, u64 sizes[3]) {
    (void)gpu;
    sizes[0] = 1 << 30, sizes[2] = 1 << 20;
    int status = look_up("memory", &sizes[2]);
    sizes[1] = sizes[0] - sizes[2];
    return status;
}

int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz) { (void)gpu, (void)kind; return number("clock", 1980, mhz); }
int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned *mhz) { (void)gpu, (void)kind; return number("clock.most", 1980, mhz); }
int nvmlDeviceGetTemperature(void *gpu, int kind, unsigned *celsius) { (void)gpu, (void)kind; return number("temperature", 40, celsius); }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *milliwatts) { (void)gpu; return number("power.limit", 700000, milliwatts); }

int nvmlDeviceGetCurrPcieLinkWidth(void *gpu, unsigned *lanes) { (void)gpu; return number("width", 16, lanes); }
int nvmlDeviceGetMaxPcieLinkWidth(void *gpu, unsigned *lanes) { (void)gpu; return number("width.most", 16, lanes); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *gpu, unsigned *step) { (void)gpu; return number("generation", 1, step); }
int nvmlDeviceGetMaxPcieLinkGeneration(void *gpu, unsigned *step) { (void)gpu; return number("generation.most", 5, step); }
int nvmlDeviceGetPcieReplayCounter(void *gpu, unsigned *count) { (void)gpu; return number("replays", 0, count); }

int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *state) {
    char name[32];
    (void)gpu;
    if (link >= 18) return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "link.%u", link);
    int status = number("links", 1, (unsigned *)state);
    return status ? status : number(name, *state, (unsigned *)state);
}

int nvmlDeviceGetFieldValues(void *gpu, int count, FieldValue *values) {
    (void)gpu;
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field.%u", values[i].field);
        values[i].type = values[i].field == 230 ? 1 : 3;
        values[i].value = 0;
        values[i].status = look_up(name, &values[i].value);
    }
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) { *set = (void *)1; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }

int nvmlDeviceRegisterEvents(void *gpu, u64 kinds, void *set) {
    u64 unused = 0;
    (void)gpu, (void)kinds, (void)set;
    seen = event(-1, &unused);
    return look_up("events", &unused);
}

int nvmlEventSetWait_v2(void *set, Event *found, unsigned milliseconds) {
    (void)set, (void)milliseconds;
    if (!event(seen, &found->data)) return TIMED_OUT;
    seen++;
    return SUCCESS;
}
