#include "plan.h"

void AttentionPlan::make(const std::vector<Rows>& requests, int threads, size_t most_parts) {
  shares.clear();
  cuts = false;
  size_t total = 0;
  for (const Rows& r : requests) {
    int end = r.first_position + r.rows;
    int low = window > 0 && !both_ways ? std::max(0, r.first_position + 1 - window) : 0;
    Share share{r.request, {nullptr, r.first_row, r.rows, r.first_position}, 0, low / SW_SPLIT, 0, 1, 0};
    share.tiles = (share.queries(group_heads()) + most_queries - 1) / most_queries;
    share.last_split = (end + SW_SPLIT - 1) / SW_SPLIT;
    total += size_t(share.tiles) * kv_heads * (share.last_split - share.first_split);
    shares.push_back(share);
  }
  if (threads == 1) return;
  size_t parts = 0;
  for (Share& share : shares) {
    size_t splits = share.last_split - share.first_split;
    size_t needs = splits * share.queries(group_heads()) * kv_heads;
    if (splits == 1 || splits * threads * WHOLE_UNITS <= total || parts + needs > most_parts) continue;
    share.pieces = int(std::min(splits, (splits * threads * CUT_UNITS + total - 1) / total));
    share.part = parts;
    parts += needs;
    cuts = true;
  }
}
