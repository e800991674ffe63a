/* An NVML library without a driver: what it answers stands in the file that FAKE_NVML_CONFIG
 * names. The file is read at every call, so a test can change the answers of a running process.
 * One "key value..." per line; "gpu" begins a GPU, "slice" a MIG slice of the last GPU:
 *
 *   init 0                    code that nvmlInit returns
 *   cuda 12040                newest CUDA that the driver runs; 0: it does not say
 *   gpu
 *   name Tesla T4
 *   uuid GPU-aaaa
 *   capability 7 5
 *   bus 256                   bits of the memory's bus
 *   memory_clock 5001         MHz
 *   total 16106127360         bytes; "used" and "reserved" too
 *   utilisation 40            percent
 *   temperature 45            degrees Celsius
 *   power 30000               milliwatts; "power_limit" too
 *   process 4711 1048576      a process id and the bytes that it uses
 *   error memory 3            code for one function; "error handle 15" for all of the device
 *   delay memory 5000         milliseconds that one function takes; "delay init 5000" that the
 *                             start takes, where it stands before the first GPU
 *
 * Built with -DWITHOUT_MEMORY_V2 it lacks nvmlDeviceGetMemoryInfo_v2, as older drivers do.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, UNKNOWN = 999 };
enum { INSUFFICIENT_SIZE = 7 };
enum { MAX_DEVICES = 64, MAX_ERRORS = 8, MAX_SLICES = 7, MAX_PROCESSES = 16 };

typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

typedef struct {
    int parent; /* place of the GPU that it is a slice of; -1: it is a GPU */
    char name[96], uuid[96];
    int major, minor;
    unsigned bus, memory_clock;
    unsigned long long total, used, reserved;
    unsigned utilisation, temperature, power, power_limit;
    struct { char function[32]; int code; } errors[MAX_ERRORS];
    int error_count;
    struct { char function[32]; unsigned milliseconds; } delays[MAX_ERRORS];
    int delay_count;
    Process processes[MAX_PROCESSES];
    unsigned process_count;
} Device;

typedef struct {
    int init_error, cuda, count;
    unsigned init_delay;
    Device devices[MAX_DEVICES];
} Machine;

typedef const char *Handle; /* points into `places`: handle of device i is places + i + 1 */
static const char places[MAX_DEVICES + 1];

static void apply(Machine *machine, Device *device, const char *key, const char *rest) {
    if (!strcmp(key, "init")) { machine->init_error = atoi(rest); return; }
    if (!device && !strcmp(key, "delay")) sscanf(rest, "init %u", &machine->init_delay);
    if (!strcmp(key, "cuda")) { machine->cuda = atoi(rest); return; }
    if (!device) return;
    if (!strcmp(key, "name")) snprintf(device->name, sizeof device->name, "%s", rest);
    if (!strcmp(key, "uuid")) snprintf(device->uuid, sizeof device->uuid, "%s", rest);
    if (!strcmp(key, "capability")) sscanf(rest, "%d %d", &device->major, &device->minor);
    if (!strcmp(key, "bus")) device->bus = (unsigned)atoi(rest);
    if (!strcmp(key, "memory_clock")) device->memory_clock = (unsigned)atoi(rest);
    if (!strcmp(key, "total")) device->total = strtoull(rest, NULL, 10);
    if (!strcmp(key, "used")) device->used = strtoull(rest, NULL, 10);
    if (!strcmp(key, "reserved")) device->reserved = strtoull(rest, NULL, 10);
    if (!strcmp(key, "utilisation")) device->utilisation = (unsigned)atoi(rest);
    if (!strcmp(key, "temperature")) device->temperature = (unsigned)atoi(rest);
    if (!strcmp(key, "power")) device->power = (unsigned)atoi(rest);
    if (!strcmp(key, "power_limit")) device->power_limit = (unsigned)atoi(rest);
    if (!strcmp(key, "process") && device->process_count < MAX_PROCESSES) {
        Process *process = &device->processes[device->process_count++];
        sscanf(rest, "%u %llu", &process->pid, &process->used);
    }
    if (!strcmp(key, "error") && device->error_count < MAX_ERRORS &&
        sscanf(rest, "%31s %d", device->errors[device->error_count].function,
               &device->errors[device->error_count].code) == 2)
        device->error_count++;
    if (!strcmp(key, "delay") && device->delay_count < MAX_ERRORS &&
        sscanf(rest, "%31s %u", device->delays[device->delay_count].function,
               &device->delays[device->delay_count].milliseconds) == 2)
        device->delay_count++;
}

static int read_machine(Machine *machine) {
    const char *path = getenv("FAKE_NVML_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], key[32];
    int gpu = -1, length;
    memset(machine, 0, sizeof *machine);
    if (!file) return UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%31s %n", key, &length) < 1) continue;
        if (!strcmp(key, "gpu") || !strcmp(key, "slice")) {
            if (machine->count == MAX_DEVICES) break;
            machine->devices[machine->count].parent = *key == 's' ? gpu : -1;
            if (*key == 'g') gpu = machine->count;
            machine->count++;
        } else {
            apply(machine, machine->count ? &machine->devices[machine->count - 1] : NULL, key,
                  line + length);
        }
    }
    fclose(file);
    return SUCCESS;
}

