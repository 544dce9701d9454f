/* One head of one token: RMS norm where the model has one, then the rotation of pairs (i, i + rotary/2).
 *
 * A page holds, for each layer of its group and each key head, K as [head_dim/2][block][2] in bf16 (so that
 * sixteen positions are one vector of pairs) or [head_dim][block] in fp32, then V as [block/2][head_dim][2]
 * or [block][head_dim], head_dim rounded up to 16 lanes; in eight bits the same with a byte for each number, and the
 * scales of integers behind them. */

/* head_dim numbers on whole vectors; what lies behind them is 0. */
struct alignas(64) HeadRow {
  float at[SW_MAX_HEAD_DIM];

  void clear_from(int head_dim) {
    for (int i = head_dim; i % 16; ++i) at[i] = 0.0f;
  }
};

/* Pairs (a, b) become (a cos - b sin, b cos + a sin). */
static void turn(float* __restrict a, float* __restrict b, const float* __restrict cos_sin, int half) {
  for (int i = 0; i < half; ++i) {
    float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], x = a[i], y = b[i];
    a[i] = x * c - y * s;
    b[i] = y * c + x * s;
  }
}

static void rotate(const float* head, int head_dim, const float* cos_sin, int rotary_dim, const float* weight,
                   float eps, int add_one, HeadRow& out) {
  if (weight)
    normalize(head, weight, out.at, head_dim, eps, add_one, 0);
  else
    memcpy(out.at, head, head_dim * sizeof(float));
  out.clear_from(head_dim);
  if (cos_sin) turn(out.at, out.at + rotary_dim / 2, cos_sin, rotary_dim / 2);
}

/* A row in the type of the cache, in whole vectors. */
template <class T>
struct alignas(64) CacheRow {
  T at[SW_MAX_HEAD_DIM];

  CacheRow(const HeadRow& row, int head_dim) {
    for (int i = 0; i < head_dim; i += 16) store(at + i, load(row.at + i));
  }
};

/* The same in eight bits, each number divided by the scale. */
struct alignas(64) NarrowRow {
  uint8_t at[SW_MAX_HEAD_DIM];
  float scale; /* of integers: the row's own, which is no finite number where one of the row is none */

  NarrowRow(const HeadRow& row, int head_dim) {
    float largest = 0.0f;
    for (int i = 0; i < head_dim; i += 16) {
      float one = largest_magnitude(load(row.at + i), zero());
      largest = one > largest || one != one ? one : largest;
    }
    scale = largest * (1.0f / 127.0f);
    float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    /* 1.5 · 2^23 is added: the integer stands in the low bits. */
    for (int i = 0; i < (head_dim + 15) / 16 * 16; ++i) at[i] = (uint8_t)bits_of(row.at[i] * inverse + 0x1.8p23f);
  }

  NarrowRow(const HeadRow& row, int head_dim, int stored, float scale) : scale(scale) {
    for (int i = 0; i < (head_dim + 15) / 16 * 16; ++i) at[i] = narrowed(row.at[i] / scale, stored);
  }
};

/* In what the pages keep; `scale` is the layer's. */
static NarrowRow narrow_row(const LayerPages& pages, const HeadRow& row, float scale) {
  return pages.stored == SW_INT8 ? NarrowRow(row, pages.head_dim) : NarrowRow(row, pages.head_dim, pages.stored, scale);
}

template <class T>
static void put_row(const HeadRow& row, int head_dim, void* out) {
  memcpy(out, CacheRow<T>(row, head_dim).at, head_dim * sizeof(T));
}

static void rotate_query(const float* head, int head_dim, const float* cos_sin, int rotary_dim,
                         const float* weight, float eps, int add_one, void* out, int out_dtype) {
  HeadRow rotated;
  rotate(head, head_dim, cos_sin, rotary_dim, weight, eps, add_one, rotated);
  if (out_dtype == SW_BF16)
    put_row<bf16>(rotated, head_dim, out);
  else
    put_row<float>(rotated, head_dim, out);
}

static inline int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }
static inline int even(int block) { return (block + 1) / 2 * 2; }

