#include "program.h"

#include <algorithm>
#include <chrono>

namespace {

/* Elements from row to row: whole vectors, and an odd number of cache lines. At 4,096 bytes, the width of many
 * models, all rows of a register tile would fall into one set of the first-level cache. */
int padded_width(int width, int dtype) {
  if (dtype == SW_INT8) return int(sw_code_row_bytes(width));
  int line = dtype == SW_BF16 ? 32 : 16;
  int lines = (width + 31) / 32 * 32 / line;
  return (lines | 1) * line;
}

}  // namespace

size_t sw_layer_bytes(int kv_heads, int head_dim, int block, int dtype) {
  size_t scales = dtype == SW_INT8 ? 2 * size_t(kv_heads) * block * sizeof(float) : 0;
  return sw_kv_bytes(kv_heads, head_dim, block, dtype) + (scales + 63) / 64 * 64;
}

int Worker::claim(int count) {
  return program.counters[phase % 3].next.fetch_add(count, std::memory_order_relaxed);
}

Units Worker::claim_near(int total, int count) {
  enum { LEAST = 16 }; /* units of a thread: fewer have no share */
  int threads = program.pool->size();
  if (total < LEAST * threads) {
    int begin = claim(count);
    return begin < total ? Units{begin, std::min(begin + count, total)} : Units{0, 0};
  }
  for (; helped < threads; ++helped) {
    int share = (thread + helped) % threads;
    auto border = [&](int of) { return int(size_t(total) * of / threads); };
    int begin = border(share) + program.shares[phase % 3][share].next.fetch_add(count, std::memory_order_relaxed);
    if (begin < border(share + 1)) return {begin, std::min(begin + count, border(share + 1))};
  }
  return {0, 0};
}

void Worker::barrier() {
  program.pool->barrier();
  next_phase();
}

void Worker::next_phase() {
  ++phase, helped = 0;
  /* The phase before last has ended on every thread: its counter serves the next phase. */
  if (thread == 0) program.clear_counters(phase + 1);
}

void Worker::meet(const Parts& parts) {
  if (program.ranks->shares_memory()) {
    program.ranks->meet();
  } else {
    program.pool->barrier();
    if (thread == 0) program.ranks->exchange(parts);
    program.pool->barrier();
  }
  next_phase();
}

void* Worker::scratch() const { return program.thread_scratch[thread]->at; }

Program::Program(const sw_slots* slots, int max_tokens, int dtype, Pool* pool, int vocab, int max_top, char* pages,
                 int num_pages, size_t page_bytes, const int32_t* blocks)
    : slots(slots),
      max_tokens(max_tokens),
      dtype(dtype),
      pool(pool),
      vocab(vocab),
      max_top(max_top),
      pages(pages),
      num_pages(num_pages),
      page_bytes(page_bytes),
      blocks(blocks, blocks + slots->num_groups),
      stored(dtype) {
  scratch_bytes = std::max(sw_attention_scratch_bytes(), sw_sample_scratch_bytes(vocab));
  for (int i = 0; i < pool->size(); ++i) thread_scratch.push_back(std::make_unique<Memory>(scratch_bytes));
  for (auto& each : shares) each = std::vector<Counter>(pool->size());
  token.resize(max_tokens);
  position.resize(max_tokens);
  request.resize(max_tokens);
  last_of_request.resize(max_tokens);
}

int Program::add_buffer(int width, int buffer_dtype, int rows) {
  Buffer buffer{};
  buffer.width = width;
  buffer.dtype = buffer_dtype;
  buffer.stride = padded_width(width, buffer_dtype);
  size_t row_bytes = size_t(buffer.stride) * ::element_bytes(buffer_dtype);
  buffer.shared = std::make_unique<Memory>(row_bytes * rows);
  buffer.copies = std::make_unique<Memory>(row_bytes * SW_COPIED_ROWS * pool->size());
  buffers.push_back(std::move(buffer));
  return int(buffers.size()) - 1;
}

