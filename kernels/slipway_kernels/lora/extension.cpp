/* What an adapter has in place of the model's own: rows of tokens in the embedding and the head, and a rotation. A row of
 * logits is as wide as the vocabulary of its request, so that a token that an adapter adds is no token of any other. */
#include <math.h>

#include <algorithm>

#include "../cpu/operations.h"

const float* Program::own_row(int slot, int token, int width) const {
  const sw_extension* own = extension_of(slot);
  int row = own && own->row_of && token < vocab + own->added ? own->row_of[token] : -1;
  return row < 0 ? nullptr : own->rows + size_t(row) * width;
}

bool Head::has_own_tokens(const Program& p, int first, int count) const {
  for (int i = first; i < first + count; ++i) {
    const sw_extension* own = p.extension_of(p.logit_rows[i].slot);
    if (own && (own->added || own->head.at)) return true;
  }
  return false;
}

/* The logits of the tokens that adapters have rows for go to their places, one adapter after another; a token that is
 * added without a row cannot be drawn. Every row of products is a sum of its own, so company changes no bit. Of ranks
 * each has the rows of its own tokens, and the first one those of added tokens. */
void Head::own_logits(Worker& worker, int first, int count) const {
  const Program& p = worker.program;
  const Buffer& rows = p.buffers[normed];
  float* to = static_cast<float*>(logits->at);
  size_t part_width = parts ? part_stride() : p.logits_stride();
  float* part = parts ? parts + p.ranks->rank * SW_LOGIT_ROWS * part_width - tokens_from[p.ranks->rank] : to;
  for (const sw_extension& extension : p.extensions) {
    auto mine = [&](int i) { return p.extension_of(p.logit_rows[first + i].slot) == &extension; };
    auto any = [&] {
      for (int i = 0; i < count; ++i)
        if (mine(i)) return true;
      return false;
    };
    if (!(extension.added || extension.head.at) || !any()) continue;
    const sw_weight& weight = extension.head;
    int tokens = weight.at ? weight.n : 0, blocks = (tokens + 31) / 32;
    Product product{rows.shared->at, size_t(rows.stride), weight, tokens, own ? own->at : nullptr, size_t(blocks) * 32,
                    SW_FP32,         extension.bias,      0,      0,      softcap};
    for (int block = worker.claim(2); block < blocks; block = worker.claim(2))
      for (int begin = 0, end; begin < count; begin = end + 1) {
        for (end = begin; end < count && mine(end);) ++end; /* rows that follow one another read the weight once */
        if (begin < end) sw_kernels().linear(product, begin, end, block, std::min(block + 2, blocks));
      }
    worker.barrier();
    for (int i = worker.claim(1); i < count; i = worker.claim(1)) {
      if (!mine(i)) continue;
      float *row = to + i * p.logits_stride(), *own_row = part + i * part_width;
      const float* found = static_cast<const float*>(product.out) + i * product.out_stride;
      if (p.is_first_rank()) std::fill(row + p.vocab, row + p.vocab + extension.added, -INFINITY);
      for (int j = 0; j < tokens; ++j) {
        int token = extension.tokens[j];
        (token < p.vocab ? own_row : row)[token] = found[j];
      }
    }
    worker.barrier();
  }
}

extern "C" {

/* Let adapters in so many places have rows of their own, and add up to `most` tokens; before any other operation. */
void sw_extend(Program* p, int places, int most) {
  p->extensions.assign(places, sw_extension{});
  p->most_added = most;
  p->scratch_bytes = std::max(p->scratch_bytes, sw_sample_scratch_bytes(p->vocab + most));
  for (auto& scratch : p->thread_scratch) scratch = std::make_unique<Memory>(p->scratch_bytes);
}

/* Another rotation that adapters may have, of the rope_and_store that was added last. */
void sw_add_rotation(Program* p, const float* cos_sin) {
  dynamic_cast<RopeAndStore*>(p->operations.back().get())->stretched.push_back(cos_sin);
}

/* Between steps: what the adapter in a place has; null: nothing. */
void sw_set_extension(Program* p, int place, const sw_extension* extension) {
  p->extensions[place] = extension ? *extension : sw_extension{};
  for (auto& operation : p->operations) {
    auto* head = dynamic_cast<Head*>(operation.get());
    size_t bytes = size_t(SW_LOGIT_ROWS) * ((p->extensions[place].head.n + 31) / 32 * 32) * sizeof(float);
    if (head && bytes && (!head->own || head->own->bytes < bytes)) head->own = std::make_unique<Memory>(bytes);
  }
}
}
