/* A driver's library for tests: what nvidia-ml-py calls, answered from STUB_* variables.
 * STUB_GPUS: how many; STUB_NAME: their model; STUB_UUID: 8 digits that start their
 * UUIDs; STUB_LOST: number of one that fell off the bus; STUB_SLOW: of one that is
 * slowed down; STUB_BROKEN: nothing starts.
 * Compiled with -DOLD it is a driver that knows clock reasons by their older name only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int gpu, memory; } load;

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}
static const char *text(const char *name, const char *otherwise) {
  const char *found = getenv(name);
  return found && *found ? found : otherwise;
}
static int index_of(void *device) { return (int)(long)device - 1; }

int nvmlInitWithFlags(unsigned int flags) { return number("STUB_BROKEN", 0) ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "refused by the stub"; }
int nvmlSystemGetDriverVersion(char *out, unsigned int size) {
  snprintf(out, size, "580.159.04");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned int *count) {
  *count = number("STUB_GPUS", 2);
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int n, void **device) {
  if ((int)n == number("STUB_LOST", -1)) return 15; /* GPU_IS_LOST */
  *device = (void *)(long)(n + 1);
  return 0;
}
int nvmlDeviceGetUUID(void *device, char *out, unsigned int size) {
  snprintf(out, size, "GPU-%s-0000-4000-8000-%012d", text("STUB_UUID", "0a0b0c0d"),
           index_of(device));
  return 0;
}
int nvmlDeviceGetName(void *device, char *out, unsigned int size) {
  snprintf(out, size, "%s", text("STUB_NAME", "NVIDIA H200"));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *out) {
  out->total = 143771ULL << 20;
  out->used = 512ULL << 20;
  out->free = out->total - out->used;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned int *out) {
  *out = 1980;
  return 0;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned int *out) {
  *out = type == 1 ? 1410 : 3201; /* 1 is the SM clock, 2 that of the memory */
  return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *out) {
  *out = 41;
  return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) {
  if (index_of(device) == 1) return 3; /* NOT_SUPPORTED */
  *milliwatts = 75500;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, load *out) {
  out->gpu = 3;
  out->memory = 1;
  return 0;
}
#ifdef OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(
#else
int nvmlDeviceGetCurrentClocksEventReasons(
#endif
    void *device, unsigned long long *out) {
  *out = index_of(device) == number("STUB_SLOW", 1) ? 0x20 : 0x1;
  return 0;
}