static int error_of(const Device *device, const char *function) {
    for (int i = 0; i < device->delay_count; i++)
        if (!strcmp(device->delays[i].function, function))
            usleep(device->delays[i].milliseconds * 1000);
    for (int i = 0; i < device->error_count; i++)
        if (!strcmp(device->errors[i].function, function) ||
            !strcmp(device->errors[i].function, "handle"))
            return device->errors[i].code;
    return SUCCESS;
}

/* Reads the machine, and finds in it the device that `handle` stands for. */
static int open_device(Handle handle, const char *function, Machine *machine, Device **device) {
    long place = handle - places - 1;
    int code = read_machine(machine);
    if (code) return code;
    if (place < 0 || place >= machine->count) return INVALID_ARGUMENT;
    *device = &machine->devices[place];
    return error_of(*device, function);
}

/* The handle of the `index`-th GPU (parent -1), or slice of a GPU. */
static int handle_at(const Machine *machine, int parent, unsigned index, int code, Handle *out) {
    for (int place = 0; place < machine->count; place++)
        if (machine->devices[place].parent == parent && index-- == 0) {
            *out = places + place + 1;
            return error_of(&machine->devices[place], "handle");
        }
    return code;
}

#define OPEN(function)                                         \
    Machine machine;                                           \
    Device *device;                                            \
    int code = open_device(handle, function, &machine, &device); \
    if (code) return code

int nvmlInitWithFlags(unsigned flags) {
    Machine machine;
    int code = read_machine(&machine);
    (void)flags;
    usleep(machine.init_delay * 1000);
    return code ? code : machine.init_error;
}

int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    Machine machine;
    int code = read_machine(&machine);
    *version = machine.cuda;
    return code || machine.cuda ? code : NOT_SUPPORTED;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    Machine machine;
    int code = read_machine(&machine);
    *count = 0;
    for (int place = 0; place < machine.count; place++)
        *count += machine.devices[place].parent < 0;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *out) {
    Machine machine;
    int code = read_machine(&machine);
    return code ? code : handle_at(&machine, -1, index, INVALID_ARGUMENT, out);
}

int nvmlDeviceGetName(Handle handle, char *name, unsigned length) {
    OPEN("name");
    snprintf(name, length, "%s", device->name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(Handle handle, char *uuid, unsigned length) {
    OPEN("uuid");
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Handle handle, int *major, int *minor) {
    OPEN("capability");
    *major = device->major;
    *minor = device->minor;
    return SUCCESS;
}

int nvmlDeviceGetMemoryBusWidth(Handle handle, unsigned *bits) {
    OPEN("bus");
    *bits = device->bus;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Handle handle, int clock, unsigned *megahertz) {
    OPEN("memory_clock");
    if (clock != 2) return INVALID_ARGUMENT;
    *megahertz = device->memory_clock;
    return SUCCESS;
}

typedef struct { unsigned long long total, free, used; } Memory;

int nvmlDeviceGetMemoryInfo(Handle handle, Memory *memory) {
    OPEN("memory");
    memory->total = device->total;
    memory->used = device->used + device->reserved;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

#ifndef WITHOUT_MEMORY_V2
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;

int nvmlDeviceGetMemoryInfo_v2(Handle handle, MemoryV2 *memory) {
    OPEN("memory");
    if (memory->version != (sizeof *memory | 2u << 24)) return INVALID_ARGUMENT;
    memory->total = device->total;
    memory->reserved = device->reserved;
    memory->used = device->used;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
#endif

typedef struct { unsigned gpu, memory; } Utilisation;

int nvmlDeviceGetUtilizationRates(Handle handle, Utilisation *rates) {
    OPEN("utilisation");
    rates->gpu = device->utilisation;
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Handle handle, int sensor, unsigned *temperature) {
    OPEN("temperature");
    if (sensor != 0) return INVALID_ARGUMENT;
    *temperature = device->temperature;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Handle handle, unsigned *milliwatts) {
    OPEN("power");
    *milliwatts = device->power;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Handle handle, unsigned *milliwatts) {
    OPEN("power_limit");
    *milliwatts = device->power_limit;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    Handle slice;
    OPEN("mig");
    if (handle_at(&machine, (int)(device - machine.devices), 0, NOT_FOUND, &slice) == NOT_FOUND)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned *count) {
    OPEN("mig");
    *count = MAX_SLICES;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle *slice) {
    OPEN("mig");
    return handle_at(&machine, (int)(device - machine.devices), index, NOT_FOUND, slice);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *count, Process *out) {
    OPEN("processes");
    unsigned room = *count;
    *count = device->process_count;
    if (*count > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) out[i] = device->processes[i];
    return SUCCESS;
}
