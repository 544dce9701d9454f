/* Low-rank adapters within an operation: its product's units and those of h = A · x are one phase, out += B · h and what
 * an activation makes of the sums is the next. Rows are sorted by adapter once a step, so that a thread reads the
 * factors of an adapter for all of its rows.
 *
 * A row's result depends on that row and its adapter alone, and a row that asks for none gets the same bits in a step
 * with adapters as in one without. */
#include <string.h>

#include <algorithm>

#include "../cpu/operations.h"

enum { TILE = 24, SHRUNK_AT_ONCE = 2, EXPANDED_AT_ONCE = 16 }; /* rows, sixteens of columns of a unit of work */

void RowsByAdapter::sort(const std::vector<int32_t>& adapter_of, int num_adapters) {
  int count = int(adapter_of.size());
  std::vector<int> first(num_adapters + 2, 0);
  auto group_of = [&](int row) { return adapter_of[row] < 0 ? num_adapters : adapter_of[row]; };
  for (int row = 0; row < count; ++row) ++first[group_of(row) + 1];
  for (int group = 0; group <= num_adapters; ++group) first[group + 1] += first[group];
  rows.resize(count);
  tiles.clear();
  adapters.clear();
  adapted = first[num_adapters];
  if (adapted == 0) return; /* nobody asks for one: nobody reads on */
  for (int group = 0; group <= num_adapters; ++group) {
    int adapter = group == num_adapters ? -1 : group;
    if (adapter >= 0 && first[group] < first[group + 1]) adapters.push_back(adapter);
    for (int row = first[group]; row < first[group + 1]; row += TILE)
      tiles.push_back({adapter, row, std::min(int(TILE), first[group + 1] - row)});
  }
  for (int row = 0; row < count; ++row) rows[first[group_of(row)]++] = row;
}

int Program::adapter_of(int row) const { return slots->adapter[plan.slots[request[row]]]; }

void Program::sort_by_adapter() {
  std::vector<int32_t> of(num_rows);
  for (int row = 0; row < num_rows; ++row) of[row] = adapter_of(row);
  by_adapter.sort(of, num_adapters);
  int total = int(logit_rows.size()), chunks = (total + SW_LOGIT_ROWS - 1) / SW_LOGIT_ROWS;
  logits_by_adapter.resize(chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    int first = chunk * SW_LOGIT_ROWS;
    of.resize(std::min(total - first, int(SW_LOGIT_ROWS)));
    for (size_t row = 0; row < of.size(); ++row) of[row] = slots->adapter[logit_rows[first + row].slot];
    logits_by_adapter[chunk].sort(of, num_adapters);
  }
}

static bool adds(const sw_adapter& adapter) { return adapter.spans != nullptr; }

void Additions::set(int at, const sw_adapter& adapter) {
  adding[at / experts] += adds(adapter) - adds(adapters[at]);
  adapters[at] = adapter;
}

bool Additions::adapts(const RowsByAdapter& by_adapter) const {
  for (int adapter : by_adapter.adapters)
    if (adding[adapter]) return true;
  return false;
}

int Additions::shrink(Worker& worker, const RowsByAdapter& by_adapter, const void* x, size_t stride, int k, int& unit,
                      const LowRankRows& h, const int32_t* rows) const {
  int base = 0;
  if (!rows) rows = by_adapter.rows.data();
  for (const auto& tile : by_adapter.tiles) {
    if (tile.adapter < 0) break;
    const sw_adapter& adapter = adapters[tile.adapter];
    int groups = adapter.part / 16, units = (groups + SHRUNK_AT_ONCE - 1) / SHRUNK_AT_ONCE;
    for (; unit < base + units; unit = worker.claim(1)) {
      int group = (unit - base) * SHRUNK_AT_ONCE;
      sw_kernels().shrink(adapter, k, {x, stride, rows + tile.first, tile.count}, group,
                          std::min(group + SHRUNK_AT_ONCE, groups), worker.program.dtype, h.row(tile.first), h.stride,
                          h.dtype);
    }
    base += units;
  }
  return base;
}

void Additions::expand(Worker& worker, const RowsByAdapter& by_adapter, float* out, size_t stride, int n,
                     const Finish& finish) const {
  LowRankRows h = worker.program.low_rank();
  int groups = (n + 15) / 16, units = (groups + EXPANDED_AT_ONCE - 1) / EXPANDED_AT_ONCE;
  int base = 0, unit = worker.claim(1);
  for (const auto& tile : by_adapter.tiles) {
    bool added = tile.adapter >= 0 && adds(adapters[tile.adapter]);
    if (!added && !finish) continue;
    const int32_t* rows = by_adapter.rows.data() + tile.first;
    for (; unit < base + units; unit = worker.claim(1)) {
      int first = (unit - base) * EXPANDED_AT_ONCE, last = std::min(first + EXPANDED_AT_ONCE, groups);
      if (added)
        sw_kernels().expand(adapters[tile.adapter], h.row(tile.first), h.stride, h.dtype,
                            {out, stride, rows, tile.count}, n, first, last);
      for (int i = 0; finish && i < tile.count; ++i) finish(rows[i], first * 16, std::min(last * 16, n));
    }
    base += units;
  }
}

