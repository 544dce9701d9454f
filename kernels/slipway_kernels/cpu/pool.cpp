#include "pool.h"

#include <sched.h>
#if SW_LINUX
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "relax.h"

namespace {

/* At a barrier. */
constexpr auto SPIN = std::chrono::microseconds(50);
/* Between two steps: waking a sleeper takes 0.1 to 0.4 ms on a virtual machine. */
constexpr auto LINGER = std::chrono::milliseconds(1);

#if SW_LINUX
void futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}
#endif

}  // namespace

#if SW_LINUX
void Pool::Signal::sleep(uint32_t old) {
  while (value.load() == old) futex(&value, FUTEX_WAIT_PRIVATE, old);
}

void Pool::Signal::wake() { futex(&value, FUTEX_WAKE_PRIVATE, INT32_MAX); }
#else
void Pool::Signal::sleep(uint32_t old) {
  std::unique_lock<std::mutex> held(lock);
  changed.wait(held, [&] { return value.load() != old; });
}

void Pool::Signal::wake() {
  /* Who has read the old value holds the lock until it waits: only then can it be notified. */
  std::lock_guard<std::mutex> held(lock);
  changed.notify_all();
}
#endif

void Pool::Signal::wait(uint32_t old, std::chrono::microseconds spin, bool yield) {
  auto deadline = std::chrono::steady_clock::now() + spin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
    if (yield) sched_yield();
  } while (std::chrono::steady_clock::now() < deadline);
  sleepers.fetch_add(1);
  sleep(old);
  sleepers.fetch_sub(1);
}

void Pool::Signal::advance() {
  /* Sequentially consistent with the sleeper's count: either it sees the new value or we see the sleeper. */
  value.fetch_add(1);
  if (sleepers.load() > 0) wake();
}

Pool::Pool(int threads, const std::vector<int>& cpus) : size_(threads) {
  if (threads > 1 && !cpus.empty()) cpu_ = cpus[0], own_ = Affinity({cpu_}), any_ = Affinity::now();
  for (int thread = 1; thread < threads; ++thread)
    workers_.emplace_back(&Pool::work, this, thread, cpus.empty() ? -1 : cpus[thread]);
}

Pool::~Pool() {
  body_ = nullptr;
  start_.advance();
  for (auto& worker : workers_) worker.join();
}

void Pool::run(void (*body)(void*, int), void* argument) {
  if (size_ == 1) return body(argument, 0);
  body_ = body;
  argument_ = argument;
  /* On a worker's core it would take the time of the worker, which may not leave. */
  bool moved = cpu_ >= 0 && Affinity::here() != cpu_ && own_.set();
  start_.advance();
  body(argument, 0);
  barrier();
  if (moved) any_.set();
}

void Pool::barrier() {
  if (size_ == 1) return;
  uint32_t round = round_.value.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1) + 1 == size_) {
    arrived_.store(0);
    round_.advance();
  } else {
    round_.wait(round, SPIN, false);
  }
}

void Pool::work(int thread, int cpu) {
  if (cpu >= 0) Affinity({cpu}).set();
  uint32_t seen = 0;
  for (;;) {
    start_.wait(seen, LINGER, true);
    ++seen;
    if (!body_) return;
    body_(argument_, thread);
    barrier();
  }
}
