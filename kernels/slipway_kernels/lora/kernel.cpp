/* Low-rank adapters within a product (Hu et al. 2021): out += B · (A · x) for the rows that ask for one.
 *
 * Both factors are multiplied as any other matrix is, so that a row's result depends on that row and its adapter
 * alone. Rows that ask for none get the same bits in a step with adapters as in one without. */
#include <algorithm>

#include "../cpu/operations.h"

enum { TILE = 4 * SW_ROWS, CHUNK = 8 }; /* rows and blocks of 32 columns of a unit of work */

/* Once a step; a request's rows stand together, and those of neighbours with one adapter are one run. */
void Program::find_adapter_runs() {
  adapter_runs.clear();
  for (int r = 0; r < plan.num_requests; ++r) {
    int adapter = slots->adapter[plan.slots[r]], row = output.requests[r].first_row, count = end_of(r) - row;
    if (adapter < 0 || count == 0) continue;
    AdapterRun* last = adapter_runs.empty() ? nullptr : &adapter_runs.back();
    if (last && last->adapter == adapter && last->first + last->count == row)
      last->count += count;
    else
      adapter_runs.push_back({adapter, row, count});
  }
}

namespace {

/* The units of product(adapter, first row) for every run, that this thread claims. */
template <class Make>
void run_products(Worker& worker, const std::vector<sw_adapter>& adapters, Make product) {
  int base = 0, unit = worker.claim(1);
  for (const auto& run : worker.program.adapter_runs) {
    if (size_t(run.adapter) >= adapters.size() || !adapters[run.adapter].a.at) continue;
    const sw_adapter& adapter = adapters[run.adapter];
    Product made = product(adapter, size_t(run.first));
    int blocks = (made.n + 31) / 32, tiles = (run.count + TILE - 1) / TILE;
    int units = tiles * ((blocks + CHUNK - 1) / CHUNK);
    for (; unit < base + units; unit = worker.claim(1)) {
      int row = (unit - base) % tiles * TILE, block = (unit - base) / tiles * CHUNK;
      sw_kernels().linear(made, row, std::min(row + TILE, run.count), block, std::min(block + CHUNK, blocks));
    }
    base += units;
  }
}

}  // namespace

/* As `run`, with gate and up apart until adapters have been added to them. */
bool Linear::run_adapted(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  size_t stride = activation ? (weight.n + 31) / 32 * 32 : to.stride;
  float* sums = static_cast<float*>(activation ? p.apart->at : to.shared->at) + (activation ? 0 : column);
  size_t bytes = p.element_bytes(), x_stride = plain.stride(p), narrow = p.shrunk_stride;
  const char* rows = plain.at(worker);
  char* shrunk = static_cast<char*>(p.shrunk->at);
  run_products(worker, adapters, [=, &p](const sw_adapter& adapter, size_t first) {
    return Product{rows + first * x_stride * bytes, x_stride, adapter.a, adapter.a.n, shrunk + first * narrow * bytes,
                   narrow, p.dtype, nullptr, 0, 0, 0.0f};
  });
  worker.barrier();
  multiply(worker, sums, stride, SW_FP32, 0);
  worker.barrier();
  run_products(worker, adapters, [=](const sw_adapter& adapter, size_t first) {
    return Product{shrunk + first * narrow * bytes, narrow, adapter.b, adapter.b.n, sums + first * stride,
                   stride, SW_FP32, nullptr, 1, 0, 0.0f};
  });
  if (!activation) return true;
  worker.barrier();
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    sw_kernels().gate_row(sums + row * stride, activation,
                          static_cast<char*>(to.shared->at) + size_t(row) * to.stride * element_bytes(to.dtype),
                          to.width, to.dtype);
  return true;
}

namespace {

void reserve(std::unique_ptr<Memory>& memory, size_t bytes) {
  if (!memory || memory->bytes < bytes) memory = std::make_unique<Memory>(bytes);
}

}  // namespace

/* Adapters of the product that was added last, of rows x. */
extern "C" void sw_add_adapters(Program* p, int x, const sw_adapter* adapters, int count) {
  auto* linear = dynamic_cast<Linear*>(p->operations.back().get());
  linear->plain = {x, p->buffers[x].copied};
  linear->adapters.assign(adapters, adapters + count);
  p->num_adapters = std::max(p->num_adapters, count);
  for (const sw_adapter& adapter : linear->adapters)
    if (adapter.a.at) p->shrunk_stride = std::max(p->shrunk_stride, (adapter.a.n + 31) / 32 * 32);
  reserve(p->shrunk, size_t(p->max_tokens) * p->shrunk_stride * p->element_bytes());
  if (linear->activation) reserve(p->apart, size_t(p->max_tokens) * ((linear->weight.n + 31) / 32 * 32) * sizeof(float));
}
