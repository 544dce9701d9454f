#include "operations.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <algorithm>

char* Input::at(const Worker& worker) const {
  const Program& program = worker.program;
  const Buffer& from = program.buffers[buffer];
  size_t row_bytes = size_t(from.stride) * element_bytes(from.dtype);
  if (copied && program.copies_now())
    return static_cast<char*>(from.copies->at) + row_bytes * SW_COPIED_ROWS * worker.thread;
  return static_cast<char*>(from.shared->at);
}

namespace {

char* row_of(const Buffer& buffer, void* base, int row) {
  return static_cast<char*>(base) + size_t(row) * buffer.stride * element_bytes(buffer.dtype);
}

float* fp32_row(const Program& program, int buffer, int row) {
  const Buffer& b = program.buffers[buffer];
  return static_cast<float*>(b.shared->at) + size_t(row) * b.stride;
}

}  // namespace

bool Embed::is_given(const Program& p, int row) const {
  return p.position[row] < p.slots->num_given[p.plan.slots[p.request[row]]];
}

void Embed::read(const Program& p, int row) const {
  float* to = fp32_row(p, out, row);
  int slot = p.plan.slots[p.request[row]], at = p.token[row] - first_token;
  size_t bytes = sizeof(float) * table.k;
  bool given = is_given(p, row);
  const float* own = given ? nullptr : p.own_row(slot, p.token[row], table.k);
  if (given && p.is_first_rank())
    memcpy(to, p.slots->given[slot] + bytes * p.position[row], bytes);
  else if (own)
    memcpy(to, own, bytes);
  else if (!given && has(at))
    sw_kernels().read_row(table, at, scale, to);
  else
    memset(to, 0, bytes);
}

bool Embed::run(Worker& worker) const {
  const Program& p = worker.program;
  if (adapts(p.by_adapter)) return run_adapted(worker);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) read(p, row);
  return true;
}

bool EmbedSum::run(Worker& worker) const {
  const Program& p = worker.program;
  int width = p.buffers[out].width;
  for (Units rows; (rows = worker.claim_near(p.num_rows, 4)).begin < rows.end;)
    for (int i = rows.begin; i < rows.end; ++i) {
      float* to = fp32_row(p, out, i);
      int position = p.position[i], slot = p.plan.slots[p.request[i]];
      sw_kernels().read_row(table, p.token[i], scale, to);
      const float* type = types ? types + (position >= type_from[slot] ? width : 0) : nullptr;
      for (int j = 0; type && j < width; ++j) to[j] += type[j];
      for (int j = 0; positions && j < width; ++j) to[j] += positions[size_t(position) * width + j];
    }
  return true;
}

bool FromRanks::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& parts = p.buffers[from];
  size_t each = p.parts_of(from).step / sizeof(float);
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) {
    float* to = fp32_row(p, out, row);
    const float* part = parts.of_ranks + size_t(row) * parts.stride;
    for (int i = 0; i < parts.width; ++i) {
      float sum = part[i];
      for (int rank = 1; rank < p.ranks->size; ++rank) sum += part[rank * each + i];
      to[i] = accumulate ? to[i] + sum : sum;
    }
  }
  return true;
}

bool RmsNorm::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  Input normed{out, !accumulate}, quantized{codes, true};
  auto normalize = [&](int row) {
    void* at = row_of(to, normed.at(worker), row);
    sw_kernels().rms_norm(fp32_row(p, x, row), weight, at, to.width, eps, add_one, accumulate, to.dtype);
    if (codes >= 0)
      sw_kernels().quantize_row(at, to.dtype, to.width, row_of(p.buffers[codes], quantized.at(worker), row));
  };
  if (!accumulate && p.copies_now()) {
    for (int row = 0; row < p.num_rows; ++row) normalize(row);
    return false;
  }
  for (Units rows; (rows = worker.claim_near(p.num_rows, 4)).begin < rows.end;)
    for (int i = rows.begin; i < rows.end; ++i) normalize(i);
  return true;
}

bool LayerNorm::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  Input normed{out, !keep};
  auto normalize = [&](int row) {
    float* from = fp32_row(p, x, row);
    sw_kernels().layer_norm(from, weight, bias, row_of(to, normed.at(worker), row), keep ? from : nullptr, to.width,
                            eps, to.dtype);
  };
  if (!keep && p.copies_now()) {
    for (int row = 0; row < p.num_rows; ++row) normalize(row);
    return false;
  }
  for (Units rows; (rows = worker.claim_near(p.num_rows, 4)).begin < rows.end;)
    for (int i = rows.begin; i < rows.end; ++i) normalize(i);
  return true;
}

