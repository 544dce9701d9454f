/* Where threads run. */
#ifndef SLIPWAY_AFFINITY_H
#define SLIPWAY_AFFINITY_H

#include <vector>

/* Processors that a thread may use. Where the system does not let us choose, nothing changes and `set` is false. */
class Affinity {
 public:
  Affinity() = default;
  explicit Affinity(const std::vector<int>& cpus);
  /* Of the calling thread. */
  static Affinity now();
  /* The processor that runs the calling thread, or -1. */
  static int here();
  bool set() const;

 private:
  std::vector<unsigned long> mask_;
};

#endif
