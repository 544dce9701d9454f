/* The operations of a Program. Each is one row of the list; see Program in program.py for their meaning. */
#ifndef SLIPWAY_OPERATIONS_H
#define SLIPWAY_OPERATIONS_H

#include <functional>

#include "program.h"
#include "../moe/plan.h"

/* A buffer as an operand, with what was known of it when the operation was added. */
struct Input {
  int buffer;
  bool copied;

  char* at(const Worker& worker) const;
  int stride(const Program& program) const { return program.buffers[buffer].stride; }
};

/* What adapters add to one product, or to one of each expert: between steps set and cleared by place; lora/kernel.cpp. */
struct Additions {
  Additions(int places, int experts) : experts(experts), adapters(size_t(places) * experts), adding(places) {}
  int experts;
  std::vector<sw_adapter> adapters; /* [places · experts] */
  std::vector<int> adding;          /* [places]  how many experts it adds to */
  void set(int at, const sw_adapter&);
  /* Whether any row's adapter adds to it. */
  bool adapts(const RowsByAdapter&) const;
  /* h = A · x of the rows; how many units that is. `unit` is the one claimed next. `rows` says where in x those lie
   * that are at each place, if not where `RowsByAdapter` does. */
  int shrink(Worker&, const RowsByAdapter&, const void* x, size_t stride, int k, int& unit, const LowRankRows& h,
             const int32_t* rows = nullptr) const;
  /* out += B · h + bias, columns [0, n) in pieces; then, where it is given, finish(row, first, last) of the columns of
   * every row, those without an adapter too. */
  using Finish = std::function<void(int row, int first, int last)>;
  void expand(Worker&, const RowsByAdapter&, float* out, size_t stride, int n, const Finish& finish) const;
};

/* What a rank has of A · x before all have met: all of it, columns dealt in turn, or what is added up. */
enum { SW_WHOLE, SW_DEALT, SW_ADDED_UP };

/* An operation to which adapters add. */
struct Adapted : Operation {
  std::vector<Additions> added; /* to each of its products; empty where there are no adapters */
  Input plain;                  /* the rows that A multiplies */
  int low_rank_of = SW_WHOLE, part = 0; /* columns that a rank makes of A · x, at most; of SW_WHOLE 0 */
  virtual void allow(int places) { added.assign(1, Additions(places, 1)); }
  /* Room for what a step computes beside the operation, once there is an adapter. */
  virtual void reserve(Program&) const;

 protected:
  bool adapts(const RowsByAdapter& by_adapter) const { return !added.empty() && added[0].adapts(by_adapter); }
  LowRankRows shrinks_to(const Worker&) const;
  /* A barrier, behind which A · x is whole. */
  void make_whole(Worker&) const;
};

struct Embed : Adapted {
  sw_weight table;
  int out;
  float scale;
  int first_token = 0; /* of the table's first row: of ranks each has some; rows of others are zeros */
  bool run(Worker&) const override;

 private:
  bool is_given(const Program&, int row) const; /* its embedding came with the request, and it has no token */
  bool has(int at) const { return at >= 0 && at < table.n; }
  void read(const Program&, int row) const;
  bool run_adapted(Worker&) const;
};

/* With what a token's place adds: its position, and its type, which is 1 from `type_from` of its slot on. */
struct EmbedSum : Embed {
  const float *positions, *types; /* [.., width], or null */
  const int32_t* type_from;       /* [num_slots] */
  bool run(Worker&) const override;
};

/* out = (or +=) what the ranks have of a buffer, added up in their order. */
struct FromRanks : Operation {
  int from, out, accumulate;
  int meets() const override { return from; }
  bool run(Worker&) const override;
};

struct RmsNorm : Operation {
  int x, out;
  const float* weight;
  float eps;
  int add_one, accumulate;
  int codes = -1; /* a buffer for the codes of `out`, or none */
  bool run(Worker&) const override;
};

/* Where the rows are kept, x becomes them, too: the residual stream of layers that norm after adding. */
struct LayerNorm : Operation {
  int x, out, keep;
  const float *weight, *bias; /* bias or null */
  float eps;
  bool run(Worker&) const override;
};

/* The rows of a buffer as weights of integers multiply them. Every thread has its copy where rows are few. */
struct Quantize : Operation {
  Input x;
  int out;
  bool run(Worker&) const override;
};

/* out = (or +=) x · Wᵀ + bias, and what the rows' adapters add; then, of gate and up, the activation. Its input is a
 * program's form of rows that several products share: the codes of a buffer are made once for all its readers. */
struct Linear : Adapted {
  Input x;
  sw_weight weight;
  int out, column, accumulate, activation;
  int pointwise; /* an activation of each output, where there is no gate */
  const float* bias;
  bool run(Worker&) const override;
  void reserve(Program&) const override;

 private:
  Product product(Worker&, void* to, size_t stride, int dtype, int gate) const;
  bool run_adapted(Worker&) const;
};

struct HeadShape {
  int heads, kv_heads, head_dim;
};

struct RopeAndStore : Operation {
  int group, layer, rotary_dim;
  HeadShape shape;
  const float *q, *k, *v; /* rows of `stride` floats */
  size_t stride;
  void* q_out; /* null: keys and values only */
  size_t q_out_stride;
  const float* cos_sin;
  std::vector<const float*> stretched; /* tables of the other rotations that adapters may have */
  HeadNorm norm;
  bool run(Worker&) const override;

