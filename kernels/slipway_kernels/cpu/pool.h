/* The library's own threads. The caller of run() is thread 0; the others sleep between runs. */
#ifndef SLIPWAY_POOL_H
#define SLIPWAY_POOL_H

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "affinity.h"
#include "system.h"
#if !SW_LINUX
#include <condition_variable>
#include <mutex>
#endif

class Pool {
 public:
  /* cpus: a processor for each thread, where the caller stays during run(); empty: the system moves them as it
   * likes. */
  explicit Pool(int threads, const std::vector<int>& cpus = {});
  ~Pool();
  Pool(const Pool&) = delete;

  int size() const { return size_; }

  /* body(argument, thread) on every thread; returns when all have returned. One caller at a time. */
  void run(void (*body)(void*, int), void* argument);

  /* Inside run(): returns when every thread has come here. */
  void barrier();

 private:
  /* A number that threads wait on: they spin for a while, then sleep, by futex where there is one. Who yields meanwhile
   * lets another process have the core, such as the one that sends the tokens of the step before. */
  struct alignas(64) Signal {
    std::atomic<uint32_t> value{0};
    std::atomic<int> sleepers{0};
    void wait(uint32_t old, std::chrono::microseconds spin, bool yield);
    void advance();

   private:
    void sleep(uint32_t old);
    void wake();
#if !SW_LINUX
    std::mutex lock;
    std::condition_variable changed;
#endif
  };

  void work(int thread, int cpu);

  int size_;
  int cpu_ = -1;       /* of the caller, in run() */
  Affinity own_, any_; /* the same, and otherwise */
  Signal start_, round_;
  alignas(64) std::atomic<int> arrived_{0};
  void (*body_)(void*, int) = nullptr; /* null tells the workers to end */
  void* argument_ = nullptr;
  std::vector<std::thread> workers_;
};

#endif
