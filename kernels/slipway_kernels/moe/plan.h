/* How the products of a step's rows with their experts are dealt to threads. */
#ifndef SLIPWAY_MOE_PLAN_H
#define SLIPWAY_MOE_PLAN_H

#include <stdint.h>

#include <algorithm>
#include <vector>

/* The experts that some row has chosen, in order. The others are no work: of 128 experts a row chooses 8. */
struct ExpertPlan {
  enum { UNITS_OF_A_THREAD = 8, MOST_BLOCKS = 4, LEAST_ROWS = 48 };

  struct Share {
    int expert, first, rows; /* of the pairs that are sorted by expert */
  };
  std::vector<Share> shares;
  int num_pairs = 0;

  void make(const int32_t* offsets, int experts) {
    shares.clear();
    num_pairs = offsets[experts];
    for (int e = 0; e < experts; ++e)
      if (offsets[e + 1] > offsets[e]) shares.push_back({e, offsets[e], offsets[e + 1] - offsets[e]});
  }

  /* How a product is cut: each unit has some blocks of the weights and some rows, so few that all threads finish at
   * about the same time. The few rows of a decoding step are never cut. */
  struct Cut {
    int columns, blocks, rows; /* blocks and rows of a unit at most */
    int parts(const Share& share) const { return (share.rows + rows - 1) / rows; }
    int units(const Share& share) const { return columns * parts(share); }
  };
  Cut cut(int blocks, int threads) const {
    int64_t units = int64_t(threads) * UNITS_OF_A_THREAD;
    int chunk = int(std::clamp<int64_t>(int64_t(shares.size()) * blocks / units, 1, MOST_BLOCKS));
    int64_t rows = std::max<int64_t>(LEAST_ROWS, int64_t(num_pairs) * blocks / (units * chunk));
    return {(blocks + chunk - 1) / chunk, chunk, int(std::min<int64_t>(rows, INT32_MAX))};
  }

  /* One unit: rows [first, last) among the pairs, blocks [begin, end). */
  struct Unit {
    int first, last, begin, end;
  };
  static Unit unit(const Share& share, const Cut& cut, int blocks, int index) {
    int parts = cut.parts(share), part = index % parts, begin = index / parts * cut.blocks;
    auto from = [&](int at) { return share.first + int(int64_t(share.rows) * at / parts); };
    return {from(part), from(part + 1), begin, std::min(begin + cut.blocks, blocks)};
  }
};

#endif