bool Quantize::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer &from = p.buffers[x.buffer], &to = p.buffers[out];
  Input quantized{out, true};
  auto quantize = [&](int row) {
    sw_kernels().quantize_row(row_of(from, x.at(worker), row), from.dtype, from.width,
                              row_of(to, quantized.at(worker), row));
  };
  if (p.copies_now()) {
    for (int row = 0; row < p.num_rows; ++row) quantize(row);
    return false;
  }
  for (Units rows; (rows = worker.claim_near(p.num_rows, 4)).begin < rows.end;)
    for (int i = rows.begin; i < rows.end; ++i) quantize(i);
  return true;
}

Product Linear::product(Worker& worker, void* to, size_t stride, int dtype, int gate) const {
  const Program& p = worker.program;
  int width = p.buffers[out].width, n = activation ? std::min(weight.n, 2 * width) : std::min(weight.n, width - column);
  if (activation && !gate) n = (n + 31) / 32 * 32; /* whole runs of gate and up */
  return {x.at(worker), size_t(x.stride(p)), weight, n, to, stride, dtype, bias, accumulate, gate, 0.0f, pointwise};
}

bool Linear::run(Worker& worker) const {
  const Program& p = worker.program;
  if (adapts(p.by_adapter)) return run_adapted(worker);
  const Buffer& to = p.buffers[out];
  char* first = static_cast<char*>(to.shared->at) + size_t(column) * element_bytes(to.dtype);
  run_product(worker, product(worker, first, to.stride, to.dtype, activation), p.num_rows);
  return true;
}

namespace {

/* Infinities and NaN do not count: a scale of them would spoil all that is ever stored. */
float largest_magnitude(const float* values, int count) {
  float largest = 0.0f;
  for (int i = 0; i < count; ++i) {
    float magnitude = fabsf(values[i]);
    if (magnitude <= FLT_MAX) largest = std::max(largest, magnitude);
  }
  return largest;
}

void keep_larger(std::atomic<float>& largest, float to) {
  for (float seen = largest; seen < to && !largest.compare_exchange_weak(seen, to);) {
  }
}

float scale_of(float largest, float divisor) {
  return largest / divisor >= FLT_MIN ? largest / divisor : 1.0f; /* 1 where all is 0 */
}

}  // namespace

const float* RopeAndStore::angles(const Program& p, int row) const {
  if (!cos_sin) return nullptr;
  const sw_extension* own = p.extension_of(p.plan.slots[p.request[row]]);
  const float* table = own && own->rotation ? stretched[own->rotation - 1] : cos_sin;
  return table + size_t(p.position[row]) * rotary_dim;
}

/* The layer's scales become those of this step's keys and values. */
void RopeAndStore::find_scales(Worker& worker) const {
  Program& p = worker.program;
  alignas(64) float rotated[SW_MAX_HEAD_DIM];
  float key = 0.0f, value = 0.0f;
  int dim = shape.head_dim;
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) {
    value = std::max(value, largest_magnitude(v + row * stride, shape.kv_heads * dim));
    for (int head = 0; head < shape.kv_heads; ++head) {
      sw_kernels().rotate_query(k + row * stride + size_t(head) * dim, dim, angles(p, row), rotary_dim, norm.k,
                                norm.eps, norm.add_one, rotated, SW_FP32);
      key = std::max(key, largest_magnitude(rotated, dim));
    }
  }
  keep_larger(p.largest_key, key);
  keep_larger(p.largest_value, value);
  worker.barrier();
  if (worker.thread == 0)
    p.scale_kv(group, layer, scale_of(p.largest_key.exchange(0.0f), p.key_divisor),
               scale_of(p.largest_value.exchange(0.0f), p.value_divisor));
  worker.barrier();
}

