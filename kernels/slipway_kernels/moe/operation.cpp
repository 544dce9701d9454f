/* A mixture of experts: rows are sorted by expert, so that each expert's weights are read once a step. */
#include <string.h>

#include <algorithm>

#include "../cpu/operations.h"

void MixtureOfExperts::allocate(const Program& p) {
  size_t places_count = size_t(p.max_tokens) * top_k, bytes = p.element_bytes();
  size_t experts = gate_up.size();
  logits = std::make_unique<Memory>(size_t(p.max_tokens) * ((experts + 31) / 32 * 32) * 4);
  ids = std::make_unique<Memory>(places_count * 4);
  weights = std::make_unique<Memory>(places_count * 4);
  places = std::make_unique<Memory>(places_count * 4);
  offsets = std::make_unique<Memory>((experts + 1) * 4);
  rows = std::make_unique<Memory>(places_count * x_bytes(p));
  hidden = std::make_unique<Memory>(places_count * expert_stride() * bytes);
  if (quantizes()) codes = std::make_unique<Memory>(places_count * code_stride());
  result = std::make_unique<Memory>(places_count * p.buffers[out].stride * 4);
}

/* offsets [experts + 1], and places [rows, top_k]: where the pair (row, expert) stands among all pairs sorted
 * by expert, then row. */
static void sort_pairs(int rows, int top_k, int experts, const int32_t* ids, int32_t* offsets, int32_t* places) {
  std::fill(offsets, offsets + experts + 1, 0);
  for (int i = 0; i < rows * top_k; ++i) ++offsets[ids[i] + 1];
  for (int e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
  for (int i = 0; i < rows * top_k; ++i) places[i] = offsets[ids[i]]++;
  for (int e = experts; e > 0; --e) offsets[e] = offsets[e - 1];
  offsets[0] = 0;
}

void MixtureOfExperts::gather(Worker& worker) const {
  const Program& p = worker.program;
  size_t row_bytes = x_bytes(p);
  const int32_t* place = static_cast<int32_t*>(places->at);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    for (int i = 0; i < top_k; ++i)
      memcpy(static_cast<char*>(rows->at) + place[row * top_k + i] * row_bytes, x.at(worker) + row * row_bytes,
             row_bytes);
}

void MixtureOfExperts::experts(Worker& worker, const std::vector<sw_weight>& weight, const char* from,
                               size_t from_stride, char* to, size_t to_stride, int to_dtype, int gate) const {
  const Program& p = worker.program;
  const int32_t* offset = static_cast<int32_t*>(offsets->at);
  int n = gate ? 2 * width() : std::min(weight[0].n, p.buffers[out].width);
  int blocks = (n + 31) / 32, chunk = blocks >= 16 * p.pool->size() ? 4 : 2;
  int columns = (blocks + chunk - 1) / chunk, units = columns * int(weight.size());
  size_t to_bytes = to_dtype == SW_BF16 ? 2 : 4;
  for (int unit = worker.claim(1); unit < units; unit = worker.claim(1)) {
    int expert = unit / columns, block = unit % columns * chunk, first = offset[expert];
    if (offset[expert + 1] == first) continue;
    size_t from_bytes = sw_is_integers(weight[expert].dtype) ? 1 : p.element_bytes();
    Product product{from + first * from_stride * from_bytes, from_stride, weight[expert], n,
                    to + first * to_stride * to_bytes,       to_stride,   to_dtype,       nullptr, 0, gate, 0.0f};
    sw_kernels().linear(product, 0, offset[expert + 1] - first, block, std::min(block + chunk, blocks));
  }
}

bool MixtureOfExperts::run(Worker& worker) const {
  const Program& p = worker.program;
  int count = int(gate_up.size()), logit_stride = (count + 31) / 32 * 32;
  Product scores{router_x.at(worker),  size_t(router_x.stride(p)), router,  count, logits->at,
                 size_t(logit_stride), SW_FP32,                    nullptr, 0,     0,          0.0f};
  run_product(worker, scores, p.num_rows);
  worker.barrier();
  int32_t* id = static_cast<int32_t*>(ids->at);
  float* share = static_cast<float*>(weights->at);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    sw_kernels().route(static_cast<float*>(logits->at) + size_t(row) * logit_stride, count, top_k, normalize,
                       id + row * top_k, share + row * top_k);
  worker.barrier();
  if (worker.thread == 0)
    sort_pairs(p.num_rows, top_k, count, id, static_cast<int32_t*>(offsets->at),
               static_cast<int32_t*>(places->at));
  worker.barrier();
  gather(worker);
  worker.barrier();
  const Buffer& to = p.buffers[out];
  char* middle = static_cast<char*>(hidden->at);
  experts(worker, gate_up, static_cast<char*>(rows->at), x.stride(p), middle, expert_stride(), p.dtype, activation);
  worker.barrier();
  size_t middle_stride = expert_stride();
  if (quantizes()) {
    char* quantized = static_cast<char*>(codes->at);
    int pairs = p.num_rows * top_k;
    for (int i = worker.claim(1); i < pairs; i = worker.claim(1))
      sw_kernels().quantize_row(middle + i * middle_stride * p.element_bytes(), p.dtype, width(),
                                quantized + i * code_stride());
    worker.barrier();
    middle = quantized, middle_stride = code_stride();
  }
  experts(worker, down, middle, middle_stride, static_cast<char*>(result->at), to.stride, SW_FP32, 0);
  worker.barrier();
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    sw_kernels().combine(static_cast<float*>(to.shared->at) + size_t(row) * to.stride,
                         static_cast<float*>(result->at), static_cast<int32_t*>(places->at) + row * top_k,
                         share + row * top_k, top_k, to.width, to.stride);
  return true;
}