int Program::add_buffer_of_ranks(int width) {
  Buffer buffer{};
  buffer.width = width;
  buffer.dtype = SW_FP32;
  buffer.stride = padded_width(width, SW_FP32);
  size_t floats = size_t(buffer.stride) * max_tokens;
  buffer.of_ranks = static_cast<float*>(ranks->take(floats * sizeof(float) * ranks->size));
  if (!buffer.of_ranks) return -1;
  buffer.shared = std::make_unique<Memory>(buffer.of_ranks + ranks->rank * floats, floats * sizeof(float));
  buffers.push_back(std::move(buffer));
  return int(buffers.size()) - 1;
}

size_t Program::workspace_bytes() const {
  size_t bytes = 0;
  auto add = [&bytes](const std::unique_ptr<Memory>& memory) { bytes += bytes_of(memory); };
  for (const auto& operation : operations) bytes += operation->bytes();
  for (const Buffer& buffer : buffers) add(buffer.shared), add(buffer.copies);
  for (const auto& scratch : thread_scratch) add(scratch);
  for (const auto* memory : {&attention_parts, &step_pages, &shrunk, &apart}) add(*memory);
  return bytes;
}

Parts Program::parts_of(int buffer) const {
  const Buffer& b = buffers[buffer];
  size_t row = b.stride * sizeof(float);
  return {reinterpret_cast<char*>(b.of_ranks), num_rows * row, max_tokens * row};
}

int Program::attention_plan(int heads, int kv_heads, int window, bool both_ways) {
  /* As much as a dozen requests of the greatest length take that have a row each. */
  size_t splits = (slots->max_len + SW_SPLIT - 1) / SW_SPLIT;
  size_t bytes = splits * heads * SW_ROWS * SW_PART * sizeof(float);
  if (!attention_parts || attention_parts->bytes < bytes) attention_parts = std::make_unique<Memory>(bytes);
  for (size_t i = 0; i < attention_plans.size(); ++i) {
    const AttentionPlan& plan = attention_plans[i];
    if (plan.heads == heads && plan.kv_heads == kv_heads && plan.window == window && plan.both_ways == both_ways)
      return int(i);
  }
  attention_plans.push_back({heads, kv_heads, window, both_ways, {}, false, sw_kernels().queries});
  attention_plans.back().make(sequences, pool->size(), most_parts());
  return int(attention_plans.size()) - 1;
}

void Program::reserve_step_pages(int kv_heads, int head_dim) {
  int blocks = max_tokens / SW_STEP_BLOCK + slots->num_slots; /* a request's last block may be short */
  size_t bytes = blocks * sw_layer_bytes(kv_heads, head_dim, SW_STEP_BLOCK, dtype);
  if (!step_pages || step_pages->bytes < bytes) step_pages = std::make_unique<Memory>(bytes);
  step_blocks.resize(blocks);
  for (int i = 0; i < blocks; ++i) step_blocks[i] = i;
  first_step_block.resize(slots->num_slots);
}

LayerPages Program::layer_pages(int group, int layer, int kv_heads, int head_dim) const {
  if (group == SW_STEP_GROUP)
    return {static_cast<char*>(step_pages->at), sw_layer_bytes(kv_heads, head_dim, SW_STEP_BLOCK, dtype),
            SW_STEP_BLOCK, kv_heads, head_dim, dtype, dtype, 1.0f, 1.0f};
  LayerPages found{pages + layer * sw_layer_bytes(kv_heads, head_dim, blocks[group], stored),
                   page_bytes, blocks[group], kv_heads, head_dim, dtype, stored, 1.0f, 1.0f};
  KvScale scale = kv_scale(group, layer);
  found.key_scale = scale.key, found.value_scale = scale.value;
  return found;
}