void RopeAndStore::rotate_row(const Program& p, const LayerPages& pages, int row, int first, int last) const {
  int slot = p.plan.slots[p.request[row]], position = p.position[row], dim = shape.head_dim;
  const int32_t* table = p.table(group, slot);
  size_t bytes = p.element_bytes();
  for (int i = first; i < last; ++i) {
    int head = i - 2 * shape.kv_heads;
    if (i < shape.kv_heads) {
      sw_kernels().store_key(pages, table, position, i, k + row * stride + size_t(i) * dim, angles(p, row),
                             rotary_dim, norm.k, norm.eps, norm.add_one);
    } else if (head < 0) {
      int kv_head = i - shape.kv_heads;
      sw_kernels().store_value(pages, table, position, kv_head, v + row * stride + size_t(kv_head) * dim,
                               p.last_of_request[row]);
    } else if (q_out) {
      sw_kernels().rotate_query(q + row * stride + size_t(head) * dim, dim, angles(p, row), rotary_dim, norm.q,
                                norm.eps, norm.add_one,
                                static_cast<char*>(q_out) + (row * q_out_stride + size_t(head) * dim) * bytes,
                                p.dtype);
    }
  }
}

bool RopeAndStore::run(Worker& worker) const {
  const Program& p = worker.program;
  if (p.key_divisor > 0.0f) find_scales(worker);
  LayerPages pages = p.layer_pages(group, layer, shape.kv_heads, shape.head_dim);
  int units = 2 * shape.kv_heads + (q_out ? shape.heads : 0);
  int threads = p.pool->size();
  /* Whole rows where there are enough of them, else pieces of rows. */
  int pieces = p.num_rows >= 4 * threads ? 1 : std::min(units, 2 * threads);
  /* A cache line of keys holds sixteen positions: rows that follow one another belong to one thread. */
  int together = std::clamp(p.num_rows * pieces / (4 * threads), 1, 16);
  int count = p.num_rows * pieces;
  for (Units claimed; (claimed = worker.claim_near(count, together)).begin < claimed.end;)
    for (int unit = claimed.begin; unit < claimed.end; ++unit) {
      int piece = unit % pieces;
      rotate_row(p, pages, unit / pieces, piece * units / pieces, (piece + 1) * units / pieces);
    }
  return true;
}

/* Each share has units(share) units. This calls visit(share, sequence, unit) for those that the thread claims. */
template <class UnitsOf, class Visit>
static void each_unit(Worker& worker, int group, const AttentionPlan& plan, UnitsOf units, Visit visit) {
  const Program& p = worker.program;
  int total = 0, base = 0;
  for (const AttentionPlan::Share& share : plan.shares) total += units(share);
  auto share = plan.shares.begin();
  for (Units claimed; (claimed = worker.claim_near(total, 1)).begin < claimed.end;) {
    int unit = claimed.begin;
    if (unit < base) share = plan.shares.begin(), base = 0; /* it helps another thread */
    while (unit >= base + units(*share)) base += units(*share++);
    Sequence sequence = share->sequence;
    sequence.table = p.table(group, p.plan.slots[share->request]);
    visit(*share, sequence, unit - base);
  }
}

bool Attend::run(Worker& worker) const {
  const Program& p = worker.program;
  const AttentionPlan& plan = p.attention_plans[this->plan];
  Attention a{p.layer_pages(group, layer, shape.kv_heads, shape.head_dim),
              shape.heads, window, scale, softcap, q, q_stride, out, out_stride, group == SW_STEP_GROUP, first};
  /* [kv_head][split][query] of a share that is cut; where split 0 would lie. */
  auto parts_of = [&](const AttentionPlan::Share& share, int kv_head) {
    ptrdiff_t splits = share.last_split - share.first_split, queries = share.queries(plan.group_heads());
    ptrdiff_t at = ptrdiff_t(share.part) + (kv_head * splits - share.first_split) * queries;
    return static_cast<float*>(p.attention_parts->at) + at * SW_PART;
  };
  each_unit(
      worker, group, plan, [&](const AttentionPlan::Share& share) { return share.units(shape.kv_heads); },
      [&](const AttentionPlan::Share& share, const Sequence& sequence, int index) {
        AttentionPlan::Unit unit = plan.unit(share, index);
        float* parts = share.pieces > 1 ? parts_of(share, unit.kv_head) : nullptr;
        sw_kernels().attend(a, sequence, unit.kv_head, unit.first, unit.count, unit.begin, unit.end, parts,
                            share.queries(plan.group_heads()), worker.scratch());
      });
  if (!plan.cuts) return true;
  worker.barrier();
  each_unit(
      worker, group, plan,
      [&](const AttentionPlan::Share& share) { return share.pieces > 1 ? share.tiles * shape.kv_heads : 0; },
      [&](const AttentionPlan::Share& share, const Sequence& sequence, int index) {
        int queries = share.queries(plan.group_heads()), kv_head = index % shape.kv_heads;
        int first = index / shape.kv_heads * plan.most_queries, count = std::min(plan.most_queries, queries - first);
        sw_kernels().merge_parts(a, sequence, kv_head, first, count, share.first_split, share.last_split,
                                 parts_of(share, kv_head), queries);
      });
  return true;
}

