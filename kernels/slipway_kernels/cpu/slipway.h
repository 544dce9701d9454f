/* The CPU kernels' plain C interface. Python binds it with ctypes (binding.py); nothing else includes torch
 * or Python here. All tensors are row-major and contiguous unless a stride is given. */
#ifndef SLIPWAY_H
#define SLIPWAY_H

#include <stddef.h>
#include <stdint.h>

/* The library's threads. */
#ifdef __cplusplus
class Pool;
typedef Pool sw_pool;
extern "C" {
#else
typedef struct sw_pool sw_pool;
#endif

#define SW_ABI 21

/* Element type of weights, activations between operations, and KV cache. Sums are always fp32. */
enum {
  SW_FP32 = 0, SW_BF16 = 1, SW_FP16 = 2, SW_INT4 = 3, SW_INT8 = 4, SW_E4M3 = 5, SW_E5M2 = 6,
  SW_INT5 = 7, SW_INT6 = 8, SW_IQ4 = 9, SW_E2M1 = 10, /* these two number the entries of a table of 16 */
  SW_INT2 = 11, SW_INT3 = 12
};
/* More types of scales. SW_TWO_LEVELS: eight bits for each group, times fp16 for each 256 columns. SW_E8M0: powers of two,
 * by exponent. SW_NIBBLES: two levels whose first has four bits; a group's scale and minimum share a byte, scale lowest. */
enum { SW_TWO_LEVELS = 16, SW_E8M0 = 17, SW_NIBBLES = 18 };

/* A packed weight [n, k]. Its numbers are fp32 or bf16; e4m3, then w = scale · number; or small integers, then w = scale ·
 * code + minimum. A code of less than eight bits is not negative with minimums, and stored plus half of its range without;
 * one of eight is -128 to 127. Entries of tables have no minimums. */
typedef struct {
  void* at;
  int32_t n, k, dtype;
  int32_t group;       /* columns that share a scale: of integers a multiple of 32, k, or 16; of e4m3 even, or k */
  int32_t scale_dtype; /* fp16, fp32, or one of the three above */
  int32_t minimums;    /* 0: none */
} sw_weight;

/* The block types of GGUF that are packed from their bytes; ggml-common.h has their layouts. */
enum {
  SW_Q4_0, SW_Q4_1, SW_Q5_0, SW_Q5_1, SW_Q8_0, SW_Q4_K, SW_Q5_K, SW_Q6_K, SW_IQ4_NL, SW_IQ4_XS, SW_MXFP4,
  SW_Q2_K, SW_Q3_K, SW_BLOCK_TYPES
};

/* What of A · x goes to sixteen outputs of an adapted product. */
typedef struct {
  int32_t at;    /* its first step in B */
  int32_t first; /* column of A · x */
  int32_t steps; /* of bf16 pairs, or of fp32 numbers; 0: nothing */
} sw_span;

/* What a low-rank adapter adds to a product: B · (A · x) + bias, its scaling in B. A and B are of the program's
 * type and lie as [16][STEP] for each step of K, a bf16 pair or an fp32 number. All null: it adds nothing.
 * Of an embedding A is a table [tokens, width]. */
typedef struct {
  const void* a; /* [part / 16][steps of k][16][STEP] */
  const void* b; /* the spans' [steps][16][STEP], one after another */
  const sw_span* spans; /* [ceil(n / 16)] */
  const float* bias;    /* [n], in whole sixteens, or null */
  int32_t width; /* of A · x: several matrices of one product have their columns beside each other */
  int32_t part;  /* columns of it that A makes: as many, or those that ranks deal to this one in turn */
} sw_adapter;

/* What requests with an adapter have in place of the model's own: rows of tokens, tokens that the model has not, and
 * another rotation. All null or 0: nothing. */
typedef struct {
  int32_t added;         /* tokens behind the model's vocabulary */
  const int32_t* row_of; /* [vocab + added]  of `rows`; -1: the model's row. Null: all are the model's */
  const float* rows;     /* [.., hidden]  as they enter the first layer */
  sw_weight head;        /* a row for each of `tokens`, in place of the model's or beside them; at null: none */
  const int32_t* tokens; /* [head.n] */
  const float* bias;     /* [head.n], in whole blocks, or null */
  int32_t rotation;      /* 0: the model's; else the one of that place among those that it may stretch to */
} sw_extension;

/* Rows of a matrix as a file has them: floats, or codes, SW_INT4 one in a byte, 0 to 15. Where there are scales, w =
 * scale · number + minimum, and a code of four bits without minimums means itself less 8. */
typedef struct {
  const void* at;
  size_t stride; /* elements from row to row */
  int32_t dtype;
  int32_t rows, columns;  /* that share a scale */
  int32_t scale_stride;   /* scales from one of these rows to the next; 0: all have the same */
  const float* scales;    /* or null: the numbers are the weights */
  const float* minimums;  /* as scales, or null */
  const int32_t* columns_at; /* where each column of the matrix is stored, or null: in order */
} sw_source;

/* interface.cpp. The version of this file, and the instruction set in use. */
int sw_abi(void);
const char* sw_isa(void);

/* Threads for the functions below. cpus [threads]: a processor for each, or null. */
sw_pool* sw_pool_create(int threads, const int32_t* cpus);
void sw_pool_destroy(sw_pool* pool);

/* Memory of whole pages, zero at first, which a weight's `at` needs; null where the system refuses. */
void* sw_memory_map(size_t bytes);
void sw_memory_unmap(void* memory, size_t bytes);

/* How many bytes a weight takes. Rows are packed to destination [rows], on all threads of the pool or on the caller's
 * where it is null: floats; codes [rows, code_stride] with scales and minimums [rows, groups] in the weight's type of
 * scales; GGUF blocks, of a type that the weight's form holds exactly. */
size_t sw_weight_bytes(const sw_weight* weight);
void sw_pack_rows(sw_pool* pool, const sw_weight* weight, const sw_source* source, int rows, const int32_t* destination);
void sw_pack_codes(sw_pool* pool, const sw_weight* weight, const uint8_t* codes, size_t code_stride, const char* scales,
                   const char* minimums, int rows, const int32_t* destination);
void sw_pack_blocks(sw_pool* pool, const sw_weight* weight, int type, const uint8_t* blocks, size_t row_bytes, int rows,
                    const int32_t* destination);

/* Packed rows in fp32, out [count, k]. */
void sw_read_rows(const sw_weight* weight, const int32_t* rows, int count, float* out);

/* out [rows, n] = x · Wᵀ + bias, bias [n] in whole blocks of 32 or null. x is in the weight's type, and has an even
 * number of columns in bf16. Integers multiply the codes of x, sw_code_stride bytes from row to row, which
 * sw_quantize_rows makes; x_stride counts elements, and bytes of codes. A row's result is bit-identical alone, among
 * other rows, and on any number of threads. */
size_t sw_code_stride(int width);
void sw_quantize_rows(const char* x, int dtype, size_t x_stride, int rows, int width, char* codes);
void sw_linear(sw_pool* pool, const void* x, size_t x_stride, int rows, const sw_weight* weight, float* out,
               size_t out_stride, const float* bias);

/* How the tokens of one slot are drawn; see slipway.engine.params. Lists belong to the caller and live as
 * long as the slot is in use. */
typedef struct {
  float temperature; /* 0: the most likely token */
  float top_p, min_p, typical_p;
  float presence_penalty, frequency_penalty, repetition_penalty;
  int32_t top_k;      /* 0: off */
  int32_t min_tokens; /* stop_ids cannot be drawn before that many output tokens */
  int32_t num_logprobs;        /* -1: none */
  int32_t num_prompt_logprobs; /* -1: none */
  int32_t prompt_logprobs_from; /* first prompt position still to report, at least 1 */
  int32_t num_bias, num_allowed, num_stop, num_bad;
  uint64_t seed;
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* allowed_ids;
  const int32_t* stop_ids;
  const int32_t* bad_ids;     /* the sequences, one after another */
  const int32_t* bad_offsets; /* [num_bad + 1] */
} sw_sampling;

/* The worker's state: fixed request slots, structure of arrays, owned by the caller. */
typedef struct {
  int32_t num_slots, max_len, num_groups, max_blocks;
  int32_t* tokens;       /* [num_slots, max_len]  prompt, then output, then drafts */
  int32_t* num_tokens;   /* [num_slots]  known */
  int32_t* num_drafts;   /* [num_slots]  guesses that follow them */
  int32_t* num_computed; /* [num_slots]  in the KV cache */
  int32_t* prompt_len;   /* [num_slots] */
  int32_t* block_table;  /* [num_groups, num_slots, max_blocks]  page of each block */
  sw_sampling* sampling; /* [num_slots] */
  int32_t* adapter;      /* [num_slots]  -1: none */
  int32_t* pooled;       /* [num_slots]  1: its final rows are wanted instead of tokens; nothing is drawn */
  int32_t* num_given;    /* [num_slots]  positions from 0 on whose embeddings are given; their tokens are not read */
  const char** given;    /* [num_slots]  fp32 [num_given, hidden], of any alignment */
  float posterior_threshold, posterior_alpha; /* of typical acceptance; alpha 0: a draft is what is drawn, or refused */
} sw_slots;

/* One row of logits becomes a token and, where asked for, log-probabilities. `logits` is scratch.
 * Log-probabilities are those of the model: before bias, penalties, temperature and filters. */
typedef struct {
  int32_t token;  /* the drawn token, or the given one where `given` >= 0 */
  int32_t failed; /* 1: the row held a NaN or nothing but -inf */
  float logprob;
  int32_t rank; /* 1 = most likely */
} sw_drawn;

/* A draft that typical acceptance may take for the drawn token, and its two constants. */
typedef struct {
  int32_t token;
  float threshold, alpha;
} sw_draft;

/* sampling/kernel.cpp. history [history_len]: prompt then output, prompt_len of them prompt. position: of the
 * token drawn (= history_len). mask: ceil(vocab / 32) words with a bit for each token that may be drawn, or null:
 * all may. top_ids, top_logprobs [num_top]: filled best first where num_top > 0.
 * want_logprob: compute logprob, rank and the top. given >= 0: report that token's log-probability, draw nothing.
 * draft: taken where its rule accepts it and the temperature is above 0, before anything is drawn; or null.
 * scratch: sw_sample_scratch_bytes(vocab), private to the calling thread. */
size_t sw_sample_scratch_bytes(int32_t vocab);
void sw_sample_row(const sw_sampling* sampling, float* logits, const float* edited, const uint32_t* mask,
                   int32_t vocab, const int32_t* history, int32_t history_len, int32_t prompt_len, int32_t given,
                   const sw_draft* draft, int32_t want_logprob, int32_t num_top, void* scratch, sw_drawn* drawn, int32_t* top_ids,
                   float* top_logprobs);

/* One step. Each request advances by num_new tokens from its num_computed. num_drafts of them are for drafts, of
 * which the step takes as many as the slot has and max_len leaves room for; all other tokens must be known then.
 *
 * The row of the last known token draws, and so does each draft's, as if the drafts before it were known. What is
 * drawn is appended (num_tokens + 1), row by row, as long as it equals the next row's draft: so the slot gets the
 * tokens that it would have got one at a time, or with typical acceptance drafts that the model finds likely. The keys and values of other drafts are never read: a row sees no
 * position after its own, and they are written again before one comes to them.
 *
 * A caller may edit logits before they are drawn from: `edit` gets the rows of some requests that draw, and enters in
 * `edited` the row [vocab] that each draws from, which lives until the step ends, or null for the row as it is. What is
 * reported are the model's own logits all the same. It runs on the caller's thread. */
typedef void (*sw_edit)(int32_t count, const int32_t* requests, const float* const* rows, const float** edited);

typedef struct {
  int32_t num_requests;
  const int32_t* slots;         /* [num_requests] */
  const int32_t* num_new;       /* [num_requests] */
  const int32_t* num_drafts;    /* [num_requests]  of num_new; only where the others reach the last known token */
  const uint32_t* const* masks; /* [num_requests]  a mask for each row that draws, [1 + num_drafts, ceil(vocab / 32)],
                                 * or null; null where no request has any */
  const uint8_t* edits;         /* [num_requests]  1: `edit` gets its rows; null where no request has any */
  sw_edit edit;
} sw_plan;

/* What a step made of a request, whose rows are first_row up to the next request's. */
typedef struct {
  int32_t first_row;
  int32_t first_drawn; /* the first row that draws; the end of its rows where none does */
  int32_t num_drawn;   /* rows from there on whose tokens stand */
  int32_t failed;      /* 1: the row after these has failed */
} sw_advance;

typedef struct {
  int32_t max_top;      /* columns of the top arrays */
  sw_advance* requests; /* [num_requests] */
  /* [rows of the step]: the token drawn or, where asked for, the prompt token that follows; else -1 */
  sw_drawn* rows;
  int32_t* top_ids;    /* [rows of the step, max_top] */
  float* top_logprobs; /* [rows of the step, max_top] */
  float* hidden; /* [rows of the step, hidden]  rows of pooled slots, by an operation that the program may have */
} sw_output;

#ifdef __cplusplus
}
#endif
#endif
