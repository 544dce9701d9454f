/* A model as a flat list of operations over fixed buffers; a step is one parallel region that runs the list. */
#ifndef SLIPWAY_PROGRAM_H
#define SLIPWAY_PROGRAM_H

#include <memory>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "pool.h"
#include "../attention/plan.h"
#include "../collective/ranks.h"

/* Of a buffer's element. The stride of a buffer of codes counts bytes. */
inline int element_bytes(int dtype) { return dtype == SW_BF16 ? 2 : dtype == SW_INT8 ? 1 : 4; }

/* Units of work, [begin, end). */
struct Units {
  int begin, end;
};

/* One of the pool's threads within a step. Units of work are claimed from a counter that all share; there is
 * one counter for the phase at hand, and the next one is cleared before the barrier that opens it. */
struct Worker {
  struct Program& program;
  int thread;
  int phase = 0;

  int claim(int count);
  /* Claims at most `count` of `total` units, which lie in the order of the step's rows; none where all are claimed. Each
   * thread has a share of its own, so that rows stay in its caches from one operation to the next, and helps others when
   * that is done. A phase has no claim() beside it. */
  Units claim_near(int total, int count);
  void barrier();
  /* A barrier of all ranks, behind which each has these parts of all. */
  void meet(const Parts&);
  int turn = 0;   /* of the two rooms in which ranks have parts of A · x, the next one */
  int helped = 0; /* shares of the phase that are done, its own first */
  void* scratch() const;

 private:
  void next_phase();
};

/* [rows, width]. Where a step has few rows, a normalised buffer has a copy per thread: computing the norm on
 * every thread costs less than a barrier. */
struct Buffer {
  int width, dtype, stride;
  std::unique_ptr<Memory> shared, copies;
  bool copied = false; /* the last operation that wrote it makes copies */
  int codes = -1; /* the buffer that holds its rows quantized, where an operation wants them */
  float* of_ranks = nullptr; /* [ranks, max_tokens, stride]  in their memory; this rank's is `shared` */
};

/* Rows of a step, those of one adapter together; lora/kernel.cpp */
struct RowsByAdapter {
  struct Tile {
    int adapter, first, count; /* of `rows`; adapter -1: none */
  };
  std::vector<int32_t> rows;
  std::vector<Tile> tiles;   /* those without an adapter last */
  std::vector<int> adapters; /* each that any row asks for */
  int adapted = 0;           /* rows that ask for one: the first ones */
  /* adapter_of: each row's, below num_adapters; -1: none */
  void sort(const std::vector<int32_t>& adapter_of, int num_adapters);
};

/* Rows of A · x, by their place in the order. */
struct LowRankRows {
  char* at;
  size_t stride; /* elements */
  int dtype;
  char* row(int place) const { return at + place * stride * element_bytes(dtype); }
};

class Operation {
 public:
  virtual ~Operation() = default;
  /* On every thread. True where the next operation needs a barrier first. */
  virtual bool run(Worker&) const = 0;
  /* The buffer of which it reads what all ranks have written: they meet before. Below 0: none. */
  virtual int meets() const { return -1; }
  /* What it has mapped for itself. */
  virtual size_t bytes() const { return 0; }
};

enum { SW_COPIED_ROWS = 4, SW_LOGIT_ROWS = 64 };
/* Instead of a KV group: pages that last for the step and serve one layer after another, of SW_STEP_BLOCK
 * positions each. A request then computes its whole prompt in one step, and its rows see those after them. */
enum { SW_STEP_GROUP = -1, SW_STEP_BLOCK = 16 };

struct Program {
  Program(const sw_slots* slots, int max_tokens, int dtype, Pool* pool, int vocab, int max_top, char* pages,
          int num_pages, size_t page_bytes, const int32_t* blocks);

  /* What the step computes, derived from the plan and the slots. False where the plan does not fit: a wrong
   * slot, token or page must not become an address. */
  bool prepare(const sw_plan& plan, const sw_output& output);
  void run();
  void run_one(const Operation& operation);
  /* Draw the tokens of logit rows [first, first + count) from `logits`; on every thread. */
  void draw(Worker& worker, float* logits, size_t stride, int first, int count) const;
  /* Append what was drawn and advance the slots. */
  void conclude();

  /* A row whose logits are asked for: `given` is the prompt token that follows, or -1 to draw one. */
  struct LogitRow {
    int row, slot, given;
    const uint32_t* mask; /* of the tokens that may be drawn, or null */
    const float* edited;  /* what is drawn from instead, or null */
  };

  /* The rows that a request gets, drafts included; -1 where its grant does not fit the slot. */
  int rows_of(int slot, int num_new, int num_drafts) const;
  /* The end of a request's rows. */
  int end_of(int r) const { return r + 1 < plan.num_requests ? output.requests[r + 1].first_row : num_rows; }
  int element_bytes() const { return ::element_bytes(dtype); }
  int add_buffer(int width, int buffer_dtype, int rows);
  /* In the memory of the ranks, one for each. Below 0 where that is used up. */
  int add_buffer_of_ranks(int width);
  Parts parts_of(int buffer) const;
  bool is_first_rank() const { return !ranks || ranks->rank == 0; }
  /* What it has mapped beside weights, slots and pages; only what steps touch takes memory. */
  size_t workspace_bytes() const;
  /* The number of the plan of such layers, with room for it. */
  int attention_plan(int heads, int kv_heads, int window, bool both_ways);
  void reserve_step_pages(int kv_heads, int head_dim);
  bool copies_now() const { return num_rows <= SW_COPIED_ROWS; }
  LayerPages layer_pages(int group, int layer, int kv_heads, int head_dim) const;
  void scale_kv(int group, int layer, float key, float value);
  /* Has the caller edit rows of logits [count] from `first` on; every thread comes here, and none goes on before. */
  void edit(Worker& worker, const float* logits, size_t stride, int first, int count);
  const int32_t* table(int group, int slot) const;

