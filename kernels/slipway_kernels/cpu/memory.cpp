#include "memory.h"

#include "affinity.h"
#include "system.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr size_t HUGE_PAGE = size_t(2) << 20, ARENA = size_t(64) << 20;
/* More is no size: a negative number, which rounding would turn into a small one. */
constexpr size_t MOST = SIZE_MAX / 2;

/* ARM has pages of 4, 16 and 64 KiB. */
size_t page() {
  static const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t rounded(size_t bytes) { return bytes == 0 ? page() : (bytes + page() - 1) / page() * page(); }

std::vector<Affinity> nodes;

void touch(char* memory, size_t bytes) {
  for (size_t i = 0, step = page(); i < bytes; i += step) __atomic_fetch_or(memory + i, 0, __ATOMIC_RELAXED);
}

/* The huge page behind this one, and the node on which this one should lie. */
char* next_page(char* at) {
  return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at) / HUGE_PAGE + 1) * HUGE_PAGE);
}
size_t node_of(const char* at) { return reinterpret_cast<uintptr_t>(at) / HUGE_PAGE % nodes.size(); }

/* What sw_take cuts from, and the threads that touch it ahead: one, or one for each node. */
struct Arena {
  std::mutex lock;
  char *first = nullptr, *next = nullptr, *end = nullptr;
  std::vector<std::thread> touchers;
  std::atomic<bool> enough{false};
  /* Memory that was freed while they may touch it. */
  std::vector<std::pair<void*, size_t>> freed;

  ~Arena() { stop(); }

  void stop() {
    enough = true;
    for (std::thread& toucher : touchers) toucher.join();
    touchers.clear();
    enough = false;
    for (auto [memory, size] : freed) munmap(memory, size);
    freed.clear();
  }

  bool is_touching(void* memory) const { return !touchers.empty() && first <= memory && memory < end; }

  /* Gives back what is left and cuts from a new mapping. */
  bool begin(size_t bytes) {
    if (next < end) munmap(next, end - next);
    first = next = static_cast<char*>(sw_map(bytes));
    end = next ? next + rounded(bytes) : nullptr;
    return next;
  }
};

Arena arena;

}  // namespace

void* sw_map(size_t bytes) {
  if (bytes > MOST) return nullptr;
  size_t size = rounded(bytes);
  bool huge = size >= HUGE_PAGE;
  /* Mapped with room to align on a huge page; what sticks out is given back. */
  size_t room = huge ? size + HUGE_PAGE : size;
  char* at = static_cast<char*>(
      mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (at == MAP_FAILED) return nullptr;
  if (!huge) return at;
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at) + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
  if (aligned > at) munmap(at, aligned - at);
  if (at + room > aligned + size) munmap(aligned + size, at + room - (aligned + size));
#if SW_LINUX
  madvise(aligned, size, MADV_HUGEPAGE);
#endif
  return aligned;
}

void sw_unmap(void* memory, size_t bytes) {
  if (!memory) return;
  std::lock_guard<std::mutex> held(arena.lock);
  if (arena.is_touching(memory))
    arena.freed.emplace_back(memory, rounded(bytes));
  else
    munmap(memory, rounded(bytes));
}

void sw_release(void* memory, size_t bytes) {
#if SW_LINUX
  madvise(memory, rounded(bytes), MADV_DONTNEED);
#else
  /* Only Linux promises zeros after MADV_DONTNEED. */
  mmap(memory, rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
#endif
}

void sw_trim() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void* sw_take(size_t bytes) {
  if (bytes > MOST) return nullptr;
  size_t size = rounded(bytes);
  std::lock_guard<std::mutex> held(arena.lock);
  if (size > size_t(arena.end - arena.next)) {
    if (size >= ARENA) return sw_map(bytes);
    arena.stop();
    if (!arena.begin(ARENA)) return nullptr;
  }
  void* at = arena.next;
  arena.next += size;
  return at;
}

void sw_reserve(size_t bytes) {
  std::lock_guard<std::mutex> held(arena.lock);
  arena.stop();
  if (!arena.begin(bytes)) return;
  for (size_t node = 0; node < std::max<size_t>(1, nodes.size()); ++node)
    arena.touchers.emplace_back([node, first = arena.first, last = arena.end] {
      if (!nodes.empty()) nodes[node].set();
      for (char *at = first, *end; at < last && !arena.enough; at = end) {
        end = std::min(next_page(at), last);
        if (nodes.empty() || node_of(at) == node) touch(at, end - at);
      }
    });
}

void sw_settle() {
  std::lock_guard<std::mutex> held(arena.lock);
  arena.stop();
  if (arena.next < arena.end) munmap(arena.next, arena.end - arena.next);
  arena.next = arena.end = nullptr;
}

void sw_touch(void* memory, size_t bytes) {
  char* first = static_cast<char*>(memory);
  if (nodes.empty()) return touch(first, bytes);
  Affinity before = Affinity::now();
  for (char *at = first, *end; at < first + bytes; at = end) {
    end = std::min(next_page(at), first + bytes);
    nodes[node_of(at)].set();
    touch(at, end - at);
  }
  before.set();
}

void sw_spread(const std::vector<std::vector<int>>& cpus) {
  std::lock_guard<std::mutex> held(arena.lock);
  arena.stop();
  nodes.clear();
  for (const auto& near : cpus) nodes.emplace_back(near);
}