bool Gate::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer& to = p.buffers[out];
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) {
    const float* gate = fp32_row(p, x, row);
    sw_kernels().gate_row(gate, gate + to.width, 16, activation, row_of(to, to.shared->at, row), to.width, to.dtype);
  }
  return true;
}

bool AddGated::run(Worker& worker) const {
  const Program& p = worker.program;
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    sw_kernels().add_gated(fp32_row(p, out, row), fp32_row(p, y, row), *fp32_row(p, gate, row),
                           p.buffers[out].width);
  return true;
}

bool Draw::run(Worker& worker) const {
  if (worker.program.plan.edits) worker.program.edit(worker, logits, stride, 0, count);
  worker.program.draw(worker, logits, stride, 0, count);
  return true;
}

bool Given::run(Worker& worker) const {
  const Program& p = worker.program;
  size_t width = p.buffers[out].width;
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1))
    memcpy(fp32_row(p, out, row), from + row * width, width * sizeof(float));
  return true;
}

bool Tap::run(Worker& worker) const {
  const Program& p = worker.program;
  size_t width = p.buffers[x].width;
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) {
    float* at = to + row * width;
    if (norm_weight)
      sw_kernels().rms_norm(fp32_row(p, x, row), norm_weight, at, int(width), eps, add_one, 0, SW_FP32);
    else
      memcpy(at, fp32_row(p, x, row), width * sizeof(float));
  }
  return true;
}

bool Activate::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer &from = p.buffers[x.buffer], &to = p.buffers[out];
  for (int row = worker.claim(1); row < p.num_rows; row = worker.claim(1)) {
    auto* numbers = reinterpret_cast<const float*>(row_of(from, x.at(worker), row));
    sw_kernels().activate_row(numbers, bias, activation, row_of(to, to.shared->at, row), to.width, accumulate,
                              to.dtype);
  }
  return true;
}

bool Hidden::run(Worker& worker) const {
  const Program& p = worker.program;
  size_t width = p.buffers[x].width;
  for (Units rows; (rows = worker.claim_near(p.num_rows, 4)).begin < rows.end;)
    for (int i = rows.begin; i < rows.end; ++i) {
      if (!p.slots->pooled[p.plan.slots[p.request[i]]]) continue;
      float* to = p.output.hidden + i * width;
      if (norm_weight)
        sw_kernels().rms_norm(fp32_row(p, x, i), norm_weight, to, int(width), eps, add_one, 0, SW_FP32);
      else
        memcpy(to, fp32_row(p, x, i), width * sizeof(float));
    }
  return true;
}

/* The logits of the rows in `normed`; by_adapter null: no adapter adds to them. */
void Head::multiply(Worker& worker, const RowsByAdapter* by_adapter, int rows) const {
  const Program& p = worker.program;
  const Buffer &plain = p.buffers[normed], &operand = p.buffers[codes >= 0 ? codes : normed];
  int n = tokens || !tokens_from.empty() ? weight.n : p.vocab;
  float* to = static_cast<float*>((tokens ? few : logits)->at);
  size_t stride = logits_stride(p);
  if (parts) {
    stride = part_stride();
    to = parts + p.ranks->rank * SW_LOGIT_ROWS * stride;
  } else if (!tokens_from.empty()) {
    to += tokens_from[p.ranks->rank];
  }
  int unit = worker.claim(1);
  int base = 0;
  if (by_adapter)
    base = added[0].shrink(worker, *by_adapter, plain.shared->at, plain.stride, weight.k, unit, p.low_rank());
  Product product{operand.shared->at, size_t(operand.stride), weight, n, to, stride, SW_FP32,
                  bias,               0,                      0,      by_adapter ? 0.0f : softcap};
  run_product(worker, product, rows, base, unit);
  if (!by_adapter) return;
  worker.barrier();
  Additions::Finish cap = [&](int row, int first, int last) {
    sw_kernels().cap_row(to + row * stride + first, last - first, softcap);
  };
  added[0].expand(worker, *by_adapter, to, stride, n, softcap > 0.0f ? cap : nullptr);
}

