/* The operations of a Program. Each is one row of the list; see Program in program.py for their meaning. */
#ifndef SLIPWAY_OPERATIONS_H
#define SLIPWAY_OPERATIONS_H

#include "program.h"

/* A buffer as an operand, with what was known of it when the operation was added. */
struct Input {
  int buffer;
  bool copied;

  char* at(const Worker& worker) const;
  int stride(const Program& program) const { return program.buffers[buffer].stride; }
};

struct Embed : Operation {
  PackedWeight table;
  int out;
  float scale;
  bool run(Worker&) const override;
};

struct RmsNorm : Operation {
  int x, out;
  const float* weight;
  float eps;
  int add_one, accumulate;
  bool run(Worker&) const override;
};

struct Linear : Operation {
  Input x;
  PackedWeight weight;
  int out, column, accumulate, activation;
  const float* bias;
  bool run(Worker&) const override;
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
  HeadNorm norm;
  bool run(Worker&) const override;

 private:
  void rotate_row(const Program&, int row, int first, int last) const;
};

struct Attend : Operation {
  int group, layer, window;
  HeadShape shape;
  float scale, softcap;
  const void* q;
  void* out;
  size_t q_stride, out_stride;
  bool run(Worker&) const override;

 private:
  void split(Worker&, const Attention&) const;
};

struct MixtureOfExperts : Operation {
  Input x;
  int out, top_k, normalize, activation;
  PackedWeight router;
  std::vector<PackedWeight> gate_up, down;
  void allocate(const Program&);
  bool run(Worker&) const override;

 private:
  void gather(Worker&) const;
  void experts(Worker&, const std::vector<PackedWeight>&, const char* x, size_t x_stride, char* y, size_t y_stride,
               int y_dtype, int activation) const;
  int width() const { return down[0].k; }
  int expert_stride() const { return (width() + 31) / 32 * 32; }
  std::unique_ptr<Memory> logits, ids, weights, places, offsets, rows, hidden, result;
};

struct AddGated : Operation {
  int y, gate, out;
  bool run(Worker&) const override;
};

struct Head : Operation {
  int x;
  const float* norm_weight;
  PackedWeight weight;
  float eps, softcap;
  int add_one;
  const float* bias;
  int normed; /* a buffer that holds the rows of a chunk */
  std::unique_ptr<Memory> logits;
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