Program::KvScale Program::kv_scale(int group, int layer) const {
  for (const KvScale& scale : kv_scales)
    if (scale.group == group && scale.layer == layer) return scale;
  return {group, layer, 1.0f, 1.0f};
}

void Program::scale_kv(int group, int layer, float key, float value) {
  for (KvScale& scale : kv_scales)
    if (scale.group == group && scale.layer == layer) {
      scale = {group, layer, key, value};
      return;
    }
  kv_scales.push_back({group, layer, key, value});
}

const int32_t* Program::table(int group, int slot) const {
  if (group == SW_STEP_GROUP) return step_blocks.data() + first_step_block[slot];
  return slots->block_table + (size_t(group) * slots->num_slots + slot) * slots->max_blocks;
}

int Program::rows_of(int slot, int num_new, int num_drafts) const {
  if (slot < 0 || slot >= slots->num_slots || num_drafts < 0 || num_new < num_drafts) return -1;
  int known = slots->num_tokens[slot], begin = slots->num_computed[slot], left = known - begin;
  int rows = num_new - num_drafts;
  if (begin < 0 || known > slots->max_len || rows > left || (num_drafts > 0 && rows < left)) return -1;
  rows += std::max(0, std::min({num_drafts, slots->num_drafts[slot], slots->max_len - 1 - known}));
  if (slots->adapter[slot] >= num_adapters) return -1;
  for (int at = std::max(begin, slots->num_given[slot]); at < begin + rows; ++at) {
    int id = slots->tokens[size_t(slot) * slots->max_len + at];
    if (id < 0 || (id >= num_embeddings && id >= vocab_of(slot))) return -1;
  }
  if (rows == 0) return 0;
  for (int group = 0; group < slots->num_groups; ++group) {
    int last = (begin + rows - 1) / blocks[group];
    if (last >= slots->max_blocks) return -1;
    for (int b = begin / blocks[group]; b <= last; ++b)
      if (table(group, slot)[b] < 0 || table(group, slot)[b] >= num_pages) return -1;
  }
  return rows;
}

bool Program::prepare(const sw_plan& new_plan, const sw_output& new_output) {
  plan = new_plan;
  output = new_output;
  num_rows = 0;
  int step_block = 0;
  logit_rows.clear();
  sequences.clear();
  for (int r = 0; r < plan.num_requests; ++r) {
    int slot = plan.slots[r], rows = rows_of(slot, plan.num_new[r], plan.num_drafts[r]);
    if (rows < 0 || num_rows + rows > max_tokens) return false;
    int known = slots->num_tokens[slot], computed = slots->num_computed[slot];
    if (step_pages) {
      if (rows > 0 && (computed > 0 || rows < known)) return false;
      first_step_block[slot] = step_block;
      step_block += (rows + SW_STEP_BLOCK - 1) / SW_STEP_BLOCK;
    }
    const sw_sampling& sampling = slots->sampling[slot];
    const int32_t* tokens = slots->tokens + size_t(slot) * slots->max_len;
    const uint32_t* mask = plan.masks ? plan.masks[r] : nullptr;
    bool pooled = slots->pooled[slot];
    int first_drawn = pooled ? rows : std::clamp(known - 1 - computed, 0, rows);
    output.requests[r] = {num_rows, num_rows + first_drawn, 0, 0};
    if (rows > 0) sequences.push_back({r, num_rows, rows, computed});
    for (int i = 0; i < rows; ++i, ++num_rows) {
      int at = computed + i;
      token[num_rows] = tokens[at];
      position[num_rows] = at;
      request[num_rows] = r;
      last_of_request[num_rows] = i + 1 == rows;
      output.rows[num_rows] = {-1, 0, 0.0f, 0};
      if (pooled) continue;
      if (at + 1 >= known)
        logit_rows.push_back({num_rows, slot, -1, mask ? mask + size_t(at + 1 - known) * ((vocab + 31) / 32) : nullptr,
                              nullptr});
      else if (sampling.num_prompt_logprobs >= 0 && at + 1 >= sampling.prompt_logprobs_from &&
               at + 1 < slots->prompt_len[slot])
        logit_rows.push_back({num_rows, slot, tokens[at + 1], nullptr, nullptr});
    }
  }
  for (AttentionPlan& made : attention_plans) made.make(sequences, pool->size(), most_parts());
  if (num_adapters) sort_by_adapter();
  return true;
}

