/* A mixture of experts: rows are sorted by expert, so that each expert's weights are read once a step. A rank that has
 * some of the experts computes what its own give to each row; the others' give nothing here. */
#include <string.h>

#include <algorithm>

#include "../cpu/operations.h"

void MixtureOfExperts::allocate(const Program& p) {
  size_t places_count = size_t(p.max_tokens) * top_k, bytes = p.element_bytes();
  size_t experts = gate_up.size();
  logits = std::make_unique<Memory>(size_t(p.max_tokens) * logit_stride() * 4);
  ids = std::make_unique<Memory>(places_count * 4);
  weights = std::make_unique<Memory>(places_count * 4);
  places = std::make_unique<Memory>(places_count * 4);
  offsets = std::make_unique<Memory>((experts + 1) * 4);
  rows = std::make_unique<Memory>(places_count * x_bytes(p));
  hidden = std::make_unique<Memory>(places_count * expert_stride() * bytes);
  if (quantizes()) codes = std::make_unique<Memory>(places_count * code_stride());
  result = std::make_unique<Memory>(places_count * p.buffers[out].stride * 4);
}

size_t MixtureOfExperts::bytes() const {
  size_t bytes = 0;
  for (const auto* memory : {&logits, &ids, &weights, &places, &offsets, &rows, &hidden, &codes, &result})
    bytes += bytes_of(*memory);
  return bytes;
}

/* offsets [experts + 1], and places [rows, top_k]: where the pair (row, expert) stands among all pairs sorted
 * by expert, then row; -1 of an expert that is not here, as its id is. */
