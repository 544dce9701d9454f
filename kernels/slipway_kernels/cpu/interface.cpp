/* The C functions that binding.py calls. Arguments have been checked there. */
#include <algorithm>

#include "operations.h"

namespace {

enum { UNIT = 64 }; /* rows that a thread packs at once: mostly whole blocks of 32 */

/* Whether no block of 32 takes rows of two pieces: two threads could write one of its bytes, which holds the codes
 * of two rows. */
bool are_apart(const int32_t* destination, int rows) {
  int last = -1, highest = -1;
  for (int i = 0; i < rows; ++i) {
    if (i % UNIT == 0) last = highest;
    if (destination[i] / 32 <= last) return false;
    highest = std::max(highest, destination[i] / 32);
  }
  return true;
}

/* body(first, count) over pieces of the rows, on every thread of `pool` where there is one. */
template <class Body>
void in_pieces(Pool* pool, int rows, Body body) {
  if (!pool || rows < 2 * UNIT) return body(0, rows);
  struct Call {
    Body& body;
    int rows;
    std::atomic<int> next{0};
  } call{body, rows};
  pool->run(
      [](void* argument, int) {
        Call& c = *static_cast<Call*>(argument);
        for (int first = c.next.fetch_add(UNIT); first < c.rows; first = c.next.fetch_add(UNIT))
          c.body(first, std::min(int(UNIT), c.rows - first));
      },
      &call);
}

}  // namespace