namespace {

struct Region {
  Program* program;
  const Operation* only;
};

void run_region(void* argument, int thread) {
  Region& region = *static_cast<Region*>(argument);
  Worker worker{*region.program, thread};
  if (region.only) {
    region.only->run(worker);
    return;
  }
  double* seconds = thread == 0 ? region.program->seconds : nullptr;
  auto& operations = region.program->operations;
  for (size_t i = 0; i < operations.size(); ++i) {
    auto begun = seconds ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
    bool has_written = operations[i]->run(worker);
    int meets = i + 1 < operations.size() ? operations[i + 1]->meets() : -1;
    if (meets >= 0)
      worker.meet(region.program->parts_of(meets));
    else if (has_written)
      worker.barrier();
    if (seconds)
      *seconds++ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  }
}

}  // namespace

void Program::clear_counters(int phase) {
  counters[phase % 3].next.store(0, std::memory_order_relaxed);
  for (Counter& share : shares[phase % 3]) share.next.store(0, std::memory_order_relaxed);
}

void Program::run() {
  for (int phase = 0; phase < 3; ++phase) clear_counters(phase);
  Region region{this, nullptr};
  pool->run(run_region, &region);
}

void Program::run_one(const Operation& operation) {
  for (int phase = 0; phase < 3; ++phase) clear_counters(phase);
  Region region{this, &operation};
  pool->run(run_region, &region);
}

void Program::edit(Worker& worker, const float* logits, size_t stride, int first, int count) {
  if (worker.thread == 0) {
    std::vector<int32_t> places, requests;
    std::vector<const float*> rows;
    for (int i = first; i < first + count; ++i) {
      int of = request[logit_rows[i].row];
      if (!plan.edits[of] || logit_rows[i].given >= 0) continue;
      places.push_back(i);
      requests.push_back(of);
      rows.push_back(logits + (i - first) * stride);
    }
    std::vector<const float*> edited(rows.size());
    if (!rows.empty()) plan.edit(int(rows.size()), requests.data(), rows.data(), edited.data());
    for (size_t i = 0; i < places.size(); ++i) logit_rows[places[i]].edited = edited[i];
  }
  worker.barrier();
}

void Program::draw(Worker& worker, float* logits, size_t stride, int first, int count) const {
  for (int i = worker.claim(1); i < count; i = worker.claim(1)) {
    const LogitRow& row = logit_rows[first + i];
    const sw_sampling& sampling = slots->sampling[row.slot];
    int logprobs = row.given >= 0 ? sampling.num_prompt_logprobs : sampling.num_logprobs;
    int top = std::min(std::max(logprobs, 0), max_top);
    size_t first_top = size_t(row.row) * max_top;
    const int32_t* tokens = slots->tokens + size_t(row.slot) * slots->max_len;
    int at = position[row.row] + 1;
    bool judges = slots->posterior_alpha > 0 && row.given < 0 && !last_of_request[row.row];
    sw_draft draft{judges ? tokens[at] : -1, slots->posterior_threshold, slots->posterior_alpha};
    /* Masks and edited rows are as wide as the model's vocabulary. */
    int width = row.mask || row.edited ? vocab : vocab_of(row.slot);
    sw_sample_row(&sampling, logits + i * stride, row.edited, row.mask, width, tokens, at, slots->prompt_len[row.slot],
                  row.given, judges ? &draft : nullptr, logprobs >= 0, top, worker.scratch(), output.rows + row.row,
                  output.top_ids + first_top, output.top_logprobs + first_top);
  }
}

