#include "affinity.h"

#include <stddef.h>

#include "system.h"

#if SW_LINUX
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int BITS = sizeof(unsigned long) * 8;

}  // namespace

Affinity::Affinity(const std::vector<int>& cpus) {
  for (int cpu : cpus) {
    if (size_t(cpu / BITS) >= mask_.size()) mask_.resize(cpu / BITS + 1);
    mask_[cpu / BITS] |= 1ul << cpu % BITS;
  }
}

Affinity Affinity::now() {
  Affinity found;
#if SW_LINUX
  found.mask_.resize(8192 / BITS); /* as many processors as any kernel is built for */
  long bytes = syscall(SYS_sched_getaffinity, 0, found.mask_.size() * sizeof(unsigned long), found.mask_.data());
  found.mask_.resize(bytes < 0 ? 0 : size_t(bytes) / sizeof(unsigned long));
#endif
  return found;
}

int Affinity::here() {
#if SW_LINUX
  return sched_getcpu();
#else
  return -1;
#endif
}

bool Affinity::set() const {
#if SW_LINUX
  return !mask_.empty() && syscall(SYS_sched_setaffinity, 0, mask_.size() * sizeof(unsigned long), mask_.data()) == 0;
#else
  return false;
#endif
}
