#include "ranks.h"

#include "system.h"
#if SW_LINUX
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include <chrono>
#include <thread>

#include "relax.h"

namespace {

/* As long as a product may differ between ranks; beyond it a core may have something else to do. */
constexpr auto SPIN = std::chrono::microseconds(200);

#if SW_LINUX
/* A rank that is gone wakes nobody: how often a sleeper looks whether one has left. */
constexpr timespec LOOK{0, 50'000'000};

/* Between processes: not the private form. */
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* most) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, most, nullptr, 0);
}

void sleep_on(std::atomic<uint32_t>* word, uint32_t value) { futex(word, FUTEX_WAIT, value, &LOOK); }
void wake_all(std::atomic<uint32_t>* word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }
#else
/* Nothing portable wakes the threads of another process: they look again, about as late as a wake would come. */
void sleep_on(std::atomic<uint32_t>*, uint32_t) { std::this_thread::sleep_for(std::chrono::microseconds(100)); }
void wake_all(std::atomic<uint32_t>*) {}
#endif

}  // namespace

Ranks::Ranks(int rank, int size, int threads, void* memory, size_t bytes, sw_exchange exchange)
    : rank(rank),
      size(size),
      threads(threads),
      memory_(static_cast<char*>(memory)),
      bytes_(bytes),
      taken_(first()),
      exchange_(exchange) {}

void* Ranks::take(size_t bytes) {
  if (bytes_ - taken_ < whole_lines(bytes)) return nullptr;
  void* found = memory_ + taken_;
  taken_ += whole_lines(bytes);
  return found;
}

void Ranks::wake() const { wake_all(&head().round); }

void Ranks::meet() {
  Head& at = head();
  if (left()) return;
  uint32_t round = at.round.load(std::memory_order_acquire);
  if (at.arrived.fetch_add(1) + 1 == threads) {
    at.arrived.store(0);
    at.round.fetch_add(1);
    if (at.sleepers.load() > 0) wake();
    return;
  }
  auto deadline = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 64; ++i) {
      if (at.round.load(std::memory_order_acquire) != round) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  at.sleepers.fetch_add(1);
  while (at.round.load() == round && !left()) sleep_on(&at.round, round);
  at.sleepers.fetch_sub(1);
}
