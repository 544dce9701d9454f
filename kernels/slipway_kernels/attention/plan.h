/* How the attention of a step is dealt to threads. */
#ifndef SLIPWAY_ATTENTION_PLAN_H
#define SLIPWAY_ATTENTION_PLAN_H

#include <algorithm>
#include <vector>

#include "../cpu/kernels.h"

/* The requests of a step, cut into units of about the same size: no thread waits for one that has a long context.
 * A unit is a key head and a tile of queries. Where it would be more than an eighth of a thread's even share, its
 * splits go to several units of a sixteenth. Their partial results stand in `attention_parts` and are merged in
 * order, so that no result depends on the cut. */
struct AttentionPlan {
  enum { WHOLE_UNITS = 8, CUT_UNITS = 16 }; /* of a thread, at least */

  int heads, kv_heads, window;
  bool both_ways;

  struct Share {
    int request;
    Sequence sequence; /* without its table, which belongs to a KV group */
    int tiles, first_split, last_split; /* those that some row sees: [first, last) */
    int pieces;                         /* of them, a unit for each */
    size_t part;                        /* of its first query and split; where it has several pieces */

    int queries(int group_heads) const { return sequence.rows * group_heads; }
    int units(int kv_heads) const { return tiles * kv_heads * pieces; }
  };
  std::vector<Share> shares;
  bool cuts = false; /* some share has several pieces */
  int most_queries = SW_ROWS; /* of a unit */

  struct Rows {
    int request, first_row, rows, first_position;
  };
  /* most_parts: partial results for which there is room; what would need more is not cut. */
  void make(const std::vector<Rows>& requests, int threads, size_t most_parts);

  int group_heads() const { return heads / kv_heads; }

  /* One unit: queries [first, first + count) of a key head over splits [begin, end). */
  struct Unit {
    int kv_head, first, count, begin, end;
  };
  Unit unit(const Share& share, int index) const {
    int kv_head = index % kv_heads, rest = index / kv_heads, piece = rest % share.pieces;
    int first = rest / share.pieces * most_queries, splits = share.last_split - share.first_split;
    auto from = [&](int at) { return share.first_split + int(long(splits) * at / share.pieces); };
    return {kv_head, first, std::min(most_queries, share.queries(group_heads()) - first), from(piece),
            from(piece + 1)};
  }
};

#endif
