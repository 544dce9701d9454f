/* Whether Linux's own calls are compiled, or only those of POSIX and C++, as for macOS. SLIPWAY_PORTABLE chooses the
 * second on Linux as well, so that tests run it. */
#ifndef SLIPWAY_SYSTEM_H
#define SLIPWAY_SYSTEM_H

#if defined(__linux__) && !defined(SLIPWAY_PORTABLE)
#define SW_LINUX 1
#else
#define SW_LINUX 0
#endif

#endif
