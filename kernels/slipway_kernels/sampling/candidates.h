/* Which tokens are still in play: exact selection by radix, within the blocks that can matter. */
#ifndef SLIPWAY_SAMPLING_CANDIDATES_H
#define SLIPWAY_SAMPLING_CANDIDATES_H

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "lanes.h"

namespace {

/* The smallest prefix, in descending order of key and then by position, whose amounts reach a sum: all
 * above `key`, and of those equal to it the first until `left` is covered. */
struct Cut {
  uint32_t key;
  uint64_t left;
};

/* Radix selection from the highest bit in which the keys differ. Where all amounts together do not reach
 * `need`, everything is kept. */
template <class Key, class Amount>
Cut find_cut(int32_t count, uint64_t need, Key key, Amount amount) {
  uint32_t low = ~0u, high = 0;
  for (int32_t i = 0; i < count; ++i) {
    low = std::min(low, key(i));
    high = std::max(high, key(i));
  }
  int bits = low == high ? 0 : 32 - __builtin_clz(low ^ high);
  uint32_t mask = bits == 32 ? 0 : ~0u << bits;
  uint32_t prefix = high & mask;
  while (bits > 0) {
    const int width = std::min(bits, 8);
    bits -= width;
    uint64_t sums[256] = {};
    for (int32_t i = 0; i < count; ++i) {
      if ((key(i) & mask) == prefix) sums[(key(i) >> bits) & ((1u << width) - 1)] += amount(i);
    }
    uint32_t digit = (1u << width) - 1;
    for (; digit > 0 && sums[digit] < need; --digit) need -= sums[digit];
    prefix |= digit << bits;
    mask |= ((1u << width) - 1) << bits;
  }
  return {prefix, need};
}

INLINE uint32_t unsigned_key(int32_t key) { return static_cast<uint32_t>(key) ^ 0x80000000u; }

struct Scratch {
  float* row;         /* [vocab]  the edited logits */
  int32_t* block_max; /* [blocks] */
  uint32_t* counts;   /* [vocab]  of tokens in the output */
  int32_t* ids;       /* [vocab + kBlock]  candidates, ascending */
  float* x;           /* [vocab + kBlock]  their logits, later scaled */
  uint64_t* mass;     /* [vocab + kBlock] */
};

int32_t blocks_of(int32_t vocab) { return (vocab + kBlock - 1) / kBlock; }

/* Lays the arrays out from `base`; returns the bytes they take. */
size_t lay_out(int32_t vocab, char* base, Scratch* scratch) {
  const size_t padded = static_cast<size_t>(blocks_of(vocab) + 1) * kBlock;
  size_t offset = 0;
  const auto take = [&](auto** array) {
    *array = reinterpret_cast<std::decay_t<decltype(**array)>*>(base + offset);
    offset += padded * sizeof(**array);
  };
  take(&scratch->mass);
  take(&scratch->row);
  take(&scratch->block_max);
  take(&scratch->counts);
  take(&scratch->ids);
  take(&scratch->x);
  return offset;
}

/* A row of logits that has been scanned. */
struct Row {
  const float* logits;
  int32_t vocab;
  const int32_t* block_max;
  int32_t top_key;

  float top() const { return value_of(top_key); }

  int32_t argmax() const {
    const int32_t* block = std::find(block_max, block_max + blocks_of(vocab), top_key);
    int32_t token = static_cast<int32_t>(block - block_max) * kBlock;
    while (key_of(logits[token]) != top_key) ++token;
    return token;
  }

  /* A key that at least k tokens reach: the k-th largest block maximum. */
  int32_t floor_of_top(int32_t k, int32_t lowest) const {
    const int32_t blocks = blocks_of(vocab);
    if (k > blocks) return lowest;
    const Cut cut = find_cut(
        blocks, static_cast<uint64_t>(k), [&](int32_t i) { return unsigned_key(block_max[i]); },
        [](int32_t) { return uint64_t{1}; });
    return std::max(lowest, static_cast<int32_t>(cut.key ^ 0x80000000u));
  }

  /* Of exp((logit - top) · inverse). */
  uint64_t total_mass(float inverse) const {
    uint64_t sum = 0;
    for (int32_t start = 0, block = 0; start < vocab; start += kBlock, ++block) {
      if (scaled(value_of(block_max[block]), top(), inverse) < kNoMass) continue;
      sum += sum_mass(logits + start, std::min(kBlock, vocab - start), top(), inverse);
    }
    return sum;
  }
};

/* False where the row has a NaN or nothing above -inf: no token can be drawn from it. */
bool scan_row(const float* logits, int32_t vocab, int32_t* block_max, Row* row) {
  if (scan(logits, vocab, block_max)) return false;
  *row = {logits, vocab, block_max, *std::max_element(block_max, block_max + blocks_of(vocab))};
  return row->top_key >= kLowestFinite;
}

/* The tokens still in play: ids ascending, with their logits and later x = (logit - top) / temperature. */
struct Candidates {
  int32_t* ids;
  float* x;
  uint64_t* mass;
  int32_t count = 0;

  /* Those of the row whose key reaches `floor`. */
  Candidates(const Row& row, int32_t floor, const Scratch& scratch)
      : ids(scratch.ids), x(scratch.x), mass(scratch.mass) {
    for (int32_t start = 0, block = 0; start < row.vocab; start += kBlock, ++block) {
      if (row.block_max[block] < floor) continue;
      const int32_t end = std::min(start + kBlock, row.vocab);
      for (int32_t token = start; token < end; ++token) {
        ids[count] = token;
        x[count] = row.logits[token];
        count += key_of(row.logits[token]) >= floor;
      }
    }
  }

  template <class Test>
  void keep(Test test) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
      const bool stays = test(i);
      ids[kept] = ids[i];
      x[kept] = x[i];
      mass[kept] = mass[i];
      kept += stays;
    }
    count = kept;
  }

  template <class Key, class Amount>
  void keep_prefix(uint64_t need, Key key, Amount amount) {
    const Cut cut = find_cut(count, need, key, amount);
    uint64_t covered = 0;
    keep([&](int32_t i) {
      if (key(i) != cut.key) return key(i) > cut.key;
      const bool stays = covered < cut.left;
      covered += amount(i);
      return stays;
    });
  }

  auto descending() const {
    return [this](int32_t i) { return unsigned_key(key_of(x[i])); };
  }

  void keep_largest(int32_t k) {
    keep_prefix(static_cast<uint64_t>(k), descending(), [](int32_t) { return uint64_t{1}; });
  }

  /* The prefix that holds a share of `total`; at least one token is needed to reach it. */
  template <class Key>
  void keep_share(uint64_t total, float share, Key key) {
    const double need = std::ceil(static_cast<double>(share) * static_cast<double>(total));
    keep_prefix(std::min(total, static_cast<uint64_t>(std::max(need, 1.0))), key,
                [this](int32_t i) { return mass[i]; });
  }

  uint64_t total() const {
    uint64_t sum = 0;
    for (int32_t i = 0; i < count; ++i) sum += mass[i];
    return sum;
  }
};

}  // namespace

#endif