void Program::conclude() {
  if (num_rows > 0) key_divisor = value_divisor = 0.0f;
  for (int r = 0; r < plan.num_requests; ++r) {
    int slot = plan.slots[r], end = end_of(r);
    sw_advance& made = output.requests[r];
    int32_t* tokens = slots->tokens + size_t(slot) * slots->max_len;
    slots->num_computed[slot] += made.first_drawn - made.first_row;
    if (draws_elsewhere) continue;
    if (made.first_drawn < end) slots->num_drafts[slot] = 0; /* those not verified were guesses for this draw */
    bool accepted = true;
    for (int row = made.first_drawn; row < end && accepted; ++row) {
      const sw_drawn& drawn = output.rows[row];
      int at = position[row] + 1;
      ++slots->num_computed[slot];
      made.failed = drawn.failed;
      made.num_drawn += !drawn.failed;
      accepted = !drawn.failed && row + 1 < end && tokens[at] == drawn.token;
      if (at == slots->max_len) break;
      tokens[at] = std::max(drawn.token, 0); /* also where it failed: a step planned meanwhile computes it */
      slots->num_tokens[slot] = at + 1;
    }
  }
}

namespace {

/* Blocks of a unit: enough units for an even finish, and pairs of blocks, which small products read together. */
int blocks_together(int blocks, int threads) {
  return blocks < 4 * threads ? 1 : std::min(32, std::max(2, blocks / (threads * 8) / 2 * 2));
}

/* Parts of a prompt's rows that threads have for themselves. Rows of one thread's caches come sooner than those of
 * another's, but each part reads all of W, from memory where it is large; integers are unfolded for each part, too. */
int parts_of_rows(const Product& product, int rows, int threads) {
  enum { SMALL = 16 << 20, LEAST = 128 };
  size_t bytes = size_t(product.w.k) * product.n * element_bytes(product.w.dtype);
  int least = bytes <= SMALL && !sw_is_integers(product.w.dtype) ? int(LEAST) : 2 * LEAST, parts = 1;
  while (parts < threads && rows / (parts * 2) >= least) parts *= 2;
  return parts;
}

}  // namespace

void run_product(Worker& worker, const Product& product, int rows, int base, int unit) {
  int blocks = (product.n + 31) / 32, threads = worker.program.pool->size();
  int chunk = blocks_together(blocks, threads), columns = (blocks + chunk - 1) / chunk, parts = 1;
  while (columns * parts < 4 * threads && rows / (parts * 2) >= 2 * SW_ROWS) parts *= 2;
  int part_rows = (rows + parts - 1) / parts;
  Product told = product;
  told.next_unit = threads * chunk; /* units of a column of blocks are next to each other */
  for (; unit < base + columns * parts; unit = worker.claim(1)) {
    int row = (unit - base) % parts * part_rows, block = (unit - base) / parts * chunk;
    sw_kernels().linear(told, row, std::min(row + part_rows, rows), block, std::min(block + chunk, blocks));
  }
}

void run_product(Worker& worker, const Product& product, int rows) {
  int blocks = (product.n + 31) / 32, threads = worker.program.pool->size();
  int parts = parts_of_rows(product, rows, threads);
  if (parts == 1) return run_product(worker, product, rows, 0, worker.claim(1));
  int part_rows = (rows + parts - 1) / parts, chunk = blocks_together(blocks, (threads + parts - 1) / parts);
  Product told = product;
  told.next_unit = chunk;
  for (Units units; (units = worker.claim_near(blocks * parts, chunk)).begin < units.end;)
    for (int unit = units.begin, end; unit < units.end; unit = end) {
      int part = unit / blocks, row = part * part_rows;
      end = std::min(units.end, (part + 1) * blocks);
      sw_kernels().linear(told, row, std::min(row + part_rows, rows), unit - part * blocks, end - part * blocks);
    }
}
