/* One head of one token: RMS norm where the model has one, then the rotation of pairs (i, i + rotary/2).
 *
 * A page holds, for each layer of its group and each key head, K as [head_dim/2][block][2] in bf16 (so that
 * sixteen positions are one vector of pairs) or [head_dim][block] in fp32, then V as [block/2][head_dim][2]
 * or [block][head_dim], head_dim rounded up to 16 lanes. */

static void rotate(const float* head, int head_dim, const float* cos_sin, int rotary_dim, const float* weight,
                   float eps, int add_one, float* out) {
  if (weight)
    normalize(head, weight, out, head_dim, eps, add_one, 0);
  else
    memcpy(out, head, head_dim * sizeof(float));
  if (!cos_sin) return;
  int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    float c = cos_sin[2 * i], s = cos_sin[2 * i + 1], a = out[i], b = out[i + half];
    out[i] = a * c - b * s;
    out[i + half] = b * c + a * s;
  }
}

static void rotate_query(const float* head, int head_dim, const float* cos_sin, int rotary_dim,
                         const float* weight, float eps, int add_one, void* out, int out_dtype) {
  float rotated[SW_MAX_HEAD_DIM];
  rotate(head, head_dim, cos_sin, rotary_dim, weight, eps, add_one, rotated);
  for (int i = 0; i < head_dim; ++i) {
    if (out_dtype == SW_BF16)
      narrow(rotated[i], (bf16*)out + i);
    else
      ((float*)out)[i] = rotated[i];
  }
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
/* All keys of the layer come first, then all values. */
template <class T>
static inline T* key_at(const LayerPages& pages, int page, int kv_head) {
  return (T*)(pages.base + page * pages.page_bytes) + kv_head * key_size<T>(pages);
}
template <class T>
static inline T* value_at(const LayerPages& pages, int page, int kv_head) {
  return (T*)(pages.base + page * pages.page_bytes) + pages.kv_heads * key_size<T>(pages) +
         kv_head * value_size<T>(pages);
}

template <class T>
static void put_key(const LayerPages& pages, int page, int kv_head, int at, const float* head) {
  enum { STEP = Operand<T>::STEP };
  T* key = key_at<T>(pages, page, kv_head);
  for (int i = 0; i < pages.head_dim; ++i)
    narrow(head[i], key + ((size_t)(i / STEP) * pages.block + at) * STEP + i % STEP);
}

static void store_key(const LayerPages& pages, const int32_t* table, int position, int kv_head, const float* head,
                      const float* cos_sin, int rotary_dim, const float* weight, float eps, int add_one) {
  float rotated[SW_MAX_HEAD_DIM];
  rotate(head, pages.head_dim, cos_sin, rotary_dim, weight, eps, add_one, rotated);
  int page = table[position / pages.block], at = position % pages.block;
  if (pages.dtype == SW_BF16)
    put_key<bf16>(pages, page, kv_head, at, rotated);
  else
    put_key<float>(pages, page, kv_head, at, rotated);
}

template <class T>
static void put_value(const LayerPages& pages, int page, int kv_head, int at, const float* head, int last) {
  enum { STEP = Operand<T>::STEP };
  int lanes = padded(pages.head_dim);
  T* value = value_at<T>(pages, page, kv_head) + (size_t)(at / STEP) * lanes * STEP + at % STEP;
  /* The partner of the last even position is read, times a probability of 0: a stale NaN must not be there.
   * Where it belongs to this step, another thread may already have written it. */
  int clear_partner = STEP == 2 && at % 2 == 0 && (last || at + 1 == pages.block);
  for (int i = 0; i < lanes; ++i) {
    narrow(i < pages.head_dim ? head[i] : 0.0f, value + i * STEP);
    if (clear_partner) value[i * STEP + 1] = 0;
  }
}

static void store_value(const LayerPages& pages, const int32_t* table, int position, int kv_head,
                        const float* head, int last) {
  int page = table[position / pages.block], at = position % pages.block;
  if (pages.dtype == SW_BF16)
    put_value<bf16>(pages, page, kv_head, at, head, last);
  else
    put_value<float>(pages, page, kv_head, at, head, last);
}