extern "C" {

int sw_abi() { return SW_ABI; }
const char* sw_isa() { return sw_kernels().name; }
void* sw_memory_map(size_t bytes) { return sw_map(bytes); }
void sw_memory_unmap(void* memory, size_t bytes) { sw_unmap(memory, bytes); }
void sw_memory_release(void* memory, size_t bytes) { sw_release(memory, bytes); }
void sw_memory_trim() { sw_trim(); }
void* sw_memory_take(size_t bytes) { return sw_take(bytes); }
void sw_memory_reserve(size_t bytes) { sw_reserve(bytes); }
void sw_memory_settle() { sw_settle(); }
void sw_memory_touch(void* memory, size_t bytes) { sw_touch(memory, bytes); }

/* Lists of processors, one after another: counts [lists]. */
void sw_memory_spread(int lists, const int32_t* counts, const int32_t* cpus) {
  std::vector<std::vector<int>> nodes;
  for (int i = 0; i < lists; cpus += counts[i++]) nodes.emplace_back(cpus, cpus + counts[i]);
  sw_spread(nodes);
}

/* cpus [threads], or null. */
Pool* sw_pool_create(int threads, const int32_t* cpus) {
  return new Pool(threads, cpus ? std::vector<int>(cpus, cpus + threads) : std::vector<int>());
}
void sw_pool_destroy(Pool* pool) { delete pool; }

void sw_pack_rows(Pool* pool, const sw_weight* weight, const sw_source* source, int rows, const int32_t* destination) {
  in_pieces(pool, rows, [=](int first, int count) {
    sw_kernels().pack_rows(*weight, *source, first, count, destination);
  });
}

/* Plain rows [rows, columns], one after another. */
void sw_convert_rows(Pool* pool, const sw_source* source, int rows, int columns, void* out, int out_dtype) {
  in_pieces(pool, rows, [=](int first, int count) {
    sw_kernels().convert_rows(*source, columns, first, count, out, out_dtype);
  });
}

/* Codes of four or eight bits, or e4m3, by rounding to the nearest what the numbers are in `through`. */
void sw_round_rows(Pool* pool, const sw_source* source, int rows, int columns, int through, int dtype, int group,
                   uint8_t* codes, float* scales, float* minimums) {
  in_pieces(pool, rows, [=](int first, int count) {
    sw_kernels().round_rows(*source, columns, first, count, through, {dtype, group, codes, scales, minimums});
  });
}

void sw_pack_codes(Pool* pool, const sw_weight* weight, const uint8_t* codes, size_t code_stride, const char* scales,
                   const char* minimums, int rows, const int32_t* destination) {
  size_t scale_stride = (weight->k + weight->group - 1) / weight->group * (weight->scale_dtype == SW_FP16 ? 2 : 4);
  in_pieces(are_apart(destination, rows) ? pool : nullptr, rows, [=](int first, int count) {
    sw_kernels().pack_codes(*weight, codes + first * code_stride, code_stride, scales + first * scale_stride,
                            minimums ? minimums + first * scale_stride : nullptr, count, destination + first);
  });
}

void sw_read_rows(const sw_weight* weight, const int32_t* rows, int count, float* out) {
  for (int i = 0; i < count; ++i) sw_kernels().read_row(*weight, rows[i], 1.0f, out + size_t(i) * weight->k);
}

size_t sw_weight_bytes(const sw_weight* weight) { return (weight->n + 31) / 32 * sw_block_bytes(*weight); }

size_t sw_page_layer_bytes(int kv_heads, int head_dim, int block, int dtype) {
  return sw_layer_bytes(kv_heads, head_dim, block, dtype);
}

Program* sw_program_create(const sw_slots* slots, int max_tokens, int dtype, Pool* pool, int vocab, int max_top,
                           void* pages, int num_pages, size_t page_bytes, const int32_t* blocks) {
  return new Program(slots, max_tokens, dtype, pool, vocab, max_top, static_cast<char*>(pages), num_pages, page_bytes,
                     blocks);
}
void sw_program_destroy(Program* program) { delete program; }
size_t sw_program_bytes(const Program* program) { return program->workspace_bytes(); }

void sw_store_kv_as(Program* p, int stored) { p->stored = stored; }
void sw_scale_kv(Program* p, int group, int layer, float key, float value) {
  p->scale_kv(group, layer, key, value);
}
/* found [2]: what keys and values of a layer are divided by. */
void sw_kv_scales(Program* p, int group, int layer, float* found) {
  Program::KvScale scale = p->kv_scale(group, layer);
  found[0] = scale.key;
  found[1] = scale.value;
}
void sw_find_kv_scales(Program* p, float key_divisor, float value_divisor) {
  p->key_divisor = key_divisor;
  p->value_divisor = value_divisor;
}

Ranks* sw_ranks_create(int rank, int size, int threads, void* memory, size_t bytes, sw_exchange exchange) {
  return new Ranks(rank, size, threads, memory, bytes, exchange);
}
void sw_ranks_destroy(Ranks* ranks) { delete ranks; }
void sw_ranks_give_back(Ranks* ranks) { ranks->give_back(); }
void sw_ranks_leave(Ranks* ranks) { ranks->leave(); }
int sw_ranks_left(Ranks* ranks) { return ranks->left(); }

/* The program computes its part of what these compute; before any buffer of theirs. */
void sw_join(Program* p, Ranks* ranks) { p->ranks = ranks; }
int sw_buffer_of_ranks(Program* p, int width) { return p->add_buffer_of_ranks(width); }
void sw_draw_elsewhere(Program* p) { p->draws_elsewhere = true; }

int sw_buffer(Program* p, int width, int dtype) { return p->add_buffer(width, dtype, p->max_tokens); }
void* sw_buffer_at(Program* p, int buffer) { return p->buffers[buffer].shared->at; }
int sw_buffer_stride(Program* p, int buffer) { return p->buffers[buffer].stride; }
}

namespace {

template <class T>
T* add(Program* p) {
  p->operations.push_back(std::make_unique<T>());
  return static_cast<T*>(p->operations.back().get());
}

/* The operand of an operation added now. */
Input input(Program* p, int buffer) { return {buffer, p->buffers[buffer].copied}; }

/* The operand of a product with `weight`: where that is of integers, the codes, which sw_add_quantize has made.
 * Every thread has its copy of them. */
Input operand(Program* p, int buffer, const sw_weight& weight) {
  return sw_is_integers(weight.dtype) ? Input{p->buffers[buffer].codes, true} : input(p, buffer);
}

/* Marks what the operation added now writes. */
int written(Program* p, int buffer, bool copied = false) {
  p->buffers[buffer].copied = copied;
  return buffer;
}

}  // namespace

