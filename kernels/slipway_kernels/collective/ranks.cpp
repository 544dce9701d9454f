#include "ranks.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>

#include "relax.h"

namespace {

/* As long as a product may differ between ranks; beyond it a core may have something else to do. */
constexpr auto SPIN = std::chrono::microseconds(200);
/* A rank that is gone wakes nobody: how often a sleeper looks whether one has left. */
constexpr timespec LOOK{0, 50'000'000};

/* Between processes: not the private form. */
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* most) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, most, nullptr, 0);
}

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

void Ranks::wake() const { futex(&head().round, FUTEX_WAKE, INT_MAX, nullptr); }

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
  while (at.round.load() == round && !left()) futex(&at.round, FUTEX_WAIT, round, &LOOK);
  at.sleepers.fetch_sub(1);
}