static void sort_pairs(int rows, int top_k, int experts, const int32_t* ids, int32_t* offsets, int32_t* places) {
  std::fill(offsets, offsets + experts + 1, 0);
  for (int i = 0; i < rows * top_k; ++i)
    if (ids[i] >= 0) ++offsets[ids[i] + 1];
  for (int e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  for (int i = 0; i < rows * top_k; ++i) places[i] = ids[i] < 0 ? -1 : offsets[ids[i]]++;
  for (int e = experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

/* Whether any row's adapter adds to an expert of this layer, chosen or not. */
bool MixtureOfExperts::adapts(const RowsByAdapter& by_adapter) const {
  return !added.empty() && (added[GATE_UP].adapts(by_adapter) || added[DOWN].adapts(by_adapter));
}

void MixtureOfExperts::reserve(Program& p) const { p.reserve_low_rank(size_t(p.max_tokens) * top_k, both()); }

/* Pairs by adapter and expert; each is known by its place among the pairs that are sorted by expert. */
void MixtureOfExperts::sort_by_adapter(const Program& p) const {
  int experts = int(gate_up.size()), count = plan->num_pairs;
  const int32_t *id = static_cast<int32_t*>(ids->at), *place = static_cast<int32_t*>(places->at);
  std::vector<int32_t> of(count), row(count);
  for (int pair = 0; pair < p.num_rows * top_k; ++pair) {
    if (place[pair] < 0) continue;
    int adapter = p.adapter_of(pair / top_k), at = adapter * experts + id[pair];
    bool adds = adapter >= 0 && (added[GATE_UP].adapters[at].spans || added[DOWN].adapters[at].spans);
    of[place[pair]] = adds ? at : -1;
    row[place[pair]] = pair / top_k;
  }
  pairs->sort(of, p.num_adapters * experts);
  row_of_pair->resize(count);
  for (int i = 0; i < count; ++i) (*row_of_pair)[i] = row[pairs->rows[i]];
}

void MixtureOfExperts::gather(Worker& worker) const {
  const Program& p = worker.program;
  size_t row_bytes = x_bytes(p);
  const int32_t* place = static_cast<int32_t*>(places->at);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    for (int i = row * top_k; i < (row + 1) * top_k; ++i)
      if (place[i] >= 0)
        memcpy(static_cast<char*>(rows->at) + place[i] * row_bytes, x.at(worker) + row * row_bytes, row_bytes);
}

/* The products of pairs with their experts, in the units from `base` on, of which `unit` is claimed. */
void MixtureOfExperts::experts(Worker& worker, const std::vector<sw_weight>& weight, const char* from,
                               size_t from_stride, char* to, size_t to_stride, int to_dtype, int gate, int n, int base,
                               int unit) const {
  const Program& p = worker.program;
  int blocks = (n + 31) / 32;
  ExpertPlan::Cut cut = plan->cut(blocks, p.pool->size());
  for (const ExpertPlan::Share& share : plan->shares) {
    int end = base + cut.units(share);
    const sw_weight& w = weight[share.expert];
    size_t from_bytes = sw_is_integers(w.dtype) ? 1 : p.element_bytes();
    for (; unit < end; unit = worker.claim(1)) {
      ExpertPlan::Unit of = ExpertPlan::unit(share, cut, blocks, unit - base);
      Product product{from + of.first * from_stride * from_bytes, from_stride, w, n,
                      to + of.first * to_stride * element_bytes(to_dtype), to_stride, to_dtype,
                      nullptr, 0, gate, 0.0f};
      sw_kernels().linear(product, 0, of.last - of.first, of.begin, of.end);
    }
    base = end;
  }
}

/* The experts of each row, and the pairs sorted by them. */
void MixtureOfExperts::choose(Worker& worker) const {
  const Program& p = worker.program;
  int count = int(gate_up.size());
  Product scores{router_x.at(worker), size_t(router_x.stride(p)), router,  router.n, logits->at,
                 logit_stride(),      SW_FP32,                    nullptr, 0,        0,          0.0f};
  run_product(worker, scores, p.num_rows);
  worker.barrier();
  int32_t* id = static_cast<int32_t*>(ids->at);
  float* share = static_cast<float*>(weights->at);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) {
    sw_kernels().route(static_cast<float*>(logits->at) + row * logit_stride(), router.n, top_k, normalize,
                       id + row * top_k, share + row * top_k);
    for (int i = row * top_k; i < (row + 1) * top_k; ++i) {
      int here = id[i] - first_expert;
      id[i] = here >= 0 && here < count ? here : -1;
    }
  }
  worker.barrier();
  if (worker.thread == 0) {
    sort_pairs(p.num_rows, top_k, count, id, static_cast<int32_t*>(offsets->at), static_cast<int32_t*>(places->at));
    plan->make(static_cast<int32_t*>(offsets->at), count);
    pairs->tiles.clear();
    if (adapts(p.by_adapter)) sort_by_adapter(p);
  }
  worker.barrier();
}

/* Gate and up apart, until adapters have been added to them. */
void MixtureOfExperts::gate_up_adapted(Worker& worker) const {
  const Program& p = worker.program;
  const Additions& additions = added[GATE_UP];
  float* sums = static_cast<float*>(p.apart->at);
  int unit = worker.claim(1);
  int base = additions.shrink(worker, *pairs, plain.at(worker), plain.stride(p), gate_up[0].k, unit, p.low_rank(),
                              row_of_pair->data());
  experts(worker, gate_up, static_cast<char*>(rows->at), x.stride(p), reinterpret_cast<char*>(sums), both(), SW_FP32,
          0, both(), base, unit);
  worker.barrier();
  Additions::Finish gate = [&](int place, int first, int last) {
    int begin = first / 2, end = std::min(last / 2, width());
    char* to = static_cast<char*>(hidden->at) + (size_t(place) * expert_stride() + begin) * p.element_bytes();
    const float* from = sums + size_t(place) * both() + first;
    sw_kernels().gate_row(from, from + 16, 32, activation, to, end - begin, p.dtype);
  };
  additions.expand(worker, *pairs, sums, both(), both(), gate);
}

void MixtureOfExperts::multiply_gate_up(Worker& worker) const {
  const Program& p = worker.program;
  if (pairs->tiles.empty())
    experts(worker, gate_up, static_cast<char*>(rows->at), x.stride(p), static_cast<char*>(hidden->at),
            expert_stride(), p.dtype, activation, 2 * width(), 0, worker.claim(1));
  else
    gate_up_adapted(worker);
  worker.barrier();
}

void MixtureOfExperts::multiply_down(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  const char* middle = static_cast<char*>(hidden->at);
  size_t stride = expert_stride();
  if (quantizes()) {
    char* quantized = static_cast<char*>(codes->at);
    for (int i = worker.claim(1); i < plan->num_pairs; i = worker.claim(1))
      sw_kernels().quantize_row(middle + i * stride * p.element_bytes(), p.dtype, width(),
                                quantized + i * code_stride());
    worker.barrier();
    middle = quantized, stride = code_stride();
  }
  int unit = worker.claim(1), base = 0, n = std::min(down[0].n, to.width);
  bool adapted = !pairs->tiles.empty();
  if (adapted) base = added[DOWN].shrink(worker, *pairs, hidden->at, expert_stride(), width(), unit, p.low_rank());
  experts(worker, down, middle, stride, static_cast<char*>(result->at), to.stride, SW_FP32, 0, n, base, unit);
  worker.barrier();
  if (!adapted) return;
  added[DOWN].expand(worker, *pairs, static_cast<float*>(result->at), to.stride, n, nullptr);
  worker.barrier();
}

bool MixtureOfExperts::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  choose(worker);
  gather(worker);
  worker.barrier();
  multiply_gate_up(worker);
  multiply_down(worker);
  const float* share = static_cast<float*>(weights->at);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    sw_kernels().combine(static_cast<float*>(to.shared->at) + size_t(row) * to.stride,
                         static_cast<float*>(result->at), static_cast<int32_t*>(places->at) + row * top_k,
                         share + row * top_k, top_k, to.width, to.stride, accumulate);
  return true;
}
