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

template <class AdapterOf>
void RowsByAdapter::sort(int count, int num_adapters, AdapterOf adapter_of) {
  std::vector<int> first(num_adapters + 2, 0);
  auto group_of = [&](int row) { return adapter_of(row) < 0 ? num_adapters : adapter_of(row); };
  for (int row = 0; row < count; ++row) ++first[group_of(row) + 1];
  for (int group = 0; group <= num_adapters; ++group) first[group + 1] += first[group];
  rows.resize(count);
  tiles.clear();
  adapters.clear();
  if (first[num_adapters] == 0) return; /* nobody asks for one: nobody reads on */
  for (int group = 0; group <= num_adapters; ++group) {
    int adapter = group == num_adapters ? -1 : group;
    if (adapter >= 0 && first[group] < first[group + 1]) adapters.push_back(adapter);
    for (int row = first[group]; row < first[group + 1]; row += TILE)
      tiles.push_back({adapter, row, std::min(int(TILE), first[group + 1] - row)});
  }
  for (int row = 0; row < count; ++row) rows[first[group_of(row)]++] = row;
}

void Program::sort_by_adapter() {
  by_adapter.sort(num_rows, num_adapters, [&](int row) { return slots->adapter[plan.slots[request[row]]]; });
  int total = int(logit_rows.size()), chunks = (total + SW_LOGIT_ROWS - 1) / SW_LOGIT_ROWS;
  logits_by_adapter.resize(chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    int first = chunk * SW_LOGIT_ROWS;
    logits_by_adapter[chunk].sort(std::min(total - first, int(SW_LOGIT_ROWS)), num_adapters,
                                  [&](int row) { return slots->adapter[logit_rows[first + row].slot]; });
  }
}

namespace {

bool adds(const sw_adapter& adapter) { return adapter.spans != nullptr; }

}  // namespace

bool Adapted::adapts(const RowsByAdapter& by_adapter) const {
  for (int adapter : by_adapter.adapters)
    if (adds(adapters[adapter])) return true;
  return false;
}

int Adapted::shrink(Worker& worker, const RowsByAdapter& by_adapter, const void* x, size_t stride, int k,
                    int& unit) const {
  const Program& p = worker.program;
  size_t narrow = p.shrunk_stride, bytes = p.element_bytes();
  int base = 0;
  for (const auto& tile : by_adapter.tiles) {
    if (tile.adapter < 0) break;
    const sw_adapter& adapter = adapters[tile.adapter];
    int groups = adapter.width / 16, units = (groups + SHRUNK_AT_ONCE - 1) / SHRUNK_AT_ONCE;
    for (; unit < base + units; unit = worker.claim(1)) {
      int group = (unit - base) * SHRUNK_AT_ONCE;
      sw_kernels().shrink(adapter, k, {x, stride, by_adapter.rows.data() + tile.first, tile.count}, group,
                          std::min(group + SHRUNK_AT_ONCE, groups),
                          static_cast<char*>(p.shrunk->at) + tile.first * narrow * bytes, narrow, p.dtype);
    }
    base += units;
  }
  return base;
}

void Adapted::expand(Worker& worker, const RowsByAdapter& by_adapter, float* out, size_t stride, int n,
                     const Finish& finish) const {
  const Program& p = worker.program;
  size_t narrow = p.shrunk_stride, bytes = p.element_bytes();
  int groups = (n + 15) / 16, units = (groups + EXPANDED_AT_ONCE - 1) / EXPANDED_AT_ONCE;
  int base = 0, unit = worker.claim(1);
  for (const auto& tile : by_adapter.tiles) {
    bool added = tile.adapter >= 0 && adds(adapters[tile.adapter]);
    if (!added && !finish) continue;
    const int32_t* rows = by_adapter.rows.data() + tile.first;
    for (; unit < base + units; unit = worker.claim(1)) {
      int first = (unit - base) * EXPANDED_AT_ONCE, last = std::min(first + EXPANDED_AT_ONCE, groups);
      if (added)
        sw_kernels().expand(adapters[tile.adapter],
                            static_cast<char*>(p.shrunk->at) + tile.first * narrow * bytes, narrow, p.dtype,
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
  int base = shrink(worker, p.by_adapter, plain.at(worker), plain.stride(p), weight.k, unit);
  multiply(worker, sums, stride, SW_FP32, 0, base, unit);
  worker.barrier();
  Finish gate = [&](int row, int first, int last) {
    int begin = first / 2, end = std::min(last / 2, to.width);
    char* rows = static_cast<char*>(to.shared->at);
    sw_kernels().gate_row(sums + row * stride + first, activation,
                          rows + (size_t(row) * to.stride + begin) * element_bytes(to.dtype), end - begin, to.dtype);
  };
  expand(worker, p.by_adapter, sums, stride, n, activation ? gate : nullptr);
  return true;
}

bool Embed::run_adapted(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  float* x = static_cast<float*>(to.shared->at);
  size_t narrow = p.shrunk_stride, bytes = p.element_bytes();
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) read(p, row);
  for (const auto& tile : p.by_adapter.tiles) {
    if (tile.adapter < 0) break;
    const sw_adapter& adapter = adapters[tile.adapter];
    size_t row_bytes = adapter.width * bytes;
    for (int i = tile.first + worker.thread; i < tile.first + tile.count; i += p.pool->size()) {
      char* shrunk = static_cast<char*>(p.shrunk->at) + i * narrow * bytes;
      int row = p.by_adapter.rows[i];
      if (is_given(p, row)) /* it has no token to which an adapter adds */
        memset(shrunk, 0, row_bytes);
      else
        memcpy(shrunk, static_cast<const char*>(adapter.a) + p.token[row] * row_bytes, row_bytes);
    }
  }
  worker.barrier();
  expand(worker, p.by_adapter, x, to.stride, to.width, nullptr);
  return true;
}

namespace {

void reserve(std::unique_ptr<Memory>& memory, size_t bytes) {
  if (!memory || memory->bytes < bytes) memory = std::make_unique<Memory>(bytes);
}

}  // namespace

/* Let adapters in `places` places add to the operation that was added last, whose rows are those of x, or the head's
 * own. `width` is the most columns of A · x. Which operation that is, for sw_set_adapter. */
extern "C" int sw_adapt(Program* p, int x, int places, int width) {
  auto* adapted = dynamic_cast<Adapted*>(p->operations.back().get());
  adapted->adapters.assign(places, sw_adapter{});
  adapted->plain = {x, p->buffers[x].copied};
  p->num_adapters = places;
  p->shrunk_stride = std::max(p->shrunk_stride, (width + 31) / 32 * 32);
  reserve(p->shrunk, size_t(p->max_tokens) * p->shrunk_stride * p->element_bytes());
  auto* linear = dynamic_cast<Linear*>(adapted);
  if (linear && linear->activation)
    reserve(p->apart, size_t(p->max_tokens) * ((linear->weight.n + 31) / 32 * 32) * sizeof(float));
  return int(p->operations.size()) - 1;
}

/* Between steps: what the adapter in a place adds to an operation; null: nothing. */
extern "C" void sw_set_adapter(Program* p, int operation, int place, const sw_adapter* adapter) {
  auto* adapted = dynamic_cast<Adapted*>(p->operations[operation].get());
  adapted->adapters[place] = adapter ? *adapter : sw_adapter{};
}