 private:
  void find_scales(Worker&) const;
  const float* angles(const Program&, int row) const;
  void rotate_row(const Program&, const LayerPages&, int row, int first, int last) const;
};

struct Attend : Operation {
  int group, layer, window, first = 0;
  HeadShape shape;
  float scale, softcap;
  const void* q;
  void* out;
  size_t q_stride, out_stride;
  int plan; /* of the program's */
  bool run(Worker&) const override;
};

struct MixtureOfExperts : Adapted {
  enum { GATE_UP, DOWN }; /* of `added`; there, an expert is a place of its own */
  Input router_x, x; /* the same rows, each as the weights that multiply it want them */
  int out, top_k, normalize, activation, accumulate;
  int first_expert; /* of those that are here, by its number among the router's */
  sw_weight router;
  std::vector<sw_weight> gate_up, down;
  void allocate(const Program&);
  void allow(int places) override { added.assign(2, Additions(places, int(gate_up.size()))); }
  void reserve(Program&) const override;
  bool run(Worker&) const override;
  size_t bytes() const override;

 private:
  void choose(Worker&) const;
  void gather(Worker&) const;
  void experts(Worker&, const std::vector<sw_weight>&, const char* x, size_t x_stride, char* y, size_t y_stride,
               int y_dtype, int activation, int n, int base, int unit) const;
  bool adapts(const RowsByAdapter&) const;
  void sort_by_adapter(const Program&) const;
  void gate_up_adapted(Worker&) const;
  void multiply_gate_up(Worker&) const;
  void multiply_down(Worker&) const;
  int width() const { return down[0].k; }
  size_t logit_stride() const { return size_t(router.n + 31) / 32 * 32; }
  int expert_stride() const { return (width() + 31) / 32 * 32; }
  size_t code_stride() const { return sw_code_row_bytes(width()); }
  bool quantizes() const { return sw_is_integers(down[0].dtype); }
  size_t x_bytes(const Program& p) const { return size_t(x.stride(p)) * element_bytes(p.buffers[x.buffer].dtype); }
  /* Gate and up alternate in whole runs. */
  int both() const { return (2 * width() + 31) / 32 * 32; }
  std::unique_ptr<Memory> logits, ids, weights, places, offsets, rows, hidden, codes, result;
  std::unique_ptr<ExpertPlan> plan = std::make_unique<ExpertPlan>(); /* of the layer's step */
  /* A step's pairs of a row and an expert, by adapter and expert; the row of each. */
  std::unique_ptr<RowsByAdapter> pairs = std::make_unique<RowsByAdapter>();
  std::unique_ptr<std::vector<int32_t>> row_of_pair = std::make_unique<std::vector<int32_t>>();
};

/* out = activation(gate) · up, from rows that have the one behind the other. */
struct Gate : Operation {
  int x, out, activation;
  bool run(Worker&) const override;
};

struct AddGated : Operation {
  int y, gate, out;
  bool run(Worker&) const override;
};

struct Head : Adapted {
  int x;
  const float* norm_weight; /* null: as they are */
  sw_weight weight;
  float eps, softcap;
  int add_one;
  const float* bias;
  const int32_t* tokens; /* of each row of weight, or null: in order */
  int normed; /* a buffer that holds the rows of a chunk */
  int codes = -1; /* their codes, where the weight wants them */
  std::unique_ptr<Memory> own; /* [SW_LOGIT_ROWS, tokens of an adapter's own], grown between steps */
  std::unique_ptr<Memory> logits, few; /* few: of the tokens that there are, where these are not all */
  /* Of ranks: the first one draws for all. */
  sw_drawn* drawn = nullptr;        /* [ranks, max_tokens]  in their memory; only the first's are read */
  std::vector<int> tokens_from;     /* [ranks + 1]  each makes the logits of some; empty: the first one of all */
  float* parts = nullptr;           /* [ranks, SW_LOGIT_ROWS, part_stride()]  where these cannot stand together */
  int part_stride() const;
  size_t logits_stride(const Program& p) const { return tokens ? size_t(weight.n + 31) / 32 * 32 : p.logits_stride(); }
  bool run(Worker&) const override;
  size_t bytes() const override { return bytes_of(own) + bytes_of(logits) + bytes_of(few); }

 private:
  void multiply(Worker&, const RowsByAdapter*, int rows) const;
  void spread(Worker&, int rows) const;
  void gather(Worker&, int rows) const;
  void tell_drawn(Worker&, int first, int count) const;
  bool has_own_tokens(const Program&, int first, int count) const; /* lora/extension.cpp */
  void own_logits(Worker&, int first, int count) const;
};

/* The rows of pooled slots, in fp32, for the caller. */
struct Hidden : Operation {
  int x;
  const float* norm_weight; /* null: as they are */
  float eps;
  int add_one;
  bool run(Worker&) const override;
};

/* Rows in fp32 from where the caller puts them before a step. */
struct Given : Operation {
  const float* from; /* [max_tokens, width] */
  int out;
  bool run(Worker&) const override;
};

/* Rows in fp32 to where the caller looks after a step. */
struct Tap : Operation {
  int x;
  const float* norm_weight; /* null: as they are */
  float eps;
  int add_one;
  float* to; /* [max_tokens, width] */
  bool run(Worker&) const override;
};

struct Activate : Operation {
  Input x;
  int out, activation, accumulate;
  const float* bias; /* or null */
  bool run(Worker&) const override;
};

/* Rows of logits that the caller computed. */
struct Draw : Operation {
  float* logits;
  size_t stride;
  int count;
  bool run(Worker&) const override;
};

#endif
