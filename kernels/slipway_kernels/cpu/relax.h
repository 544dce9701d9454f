/* What a thread does that spins. */
#ifndef SLIPWAY_RELAX_H
#define SLIPWAY_RELAX_H

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#endif