extern "C" {

void sw_add_embed(Program* p, const sw_weight* table, int out, float scale) {
  auto* o = add<Embed>(p);
  o->table = *table;
  o->out = written(p, out);
  o->scale = scale;
  p->num_embeddings = table->n;
}

void sw_add_embed_sum(Program* p, const sw_weight* table, int out, float scale, const float* positions,
                      const float* types, const int32_t* type_from) {
  auto* o = add<EmbedSum>(p);
  o->table = *table;
  o->out = written(p, out);
  o->scale = scale;
  o->positions = positions;
  o->types = types;
  o->type_from = type_from;
  p->num_embeddings = table->n;
}

void sw_add_layer_norm(Program* p, int x, const float* weight, const float* bias, int out, float eps, int keep) {
  auto* o = add<LayerNorm>(p);
  o->x = x;
  o->weight = weight;
  o->bias = bias;
  o->out = written(p, out, !keep);
  o->eps = eps;
  o->keep = keep;
}

void sw_add_rms_norm(Program* p, int x, const float* weight, int out, float eps, int add_one, int accumulate) {
  auto* o = add<RmsNorm>(p);
  o->x = x;
  o->weight = weight;
  o->out = written(p, out, !accumulate && x != out);
  o->eps = eps;
  o->add_one = add_one;
  o->accumulate = accumulate;
}

/* Quantize x for the products that follow. 0 where the norm before makes the codes beside its result, so that no
 * operation was added. */
int sw_add_quantize(Program* p, int x) {
  if (p->buffers[x].codes < 0) {
    int codes = p->add_buffer(p->buffers[x].width, SW_INT8, p->max_tokens);
    p->buffers[x].codes = codes;
  }
  auto* norm = p->operations.empty() ? nullptr : dynamic_cast<RmsNorm*>(p->operations.back().get());
  if (norm && norm->out == x && p->buffers[x].copied) {
    norm->codes = p->buffers[x].codes;
    return 0;
  }
  auto* o = add<Quantize>(p);
  o->x = input(p, x);
  o->out = p->buffers[x].codes;
  return 1;
}

void sw_add_linear(Program* p, int x, const sw_weight* weight, int out, const float* bias, int accumulate, int column,
                   int activation, int pointwise) {
  auto* o = add<Linear>(p);
  o->x = operand(p, x, *weight);
  o->weight = *weight;
  o->out = written(p, out);
  o->bias = bias;
  o->accumulate = accumulate;
  o->column = column;
  o->activation = activation;
  o->pointwise = pointwise;
}

void sw_add_rope_and_store(Program* p, int qkv, int q_out, int group, int layer, int heads, int kv_heads, int head_dim,
                           const float* cos_sin, int rotary_dim, const float* q_norm, const float* k_norm, float eps,
                           int add_one) {
  auto* o = add<RopeAndStore>(p);
  if (group == SW_STEP_GROUP) p->reserve_step_pages(kv_heads, head_dim);
  const Buffer& from = p->buffers[qkv];
  const Buffer& to = p->buffers[written(p, q_out)];
  o->group = group;
  o->layer = layer;
  o->rotary_dim = rotary_dim;
  o->shape = {heads, kv_heads, head_dim};
  o->q = static_cast<const float*>(from.shared->at);
  o->k = o->q + size_t(heads) * head_dim;
  o->v = o->k + size_t(kv_heads) * head_dim;
  o->stride = from.stride;
  o->q_out = to.shared->at;
  o->q_out_stride = to.stride;
  o->cos_sin = cos_sin;
  o->norm = {q_norm, k_norm, eps, add_one};
}

void sw_add_attention(Program* p, int q, int out, int group, int layer, int heads, int kv_heads, int head_dim,
                      float scale, int window, float softcap, int first) {
  auto* o = add<Attend>(p);
  o->plan = p->attention_plan(heads, kv_heads, window, group == SW_STEP_GROUP);
  const Buffer& from = p->buffers[q];
  const Buffer& to = p->buffers[written(p, out)];
  o->group = group;
  o->layer = layer;
  o->window = window;
  o->shape = {heads, kv_heads, head_dim};
  o->scale = scale;
  o->softcap = softcap;
  o->first = first;
  o->q = from.shared->at;
  o->q_stride = from.stride;
  o->out = to.shared->at;
  o->out_stride = to.stride;
}

void sw_add_moe(Program* p, int x, const sw_weight* router, const sw_weight* gate_up, const sw_weight* down, int first,
                int count, int out, int top_k, int normalize, int activation, int accumulate) {
  auto* o = add<MixtureOfExperts>(p);
  o->router_x = operand(p, x, *router);
  o->x = operand(p, x, gate_up[0]);
  o->out = written(p, out);
  o->top_k = top_k;
  o->normalize = normalize;
  o->activation = activation;
  o->router = *router;
  o->accumulate = accumulate;
  o->first_expert = first;
  o->gate_up.assign(gate_up, gate_up + count);
  o->down.assign(down, down + count);
  o->allocate(*p);
}

void sw_add_gate(Program* p, int x, int activation, int out) {
  auto* o = add<Gate>(p);
  o->x = x;
  o->activation = activation;
  o->out = written(p, out);
}

void sw_add_add_gated(Program* p, int y, int gate, int out) {
  auto* o = add<AddGated>(p);
  o->y = y;
  o->gate = gate;
  o->out = written(p, out);
}

void sw_add_head(Program* p, int x, const float* norm_weight, const sw_weight* weight, float eps, int add_one,
                 const float* bias, float softcap, const int32_t* tokens) {
  int normed = p->add_buffer(p->buffers[x].width, p->dtype, SW_LOGIT_ROWS);
  auto* o = add<Head>(p);
  o->x = x;
  o->norm_weight = norm_weight;
  o->weight = *weight;
  o->eps = eps;
  o->add_one = add_one;
  o->bias = bias;
  o->softcap = softcap;
  o->tokens = tokens;
  o->normed = normed;
  if (sw_is_integers(weight->dtype)) o->codes = p->add_buffer(p->buffers[x].width, SW_INT8, SW_LOGIT_ROWS);
  auto logits_of = [](size_t stride) { return std::make_unique<Memory>(SW_LOGIT_ROWS * stride * sizeof(float)); };
  o->logits = logits_of(p->logits_stride());
  if (tokens) o->few = logits_of(o->logits_stride(*p));
}

void sw_add_hidden(Program* p, int x, const float* norm_weight, float eps, int add_one) {
  auto* o = add<Hidden>(p);
  o->x = x;
  o->norm_weight = norm_weight;
  o->eps = eps;
  o->add_one = add_one;
}

/* The table that was added last has rows from this token on, of so many. */
void sw_shard_embed(Program* p, int first, int tokens) {
  static_cast<Embed*>(p->operations.back().get())->first_token = first;
  p->num_embeddings = tokens;
}
/* The first of ranks draws for all what the head that was added last makes logits of. tokens_from  [ranks + 1]: of
 * which tokens each has the weights; null: it has all. 0 where the memory of the ranks is used up. */
int sw_share_head(Program* p, const int* tokens_from) {
  auto* o = static_cast<Head*>(p->operations.back().get());
  o->drawn = static_cast<sw_drawn*>(p->ranks->take(p->max_tokens * sizeof(sw_drawn) * p->ranks->size));
  if (!o->drawn) return 0;
  if (!tokens_from) return 1;
  o->tokens_from.assign(tokens_from, tokens_from + p->ranks->size + 1);
  /* Products write whole blocks of 32 columns: those of one rank end where the next one's begin, or stand apart. */
  bool stands_apart = !p->ranks->shares_memory();
  for (int rank = 0; rank < p->ranks->size; ++rank) stands_apart |= tokens_from[rank] % 32 != 0;
  size_t bytes = SW_LOGIT_ROWS * p->logits_stride() * sizeof(float);
  if (stands_apart) bytes = SW_LOGIT_ROWS * o->part_stride() * sizeof(float) * p->ranks->size;
  void* found = p->ranks->take(bytes);
  if (!found) return 0;
  if (!stands_apart)
    o->logits = std::make_unique<Memory>(found, bytes);
  else
    o->parts = static_cast<float*>(found);
  return 1;
}

void sw_add_from_ranks(Program* p, int from, int out, int accumulate) {
  auto* o = add<FromRanks>(p);
  o->from = from;
  o->out = written(p, out);
  o->accumulate = accumulate;
}

void sw_add_given(Program* p, const float* from, int out) {
  auto* o = add<Given>(p);
  o->from = from;
  o->out = written(p, out);
}

void sw_add_tap(Program* p, int x, const float* norm_weight, float eps, int add_one, float* to) {
  auto* o = add<Tap>(p);
  o->x = x;
  o->norm_weight = norm_weight;
  o->eps = eps;
  o->add_one = add_one;
  o->to = to;
}

void sw_add_activate(Program* p, int x, const float* bias, int activation, int out, int accumulate) {
  auto* o = add<Activate>(p);
  o->x = input(p, x);
  o->bias = bias;
  o->activation = activation;
  o->out = written(p, out);
  o->accumulate = accumulate;
}

/* A whole step; -1 where the plan contradicts the slots, -2 where a rank has left. */
int sw_step(Program* p, const sw_plan* plan, const sw_output* output) {
  if (!p->prepare(*plan, *output)) return -1;
  if (p->num_rows > 0) p->run();
  if (p->ranks && p->ranks->left()) return -2;
  p->conclude();
  return p->num_rows;
}

/* From now on add each operation's seconds to `seconds`, in their order; null ends it. */
void sw_measure(Program* p, double* seconds) { p->seconds = seconds; }

/* The same step in pieces, for a model that computes elsewhere and keeps its cache here. */
int sw_prepare(Program* p, const sw_plan* plan, const sw_output* output) {
  return p->prepare(*plan, *output) ? p->num_rows : -1;
}
const int32_t* sw_row_tokens(Program* p) { return p->token.data(); }
const int32_t* sw_row_positions(Program* p) { return p->position.data(); }
int sw_logit_rows(Program* p, int32_t* rows) {
  for (size_t i = 0; i < p->logit_rows.size(); ++i) rows[i] = p->logit_rows[i].row;
  return int(p->logit_rows.size());
}

void sw_store_kv(Program* p, int group, int layer, int kv_heads, int head_dim, const float* k, const float* v,
                 size_t stride) {
  RopeAndStore o;
  o.group = group;
  o.layer = layer;
  o.rotary_dim = 0;
  o.shape = {kv_heads, kv_heads, head_dim};
  o.q = nullptr;
  o.k = k;
  o.v = v;
  o.stride = stride;
  o.q_out = nullptr;
  o.q_out_stride = 0;
  o.cos_sin = nullptr;
  o.norm = {nullptr, nullptr, 0.0f, 0};
  p->run_one(o);
}

void sw_attend(Program* p, int group, int layer, int heads, int kv_heads, int head_dim, const void* q, size_t q_stride,
               void* out, size_t out_stride, float scale, int window, float softcap) {
  Attend o;
  o.plan = p->attention_plan(heads, kv_heads, window, group == SW_STEP_GROUP);
  o.group = group;
  o.layer = layer;
  o.window = window;
  o.shape = {heads, kv_heads, head_dim};
  o.scale = scale;
  o.softcap = softcap;
  o.q = q;
  o.q_stride = q_stride;
  o.out = out;
  o.out_stride = out_stride;
  p->run_one(o);
}

void sw_draw(Program* p, float* logits, size_t stride) {
  Draw o;
  o.logits = logits;
  o.stride = stride;
  o.count = int(p->logit_rows.size());
  p->run_one(o);
}

void sw_conclude(Program* p) { p->conclude(); }

size_t sw_code_stride(int width) { return sw_code_row_bytes(width); }

/* The rows of x as weights of integers multiply them, sw_code_stride bytes from one to the next. */
void sw_quantize_rows(const char* x, int dtype, size_t x_stride, int rows, int width, char* codes) {
  for (int row = 0; row < rows; ++row)
    sw_kernels().quantize_row(x + row * x_stride * element_bytes(dtype), dtype, width,
                              codes + row * sw_code_stride(width));
}

/* Rows of a GGUF block type into a weight of the form that holds it exactly. */
void sw_pack_blocks(Pool* pool, const sw_weight* weight, int type, const uint8_t* blocks, size_t row_bytes, int rows,
                    const int32_t* destination) {
  in_pieces(are_apart(destination, rows) ? pool : nullptr, rows, [=](int first, int count) {
    sw_kernels().pack_blocks(*weight, type, blocks + first * row_bytes, row_bytes, count, destination + first);
  });
}

/* How a step's attention is dealt out: the splits of each unit in the order in which threads claim them, `room` of
 * them at most; returns how many units there are. Requests have rows from their first positions on. */
int sw_attention_units(int requests, const int32_t* rows, const int32_t* first_positions, int heads, int kv_heads,
                       int window, int threads, size_t most_parts, int32_t* splits, int room) {
  std::vector<AttentionPlan::Rows> step;
  for (int r = 0; r < requests; ++r) step.push_back({r, 0, rows[r], first_positions[r]});
  AttentionPlan plan{heads, kv_heads, window, false, {}, false};
  plan.make(step, threads, most_parts);
  int count = 0;
  for (const auto& share : plan.shares)
    for (int i = 0; i < share.units(kv_heads); ++i, ++count) {
      AttentionPlan::Unit unit = plan.unit(share, i);
      if (count < room) splits[count] = unit.end - unit.begin;
    }
  return count;
}

/* The same of a product with experts, whose rows stand at offsets [experts + 1]: an expert, rows and blocks a unit. */
int sw_expert_units(const int32_t* offsets, int experts, int blocks, int threads, int32_t* units, int room) {
  ExpertPlan plan;
  plan.make(offsets, experts);
  ExpertPlan::Cut cut = plan.cut(blocks, threads);
  int count = 0;
  for (const auto& share : plan.shares)
    for (int i = 0; i < cut.units(share); ++i, ++count) {
      ExpertPlan::Unit unit = ExpertPlan::unit(share, cut, blocks, i);
      int32_t found[] = {share.expert, unit.last - unit.first, unit.end - unit.begin};
      if (count < room) std::copy(found, found + 3, units + 3 * count);
    }
  return count;
}

/* One product outside of any program. */
void sw_linear(Pool* pool, const void* x, size_t x_stride, int rows, const sw_weight* weight, float* out,
               size_t out_stride, const float* bias) {
  struct Call {
    Product product;
    int rows, blocks, chunk;
    std::atomic<int> next{0};
  };
  int n = weight->n;
  Call call{{x, x_stride, *weight, n, out, out_stride, SW_FP32, bias, 0, 0, 0.0f}, rows, (n + 31) / 32, 1};
  call.chunk = std::min(32, std::max(2, call.blocks / (pool->size() * 8) / 2 * 2));
  pool->run(
      [](void* argument, int) {
        Call& c = *static_cast<Call*>(argument);
        for (int b = c.next.fetch_add(c.chunk); b < c.blocks; b = c.next.fetch_add(c.chunk))
          sw_kernels().linear(c.product, 0, c.rows, b, std::min(b + c.chunk, c.blocks));
      },
      &call);
}

}  // extern "C"
