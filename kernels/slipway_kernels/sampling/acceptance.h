/* Whether a draft may stand for the drawn token: typical acceptance, as reference.py defines it. */
#ifndef SLIPWAY_SAMPLING_ACCEPTANCE_H
#define SLIPWAY_SAMPLING_ACCEPTANCE_H

#include <algorithm>
#include <cmath>

#include "../cpu/slipway.h"
#include "candidates.h"
#include "lanes.h"

namespace {

/* Of the tokens that a row is drawn from: their mass, and the sum of mass · x. */
struct Moments {
  uint64_t mass = 0;
  int64_t weighed = 0;

  void add(const float* x, const uint64_t* masses, int32_t count) {
    for (int32_t i = 0; i < count; ++i) mass += masses[i];
    weighed += sum_weighed(x, masses, count);
  }

  /* p > min(threshold, alpha · exp(-H)), times all mass: with log p = x - log(mass), exp(-H) is exp(mean of x) / mass. */
  bool accept(const sw_draft& draft, uint64_t its_mass) const {
    const double total = static_cast<double>(mass), mean = static_cast<double>(weighed) / total;
    const double likely = static_cast<double>(draft.alpha) * (std::exp(mean) * kMassUnit);
    return static_cast<double>(its_mass) > std::min(static_cast<double>(draft.threshold) * total, likely);
  }
};

/* Over the whole vocabulary. */
bool accepts(const sw_draft& draft, const Row& row, float inverse) {
  if (draft.token < 0 || draft.token >= row.vocab) return false;
  Moments moments;
  float x[kBlock];
  uint64_t mass[kBlock];
  for (int32_t start = 0, block = 0; start < row.vocab; start += kBlock, ++block) {
    if (scaled(value_of(row.block_max[block]), row.top(), inverse) < kNoMass) continue;
    const int32_t count = std::min(kBlock, row.vocab - start);
    std::copy_n(row.logits + start, count, x);
    scale(x, count, row.top(), inverse);
    weigh(x, count, mass);
    moments.add(x, mass, count);
  }
  return moments.accept(draft, mass_of(scaled(row.logits[draft.token], row.top(), inverse)));
}

bool accepts(const sw_draft& draft, const Candidates& candidates) {
  const int32_t* end = candidates.ids + candidates.count;
  const int32_t* found = std::lower_bound(static_cast<const int32_t*>(candidates.ids), end, draft.token);
  if (found == end || *found != draft.token) return false;
  Moments moments;
  moments.add(candidates.x, candidates.mass, candidates.count);
  return moments.accept(draft, candidates.mass[found - candidates.ids]);
}

}  // namespace

#endif
