// NVIDIA's driver without a GPU: it takes kernels and starts, and hands each start to a listener.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void (*Listener)(const void *config, const char *name, void **parameters);

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200 };

static int context;
static Listener listener;

void stub_listen(Listener one) { listener = one; }

Result cuCtxGetCurrent(void **found) { *found = &context; return SUCCESS; }
Result cuCtxSetCurrent(void *one) { return one == &context ? SUCCESS : INVALID_VALUE; }
Result cuDevicePrimaryCtxRetain(void **found, int device) { *found = &context; return SUCCESS; }

Result cuModuleLoadData(void **module, const void *image) {
  *module = (void *)&context;
  return memcmp(image, "\177ELF", 4) ? INVALID_IMAGE : SUCCESS;
}

Result cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = strdup(name);
  return SUCCESS;
}

Result cuFuncSetAttribute(void *function, int attribute, int value) { return value > 232448 ? INVALID_VALUE : SUCCESS; }
Result cuFuncSetCacheConfig(void *function, int config) { return SUCCESS; }

Result cuPointerGetAttribute(uint64_t *found, int attribute, uint64_t address) {
  *found = address;
  return SUCCESS;
}

// Leaves its arguments in the map, one 64-bit word each.
Result cuTensorMapEncodeTiled(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                              const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                              int swizzle, int promotion, int fill) {
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16 || rank != 2 || strides[0] % 16) return INVALID_VALUE;
  const uint64_t told[] = {(uintptr_t)address, (uint64_t)type,    sizes[0],          sizes[1],
                           strides[0],         box[0],            box[1],            (uint64_t)swizzle};
  memcpy(map, told, sizeof told);
  return SUCCESS;
}

Result cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
  if (listener) listener(config, function, parameters);
  return SUCCESS;
}

Result cuGetErrorString(int status, const char **words) {
  *words = status == INVALID_VALUE ? "invalid argument" : "device kernel image is invalid";
  return SUCCESS;
}
