/* Ranks that compute a step together: processes over one piece of shared memory, or on several hosts.
 *
 * Each runs the same list of operations over its shard. They meet, behind which each reads what the others have
 * written, and adds it up in the order of ranks: company changes no bit of it. */
#ifndef SLIPWAY_RANKS_H
#define SLIPWAY_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include <atomic>

/* What ranks have for each other: of each rank some bytes, `step` from one to the next. */
struct Parts {
  char* at;
  size_t used, step;
};

/* Fills the parts of the other ranks; 0 where that failed. */
using sw_exchange = int (*)(char* at, size_t used, size_t step);

struct Ranks {
  /* rank      below size
   * threads   of all ranks together, which meet
   * memory    of all, zeros at first; this rank's alone where there is an exchange
   * exchange  between hosts; null: memory is shared */
  Ranks(int rank, int size, int threads, void* memory, size_t bytes, sw_exchange exchange);

  /* Memory of all ranks, the same in each that asks for the same sizes in the same order. Null where it is used up. */
  void* take(size_t bytes);
  /* Nobody uses what was taken any more. */
  void give_back() { taken_ = first(); }
  /* Where memory is shared: returns when every thread of every rank has come here, or one has left. */
  void meet();
  /* Where it is not: on one thread of each rank. */
  void exchange(const Parts& parts) {
    if (!left() && !exchange_(parts.at, parts.used, parts.step)) leave();
  }
  bool shares_memory() const { return !exchange_; }
  /* No rank waits for another from now on. */
  void leave() { head().left.store(1); wake(); }
  bool left() const { return head().left.load(std::memory_order_relaxed) != 0; }

  const int rank, size, threads;

 private:
  struct Head {
    alignas(64) std::atomic<uint32_t> round;
    std::atomic<int32_t> sleepers;
    alignas(64) std::atomic<int32_t> arrived;
    alignas(64) std::atomic<uint32_t> left;
  };
  static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
  static size_t first() { return whole_lines(sizeof(Head)); }
  Head& head() const { return *reinterpret_cast<Head*>(memory_); }
  void wake() const;
  char* memory_;
  size_t bytes_, taken_;
  sw_exchange exchange_;
};

#endif