  const sw_slots* slots;
  Ranks* ranks = nullptr; /* null: this one computes alone */
  int max_tokens, dtype;
  Pool* pool;
  int vocab, max_top;
  char* pages;
  int num_pages;
  size_t page_bytes;
  std::vector<int32_t> blocks; /* [groups]  positions a page */
  int num_embeddings = INT32_MAX; /* token ids are below */
  bool draws_elsewhere = false;   /* what a row draws is entered in its slot later, by the caller */
  int stored; /* what the KV cache is kept in: dtype, or eight bits */
  struct KvScale {
    int group, layer;
    float key, value;
  };
  KvScale kv_scale(int group, int layer) const;
  std::vector<KvScale> kv_scales; /* of the other layers they are 1 */
  /* In the next step each layer's scales become its largest key and value over these; 0: scales stay. */
  float key_divisor = 0.0f, value_divisor = 0.0f;
  std::atomic<float> largest_key{0.0f}, largest_value{0.0f}; /* of the layer at hand */

  std::vector<Buffer> buffers;
  std::vector<std::unique_ptr<Operation>> operations;

  std::vector<AttentionPlan> attention_plans;      /* by heads and window; each step makes them again */
  std::vector<AttentionPlan::Rows> sequences;      /* the requests that have rows in this step */
  std::unique_ptr<Memory> attention_parts;         /* partial results of split positions; every layer uses it */
  size_t most_parts() const { return attention_parts->bytes / (SW_PART * sizeof(float)); }

  std::unique_ptr<Memory> step_pages;    /* of SW_STEP_GROUP, where an operation uses it */
  std::vector<int32_t> step_blocks;      /* its block table, which all requests share: 0, 1, 2, … */
  std::vector<int> first_step_block;     /* [num_slots]  where a request's begins in it */

  int adapter_of(int row) const; /* -1: none */
  void sort_by_adapter();        /* lora/kernel.cpp */
  /* For so many rows that adapters add to, and what they add to before it is activated. */
  void reserve_low_rank(size_t rows, size_t apart_stride);
  LowRankRows low_rank() const { return {static_cast<char*>(shrunk->at), size_t(shrunk_stride), dtype}; }
  /* What a rank has made of A · x, `width` columns of it, not rounded yet. */
  LowRankRows low_rank_part(int turn, int rank, int width) const {
    return {low_rank_parts[turn] + rank * low_rank_step, size_t(width), SW_FP32};
  }
  int num_adapters = 0;
  std::vector<sw_extension> extensions; /* by place; empty: no adapter has any */
  int most_added = 0;                   /* tokens that an adapter may add */
  /* What a slot's adapter has in place of the model's own, or null. */
  const sw_extension* extension_of(int slot) const {
    int adapter = slots->adapter[slot];
    return adapter < 0 || extensions.empty() ? nullptr : &extensions[adapter];
  }
  /* The embedding of a token where it is the adapter's own, or null. */
  const float* own_row(int slot, int token, int width) const;
  int vocab_of(int slot) const {
    const sw_extension* own = extension_of(slot);
    return own ? vocab + own->added : vocab;
  }
  size_t logits_stride() const { return size_t(vocab + most_added + 31) / 32 * 32; }
  RowsByAdapter by_adapter;
  std::vector<RowsByAdapter> logits_by_adapter; /* of each SW_LOGIT_ROWS logit rows */
  std::unique_ptr<Memory> shrunk; /* [rows, shrunk_stride] of dtype: A · x; every product uses it */
  std::unique_ptr<Memory> apart;  /* [rows, 2 · width] fp32: gate and up before their activation */
  int shrunk_stride = 0;
  /* Two by turns, each [ranks] of low_rank_step bytes in their memory: while some still read the one, others may write
   * the other. Null: ranks have A · x whole. */
  char* low_rank_parts[2] = {nullptr, nullptr};
  size_t low_rank_step = 0;

  int num_rows = 0;
  std::vector<int32_t> token, position, request; /* of each row */
  std::vector<char> last_of_request;
  std::vector<LogitRow> logit_rows;
  double* seconds = nullptr; /* [operations], to which each one's time is added; null: not measured */
  sw_plan plan{};
  sw_output output{};

  struct alignas(64) Counter {
    std::atomic<int> next{0};
  };
  Counter counters[3];
  std::vector<Counter> shares[3]; /* [threads] */
  void clear_counters(int phase);
  std::vector<std::unique_ptr<Memory>> thread_scratch;
  size_t scratch_bytes;
};

/* The units of a product that this thread claims; they are those from `base` on, of which `unit` is claimed. */
void run_product(Worker& worker, const Product& product, int rows, int base, int unit);
/* A product that is the only one of its phase. */
void run_product(Worker& worker, const Product& product, int rows);

size_t sw_layer_bytes(int kv_heads, int head_dim, int block, int dtype);

#endif
