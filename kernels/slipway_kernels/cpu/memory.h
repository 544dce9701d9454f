/* Memory for numbers: 64-byte aligned, in huge pages where the kernel gives them, zero and untouched at first. */
#ifndef SLIPWAY_MEMORY_H
#define SLIPWAY_MEMORY_H

#include <stddef.h>

#include <memory>
#include <vector>

/* Null where the system refuses. */
void* sw_map(size_t bytes);
void sw_unmap(void* memory, size_t bytes);

/* Gives back what was touched of a mapping, which stays where it is and is zero again. */
void sw_release(void* memory, size_t bytes);

/* Gives back what the C library keeps of memory that was freed: arrays of many MB where it has seen larger ones. */
void sw_trim();

/* As sw_map, cut one after another from large mappings, so that small matrices share huge pages. For weights:
 * what is freed goes back to the system and not to the mapping. */
void* sw_take(size_t bytes);

/* The first touch of a page is slow (0.5 GB/s on a virtual machine whose host has to find the page first), so a
 * thread of its own makes it while the model's files are opened. sw_take takes from here until sw_settle, which
 * gives back what is left, and what was freed meanwhile. */
void sw_reserve(size_t bytes);
void sw_settle();

/* Touch memory that anyone may be writing to. */
void sw_touch(void* memory, size_t bytes);

/* The processors beside each node of memory. What is touched ahead is from now on touched by them in turns, a huge page
 * each: it lies where the thread ran that touched it first. A policy of the system's would do the same, but containers
 * may not set one. */
void sw_spread(const std::vector<std::vector<int>>& cpus);

struct Memory {
  explicit Memory(size_t bytes) : bytes(bytes), at(sw_map(bytes)) {}
  /* A view of somebody else's. */
  Memory(void* at, size_t bytes) : bytes(bytes), at(at), is_view(true) {}
  ~Memory() {
    if (!is_view) sw_unmap(at, bytes);
  }
  Memory(const Memory&) = delete;
  size_t bytes;
  void* at;
  bool is_view = false;
};

inline size_t bytes_of(const std::unique_ptr<Memory>& memory) { return memory ? memory->bytes : 0; }

#endif