template <class T>
static inline size_t key_size(const LayerPages& pages) {
  return (size_t)pages.head_dim * pages.block;
}
template <class T>
static inline size_t value_size(const LayerPages& pages) {
  return (size_t)padded(pages.head_dim) * (Operand<T>::STEP == 2 ? even(pages.block) : pages.block);
}
/* All keys of the layer come first, then all values; in the order of T, each number kept as a Stored. */
template <class T, class Stored = T>
static inline Stored* key_at(const LayerPages& pages, int page, int kv_head) {
  return (Stored*)(pages.base + page * pages.page_bytes) + kv_head * key_size<T>(pages);
}
template <class T, class Stored = T>
static inline Stored* value_at(const LayerPages& pages, int page, int kv_head) {
  return (Stored*)(pages.base + page * pages.page_bytes) + pages.kv_heads * key_size<T>(pages) +
         kv_head * value_size<T>(pages);
}

/* Scales of a key head's integers, position by position. */
static inline float* key_scales(const LayerPages& pages, int page, int kv_head) {
  size_t codes = sw_kv_bytes(pages.kv_heads, pages.head_dim, pages.block, SW_INT8);
  return (float*)(pages.base + page * pages.page_bytes + codes) + (size_t)kv_head * pages.block;
}
static inline float* value_scales(const LayerPages& pages, int page, int kv_head) {
  return key_scales(pages, page, kv_head) + (size_t)pages.kv_heads * pages.block;
}

template <class T, class Stored>
static void put_key(const LayerPages& pages, int page, int kv_head, int at, const Stored* row) {
  enum { STEP = Operand<T>::STEP };
  Stored* key = key_at<T, Stored>(pages, page, kv_head) + at * STEP;
  size_t stride = (size_t)pages.block * STEP;
  for (int i = 0; i < pages.head_dim; i += STEP, key += stride) memcpy(key, row + i, STEP * sizeof(Stored));
}

template <class T>
static void put_typed_key(const LayerPages& pages, int page, int kv_head, int at, const HeadRow& head) {
  if (pages.stored == pages.dtype) return put_key<T>(pages, page, kv_head, at, CacheRow<T>(head, pages.head_dim).at);
  NarrowRow row = narrow_row(pages, head, pages.key_scale);
  if (pages.stored == SW_INT8) key_scales(pages, page, kv_head)[at] = row.scale;
  put_key<T>(pages, page, kv_head, at, row.at);
}

static void store_key(const LayerPages& pages, const int32_t* table, int position, int kv_head, const float* head,
                      const float* cos_sin, int rotary_dim, const float* weight, float eps, int add_one) {
  HeadRow rotated;
  rotate(head, pages.head_dim, cos_sin, rotary_dim, weight, eps, add_one, rotated);
  int page = table[position / pages.block], at = position % pages.block;
  if (pages.dtype == SW_BF16)
    put_typed_key<bf16>(pages, page, kv_head, at, rotated);
  else
    put_typed_key<float>(pages, page, kv_head, at, rotated);
}

template <class T, class Stored>
static void put_value(const LayerPages& pages, int page, int kv_head, int at, const Stored* row, int last) {
  enum { STEP = Operand<T>::STEP };
  int lanes = padded(pages.head_dim);
  Stored* value = value_at<T, Stored>(pages, page, kv_head) + (size_t)(at / STEP) * lanes * STEP + at % STEP;
  for (int i = 0; i < lanes; ++i) value[i * STEP] = row[i];
  /* The partner of the last even position is read, times a probability of 0: a stale NaN must not be there.
   * Where it belongs to this step, another thread may already have written it. */
  if (STEP == 2 && at % 2 == 0 && (last || at + 1 == pages.block))
    for (int i = 0; i < lanes; ++i) value[i * STEP + 1] = 0;
}

template <class T>
static void put_typed_value(const LayerPages& pages, int page, int kv_head, int at, const HeadRow& head,
                            int last) {
  if (pages.stored == pages.dtype)
    return put_value<T>(pages, page, kv_head, at, CacheRow<T>(head, pages.head_dim).at, last);
  NarrowRow row = narrow_row(pages, head, pages.value_scale);
  if (pages.stored == SW_INT8) value_scales(pages, page, kv_head)[at] = row.scale;
  put_value<T>(pages, page, kv_head, at, row.at, last);
}

static void store_value(const LayerPages& pages, const int32_t* table, int position, int kv_head,
                        const float* head, int last) {
  HeadRow row;
  memcpy(row.at, head, pages.head_dim * sizeof(float));
  row.clear_from(pages.head_dim);
  int page = table[position / pages.block], at = position % pages.block;
  if (pages.dtype == SW_BF16)
    put_typed_value<bf16>(pages, page, kv_head, at, row, last);
  else
    put_typed_value<float>(pages, page, kv_head, at, row, last);
}