/* The logits of the tokens that there are go to their places; no other token can be drawn. */
void Head::spread(Worker& worker, int rows) const {
  const Program& p = worker.program;
  for (int i = worker.claim(1); i < rows; i = worker.claim(1)) {
    const float* from = static_cast<const float*>(few->at) + i * logits_stride(p);
    float* to = static_cast<float*>(logits->at) + i * p.logits_stride();
    std::fill(to, to + p.vocab, -INFINITY);
    for (int j = 0; j < weight.n; ++j) to[tokens[j]] = from[j];
  }
}

int Head::part_stride() const {
  int widest = 0;
  for (size_t rank = 0; rank + 1 < tokens_from.size(); ++rank)
    widest = std::max(widest, tokens_from[rank + 1] - tokens_from[rank]);
  return (widest + 31) / 32 * 32;
}

/* The first rank has the logits that all have made. */
void Head::gather(Worker& worker, int rows) const {
  const Program& p = worker.program;
  size_t stride = part_stride(), part = SW_LOGIT_ROWS * stride;
  worker.meet({reinterpret_cast<char*>(parts), rows * stride * sizeof(float), part * sizeof(float)});
  if (!parts || !p.is_first_rank()) return;
  for (int row = worker.claim(1); row < rows; row = worker.claim(1))
    for (int rank = 0; rank < p.ranks->size; ++rank)
      memcpy(static_cast<float*>(logits->at) + row * logits_stride(p) + tokens_from[rank],
             parts + rank * part + row * stride, sizeof(float) * (tokens_from[rank + 1] - tokens_from[rank]));
  worker.barrier();
}

/* What the first rank has drawn is what all have drawn. */
void Head::tell_drawn(Worker& worker, int first_row, int count) const {
  const Program& p = worker.program;
  bool is_first = p.is_first_rank();
  auto each = [&](auto body) {
    for (int i = first_row; worker.thread == 0 && i < first_row + count; ++i)
      body(drawn[i], p.output.rows[p.logit_rows[i].row]);
  };
  if (is_first) each([](sw_drawn& told, sw_drawn& own) { told = own; });
  worker.meet({reinterpret_cast<char*>(drawn + first_row), count * sizeof(sw_drawn), p.max_tokens * sizeof(sw_drawn)});
  if (!is_first) each([](sw_drawn& told, sw_drawn& own) { own = told; });
}

bool Head::run(Worker& worker) const {
  const Program& p = worker.program;
  const Buffer &rows = p.buffers[normed], &operand = p.buffers[codes >= 0 ? codes : normed];
  int total = int(p.logit_rows.size());
  for (int first = 0; first < total; first += SW_LOGIT_ROWS) {
    int count = std::min(total - first, int(SW_LOGIT_ROWS));
    for (int i = worker.claim(1); i < count; i = worker.claim(1)) {
      void* at = row_of(rows, rows.shared->at, i);
      const float* from = fp32_row(p, x, p.logit_rows[first + i].row);
      if (norm_weight)
        sw_kernels().rms_norm(from, norm_weight, at, rows.width, eps, add_one, 0, rows.dtype);
      else
        sw_kernels().activate_row(from, nullptr, SW_NO_ACTIVATION, at, rows.width, 0, rows.dtype);
      if (codes >= 0)
        sw_kernels().quantize_row(at, rows.dtype, rows.width, row_of(operand, operand.shared->at, i));
    }
    worker.barrier();
    const RowsByAdapter* by_adapter = added.empty() ? nullptr : &p.logits_by_adapter[first / SW_LOGIT_ROWS];
    multiply(worker, by_adapter && adapts(*by_adapter) ? by_adapter : nullptr, count);
    if (has_own_tokens(p, first, count)) {
      worker.barrier();
      own_logits(worker, first, count);
    }
    tokens_from.empty() ? worker.barrier() : gather(worker, count);
    if (tokens) {
      spread(worker, count);
      worker.barrier();
    }
    float* to = static_cast<float*>(logits->at);
    if (!p.is_first_rank()) {
      tell_drawn(worker, first, count);
      continue;
    }
    if (p.plan.edits) worker.program.edit(worker, to, p.logits_stride(), first, count);
    p.draw(worker, to, p.logits_stride(), first, count);
    worker.barrier();
    if (p.ranks) tell_drawn(worker, first, count);
  }
  return false;
}
