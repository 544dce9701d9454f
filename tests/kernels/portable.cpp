/* Threads, ranks and memory as a system without Linux's calls has them. Exits with 0 where all is well. */
#include <stdio.h>
#include <string.h>

#include <chrono>
#include <thread>
#include <vector>

#include "../collective/ranks.h"
#include "memory.h"
#include "pool.h"

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  printf("%s\n", what);
  ++failures;
}

enum { THREADS = 4, RUNS = 400, BARRIERS = 5 };

/* Each thread's steps: no thread is a barrier ahead of another. */
struct Counts {
  Pool& pool;
  std::atomic<int> steps[THREADS];
  std::atomic<bool> apart{false};
};

void count(void* argument, int thread) {
  Counts& counts = *static_cast<Counts*>(argument);
  for (int i = 0; i < BARRIERS; ++i) {
    /* Longer than threads spin, so that the others sleep. */
    if (thread == i && counts.steps[thread] % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    int mine = ++counts.steps[thread];
    counts.pool.barrier();
    for (auto& step : counts.steps)
      if (step != mine) counts.apart = true;
    counts.pool.barrier();
  }
}

void pools() {
  Pool pool(THREADS, {0, 0, 0, 0});
  Counts counts{pool, {}, {}};
  for (int run = 0; run < RUNS; ++run) {
    if (run % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5)); /* between runs they sleep, too */
    pool.run(count, &counts);
  }
  expect(!counts.apart, "a barrier let a thread through before all had come");
  for (auto& step : counts.steps) expect(step == RUNS * BARRIERS, "a thread missed a run");
  Pool never_used(THREADS);
}

void ranks() {
  enum { SIZE = 3, MEETINGS = 200 };
  std::vector<char> space(4096 + 64);
  char* memory = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(space.data()) + 63) / 64 * 64);
  std::atomic<int> round{0};
  std::atomic<bool> late{false};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < SIZE; ++rank)
    threads.emplace_back([&, rank] {
      Ranks own(rank, SIZE, SIZE, memory, 4096, nullptr);
      for (int i = 0; i < MEETINGS; ++i) {
        if (rank == 0 && i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (rank == 0) round = i;
        own.meet();
        if (round != i) late = true;
        own.meet();
      }
      if (rank == 0) own.leave();
      own.meet(); /* returns though one has left */
    });
  for (auto& thread : threads) thread.join();
  expect(!late, "a rank left a meeting before all had come");
}

void memory() {
  size_t bytes = size_t(5) << 20;
  char* at = static_cast<char*>(sw_map(bytes));
  expect(at && reinterpret_cast<uintptr_t>(at) % 64 == 0, "memory is not mapped, or not aligned");
  memset(at, 1, bytes);
  sw_release(at, bytes);
  expect(at[0] == 0 && at[bytes - 1] == 0, "released memory is not zero");
  sw_unmap(at, bytes);
  char *first = static_cast<char*>(sw_take(100)), *second = static_cast<char*>(sw_take(100));
  second[0] = 1;
  sw_unmap(first, 100);
  expect(second[0] == 1, "freeing a piece freed its neighbour");
}

}  // namespace

int main() {
  pools();
  ranks();
  memory();
  return failures != 0;
}