/* As `run`, with gate and up apart until adapters have been added to them. */
bool Linear::run_adapted(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  int n = activation ? (std::min(weight.n, 2 * to.width) + 31) / 32 * 32 : std::min(weight.n, to.width - column);
  size_t stride = activation ? (weight.n + 31) / 32 * 32 : to.stride;
  float* sums = static_cast<float*>(activation ? p.apart->at : to.shared->at) + (activation ? 0 : column);
  int unit = worker.claim(1);
  int base = added[0].shrink(worker, p.by_adapter, plain.at(worker), plain.stride(p), weight.k, unit,
                             shrinks_to(worker));
  run_product(worker, product(worker, sums, stride, SW_FP32, 0), p.num_rows, base, unit);
  make_whole(worker);
  Additions::Finish gate = [&](int row, int first, int last) {
    int begin = first / 2, end = std::min(last / 2, to.width);
    char* rows = static_cast<char*>(to.shared->at);
    const float* both = sums + row * stride + first;
    sw_kernels().gate_row(both, both + 16, 32, activation,
                          rows + (size_t(row) * to.stride + begin) * element_bytes(to.dtype), end - begin, to.dtype);
  };
  added[0].expand(worker, p.by_adapter, sums, stride, n, activation ? gate : nullptr);
  return true;
}

bool Embed::run_adapted(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  float* x = static_cast<float*>(to.shared->at);
  LowRankRows h = p.low_rank();
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) read(p, row);
  for (const auto& tile : p.by_adapter.tiles) {
    if (tile.adapter < 0) break;
    const sw_adapter& adapter = added[0].adapters[tile.adapter];
    size_t row_bytes = adapter.width * p.element_bytes();
    for (int i = tile.first + worker.thread; i < tile.first + tile.count; i += p.pool->size()) {
      char* shrunk = h.row(i);
      int row = p.by_adapter.rows[i];
      /* It has no token to which an adapter adds here, or the adapter's own row has all that is added. */
      int at = p.token[row] - first_token;
      if (is_given(p, row) || !has(at) || p.own_row(p.plan.slots[p.request[row]], p.token[row], to.width))
        memset(shrunk, 0, row_bytes);
      else
        memcpy(shrunk, static_cast<const char*>(adapter.a) + at * row_bytes, row_bytes);
    }
  }
  worker.barrier();
  added[0].expand(worker, p.by_adapter, x, to.stride, to.width, nullptr);
  return true;
}

namespace {

void reserve(std::unique_ptr<Memory>& memory, size_t bytes) {
  if (!memory || memory->bytes < bytes) memory = std::make_unique<Memory>(bytes);
}

}  // namespace

void Program::reserve_low_rank(size_t rows, size_t apart_stride) {
  reserve(shrunk, rows * shrunk_stride * element_bytes());
  if (apart_stride) reserve(apart, rows * apart_stride * sizeof(float));
}

void Adapted::reserve(Program& p) const { p.reserve_low_rank(p.max_tokens, 0); }

void Linear::reserve(Program& p) const {
  p.reserve_low_rank(p.max_tokens, activation ? (weight.n + 31) / 32 * 32 : 0);
}

/* The most columns that a rank makes of any A · x which ranks share. 0 where their memory is used up. */
extern "C" int sw_share_adapters(Program* p, int part) {
  p->low_rank_step = size_t(p->max_tokens) * part * sizeof(float);
  for (char*& parts : p->low_rank_parts) {
    parts = static_cast<char*>(p->ranks->take(p->low_rank_step * p->ranks->size));
    if (!parts) return 0;
  }
  return 1;
}

/* Let adapters in `places` places add to the operation that was added last, whose rows are those of x, or the head's
 * own. `width` is the most columns of A · x; `part` those that a rank makes of what it has, `low_rank_of` it. Which
 * operation that is, for sw_set_adapter. */
extern "C" int sw_adapt(Program* p, int x, int places, int width, int low_rank_of, int part) {
  auto* adapted = dynamic_cast<Adapted*>(p->operations.back().get());
  adapted->allow(places);
  adapted->plain = {x, p->buffers[x].copied};
  adapted->low_rank_of = low_rank_of;
  adapted->part = part;
  p->num_adapters = places;
  p->shrunk_stride = std::max(p->shrunk_stride, (width + 31) / 32 * 32);
  return int(p->operations.size()) - 1;
}

/* Between steps: what the adapter in a place adds to a product of an operation; null: nothing. Of a product of each
 * expert, `at` is place · experts + expert. */
extern "C" void sw_set_adapter(Program* p, int operation, int product, int at, const sw_adapter* adapter) {
  auto* adapted = dynamic_cast<Adapted*>(p->operations[operation].get());
  if (adapter) adapted->reserve(*p);
  adapted->added[product].set(at, adapter ? *adapter : sw_adapter{});
}
