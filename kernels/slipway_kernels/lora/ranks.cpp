/* A · x that ranks share: each has a part of A, all meet, and each has the whole before it multiplies by its part of B.
 *
 * Parts are fp32 and the whole is rounded as that of one rank is: what is dealt to ranks has the same bits. */
#include <algorithm>

#include "../cpu/operations.h"

namespace {

enum { COLUMNS = 64 };

/* Of column c of the whole: parts [ranks] of one row, each `step` floats from the next. */
float dealt(const float* parts, size_t step, int ranks, int c) { return parts[c % ranks * step + c / ranks]; }

float added_up(const float* parts, size_t step, int ranks, int c) {
  float sum = parts[c];
  for (int rank = 1; rank < ranks; ++rank) sum += parts[rank * step + c];
  return sum;
}

}  // namespace

LowRankRows Adapted::shrinks_to(const Worker& worker) const {
  const Program& p = worker.program;
  return low_rank_of == SW_WHOLE ? p.low_rank() : p.low_rank_part(worker.turn, p.ranks->rank, part);
}

void Adapted::make_whole(Worker& worker) const {
  if (low_rank_of == SW_WHOLE) return worker.barrier();
  const Program& p = worker.program;
  const RowsByAdapter& by_adapter = p.by_adapter;
  LowRankRows parts = p.low_rank_part(worker.turn, 0, part), h = p.low_rank();
  worker.meet({parts.at, by_adapter.adapted * parts.stride * sizeof(float), p.low_rank_step});
  worker.turn ^= 1;
  size_t step = p.low_rank_step / sizeof(float);
  int base = 0, unit = worker.claim(1), ranks = p.ranks->size;
  for (const auto& tile : by_adapter.tiles) {
    if (tile.adapter < 0) break;
    int width = added[0].adapters[tile.adapter].width;
    for (; unit < base + tile.count; unit = worker.claim(1)) {
      int row = tile.first + unit - base;
      const float* from = reinterpret_cast<const float*>(parts.row(row));
      for (int first = 0; first < width; first += COLUMNS) {
        float columns[COLUMNS];
        int count = std::min(int(COLUMNS), width - first);
        for (int i = 0; i < count; ++i)
          columns[i] = low_rank_of == SW_DEALT ? dealt(from, step, ranks, first + i)
                                               : added_up(from, step, ranks, first + i);
        sw_kernels().activate_row(columns, nullptr, SW_NO_ACTIVATION, h.row(row) + first * p.element_bytes(), count, 0,
                                  h.dtype);
      }
    }
    base += tile.count;
  }
  worker.barrier();
}
