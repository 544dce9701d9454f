/* Multiplies rows by weights of every form, through the library's C interface alone.
 *
 * Checks that a row's result is bit-identical alone, in every batch and on several threads, and that it is near what
 * the packed numbers give in double precision. Prints the instruction set, then each form with a digest of its results
 * and the largest error: the inputs are the same on every machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slipway.h"

enum { ROWS = 25, THREADS = 3 };

static int failures;
static uint32_t state;

static uint32_t next(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

/* In [-1, 1), in steps that a float holds exactly. */
static float next_float(void) { return (float)(int32_t)(next() & 0xffff) / 32768.0f - 1.0f; }

static void* allocate(size_t bytes) {
  void* memory = sw_memory_map(bytes);
  if (!memory) abort();
  return memory;
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float found;
  memcpy(&found, &bits, 4);
  return found;
}

static uint64_t digest(const void* at, size_t bytes) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ ((const uint8_t*)at)[i]) * 1099511628211u;
  return hash;
}

/* Of a product, relative to the sum of the magnitudes that it adds. */
static double error_of(const sw_weight* w, const float* x, const float* out) {
  float* row = malloc((size_t)w->k * sizeof(float));
  double most = 0;
  for (int32_t n = 0; n < w->n; ++n) {
    sw_read_rows(w, &n, 1, row);
    for (int m = 0; m < ROWS; ++m) {
      double sum = 0, size = 0;
      for (int k = 0; k < w->k; ++k) {
        double term = (double)x[m * w->k + k] * row[k];
        sum += term, size += fabs(term);
      }
      double error = fabs(out[m * w->n + n] - sum) / (size + 1e-30);
      if (!(error <= most)) most = error;
    }
  }
  free(row);
  return most;
}

static void expect_equal(const char* form, const char* what, int rows, const float* found, const float* wanted,
                         size_t floats) {
  if (memcmp(found, wanted, floats * sizeof(float)) == 0) return;
  printf("%s: %s of %d rows differs from each row alone\n", form, what, rows);
  ++failures;
}

static void multiply(const char* form, const sw_weight* w, double most_error) {
  int narrow = w->dtype == SW_BF16 || w->dtype == SW_E4M3, integers = w->dtype != SW_FP32 && !narrow;
  int width = (w->k + 1) / 2 * 2;
  float* x = allocate(ROWS * (size_t)w->k * sizeof(float));
  char* operand = allocate(ROWS * ((size_t)width * 4 + sw_code_stride(w->k)));
  size_t stride = integers ? sw_code_stride(w->k) : (size_t)width;
  size_t row_bytes = integers ? stride : stride * (narrow ? 2 : 4);
  state = 7;
  for (int m = 0; m < ROWS; ++m)
    for (int k = 0; k < w->k; ++k) {
      float value = next_float();
      if (narrow) {
        uint16_t rounded = to_bf16(value);
        value = from_bf16(rounded);
        memcpy(operand + m * row_bytes + k * 2, &rounded, 2);
      } else if (!integers) {
        memcpy(operand + m * row_bytes + k * 4, &value, 4);
      }
      x[m * w->k + k] = value;
    }
  if (integers) sw_quantize_rows((const char*)x, SW_FP32, w->k, ROWS, w->k, operand);

  size_t floats = ROWS * (size_t)w->n;
  float *alone = allocate(floats * 4), *together = allocate(floats * 4);
  float* bias = allocate((size_t)(w->n + 31) / 32 * 32 * 4);
  for (int n = 0; n < w->n; ++n) bias[n] = 0.0f;
  sw_pool *one = sw_pool_create(1, NULL), *several = sw_pool_create(THREADS, NULL);
  for (int m = 0; m < ROWS; ++m)
    sw_linear(one, operand + m * row_bytes, stride, 1, w, alone + (size_t)m * w->n, w->n, bias);
  for (int rows = 2; rows <= ROWS; ++rows) {
    sw_linear(one, operand, stride, rows, w, together, w->n, bias);
    expect_equal(form, "a batch", rows, together, alone, (size_t)rows * w->n);
  }
  sw_linear(several, operand, stride, ROWS, w, together, w->n, bias);
  expect_equal(form, "a batch on several threads", ROWS, together, alone, floats);
  sw_pool_destroy(one);
  sw_pool_destroy(several);

  double error = error_of(w, x, alone);
  if (!(error <= most_error)) {
    printf("%s: an error of %g is more than %g\n", form, error, most_error);
    ++failures;
  }
  printf("%s %016llx %.2g\n", form, (unsigned long long)digest(alone, floats * 4), error);
  sw_memory_unmap(x, ROWS * (size_t)w->k * sizeof(float));
  sw_memory_unmap(operand, ROWS * ((size_t)width * 4 + sw_code_stride(w->k)));
  sw_memory_unmap(alone, floats * 4);
  sw_memory_unmap(together, floats * 4);
  sw_memory_unmap(bias, (size_t)(w->n + 31) / 32 * 32 * 4);
}

/* Rows in reverse, so that destinations count. */
static int32_t* reversed(int rows) {
  int32_t* destination = malloc((size_t)rows * sizeof(int32_t));
  for (int i = 0; i < rows; ++i) destination[i] = rows - 1 - i;
  return destination;
}

static void floats(const char* form, int dtype, int n, int k) {
  sw_weight w = {NULL, n, k, dtype, 0, 0, 0};
  w.at = allocate(sw_weight_bytes(&w));
  float* numbers = malloc((size_t)n * k * sizeof(float));
  state = 1;
  for (int i = 0; i < n * k; ++i) numbers[i] = next_float();
  sw_source source = {numbers, (size_t)k, SW_FP32, 0, 0, 0, NULL, NULL, NULL};
  int32_t* destination = reversed(n);
  sw_pack_rows(NULL, &w, &source, n, destination);
  multiply(form, &w, 1e-5);
  sw_memory_unmap(w.at, sw_weight_bytes(&w));
  free(numbers);
  free(destination);
}

static void codes(const char* form, int dtype, int group, int scale_dtype, int minimums, int n, int k) {
  sw_weight w = {NULL, n, k, dtype, group, scale_dtype, minimums};
  w.at = allocate(sw_weight_bytes(&w));
  size_t groups = (size_t)n * ((k + group - 1) / group), scale_bytes = scale_dtype == SW_FP16 ? 2 : 4;
  uint8_t* numbers = malloc((size_t)n * k);
  char *scales = malloc(groups * scale_bytes), *least = malloc(groups * scale_bytes);
  state = 2;
  for (int i = 0; i < n * k; ++i) {
    numbers[i] = (uint8_t)(next() & (dtype == SW_INT4 ? 15 : 255));
    if (dtype == SW_E4M3 && (numbers[i] & 127) == 127) numbers[i] ^= 1; /* no number */
  }
  for (size_t i = 0; i < groups; ++i)
    for (int which = 0; which < 2; ++which) {
      char* to = (which ? least : scales) + i * scale_bytes;
      uint16_t half = (uint16_t)(0x1c00 + next() % 0x1000); /* 0.004 to 0.06 */
      float wide = (float)(1 + next() % 4096) / 65536.0f;
      memcpy(to, scale_dtype == SW_FP16 ? (void*)&half : (void*)&wide, scale_bytes);
    }
  int32_t* destination = reversed(n);
  sw_pack_codes(NULL, &w, numbers, k, scales, minimums ? least : NULL, n, destination);
  multiply(form, &w, 3e-5);
  sw_memory_unmap(w.at, sw_weight_bytes(&w));
  free(numbers);
  free(scales);
  free(least);
  free(destination);
}

/* A block type of GGUF: its size, where its scales in fp16 stand, and the form that holds it. */
typedef struct {
  const char* form;
  int type, columns, bytes, scale, second_scale; /* -1: none */
  int dtype, group, scale_dtype, minimums;
} block_type;

static const block_type block_types[] = {
    {"Q4_0", SW_Q4_0, 32, 18, 0, -1, SW_INT4, 32, SW_FP16, 0},
    {"Q4_1", SW_Q4_1, 32, 20, 0, 2, SW_INT4, 32, SW_FP16, 1},
    {"Q5_0", SW_Q5_0, 32, 22, 0, -1, SW_INT5, 32, SW_FP16, 0},
    {"Q5_1", SW_Q5_1, 32, 24, 0, 2, SW_INT5, 32, SW_FP16, 1},
    {"Q8_0", SW_Q8_0, 32, 34, 0, -1, SW_INT8, 32, SW_FP16, 0},
    {"Q2_K", SW_Q2_K, 256, 84, 80, 82, SW_INT2, 16, SW_NIBBLES, 1},
    {"Q3_K", SW_Q3_K, 256, 110, 108, -1, SW_INT3, 16, SW_TWO_LEVELS, 0},
    {"Q4_K", SW_Q4_K, 256, 144, 0, 2, SW_INT4, 32, SW_TWO_LEVELS, 1},
    {"Q5_K", SW_Q5_K, 256, 176, 0, 2, SW_INT5, 32, SW_TWO_LEVELS, 1},
    {"Q6_K", SW_Q6_K, 256, 210, 208, -1, SW_INT6, 16, SW_TWO_LEVELS, 0},
    {"IQ4_NL", SW_IQ4_NL, 32, 18, 0, -1, SW_IQ4, 32, SW_FP16, 0},
    {"IQ4_XS", SW_IQ4_XS, 256, 136, 0, -1, SW_IQ4, 32, SW_TWO_LEVELS, 0},
    {"MXFP4", SW_MXFP4, 32, 17, -1, -1, SW_E2M1, 32, SW_E8M0, 0},
};

static void blocks(const block_type* t, int n, int k) {
  sw_weight w = {NULL, n, k, t->dtype, t->group, t->scale_dtype, t->minimums};
  w.at = allocate(sw_weight_bytes(&w));
  size_t count = (size_t)n * k / t->columns, bytes = count * t->bytes;
  uint8_t* numbers = malloc(bytes);
  state = 3;
  for (size_t i = 0; i < bytes; ++i) numbers[i] = (uint8_t)next();
  for (size_t i = 0; i < count; ++i) {
    uint8_t* block = numbers + i * t->bytes;
    for (int which = 0; which < 2; ++which) {
      int at = which ? t->second_scale : t->scale;
      uint16_t half = (uint16_t)(0x1c00 + next() % 0x1000);
      if (at >= 0) memcpy(block + at, &half, 2);
    }
    if (t->scale_dtype == SW_E8M0) block[0] = (uint8_t)(120 + next() % 8);
  }
  int32_t* destination = reversed(n);
  sw_pack_blocks(NULL, &w, t->type, numbers, bytes / n, n, destination);
  multiply(t->form, &w, 3e-5);
  sw_memory_unmap(w.at, sw_weight_bytes(&w));
  free(numbers);
  free(destination);
}

int main(void) {
  if (sw_abi() != SW_ABI) {
    printf("the library has interface %d, this program %d\n", sw_abi(), SW_ABI);
    return 1;
  }
  printf("isa %s\n", sw_isa());
  floats("fp32", SW_FP32, 80, 301);
  floats("bf16", SW_BF16, 80, 301);
  codes("int4-group32", SW_INT4, 32, SW_FP16, 0, 80, 320);
  codes("int4-group128-minimums", SW_INT4, 128, SW_FP16, 1, 80, 300);
  codes("int4-row", SW_INT4, 301, SW_FP32, 0, 80, 301);
  codes("int8-group16", SW_INT8, 16, SW_FP16, 0, 80, 304);
  codes("int8-group64-minimums", SW_INT8, 64, SW_FP32, 1, 80, 300);
  codes("int8-row", SW_INT8, 301, SW_FP32, 0, 80, 301);
  codes("e4m3-group128", SW_E4M3, 128, SW_FP32, 0, 80, 301);
  codes("e4m3-row", SW_E4M3, 301, SW_FP32, 0, 80, 301);
  for (size_t i = 0; i < sizeof(block_types) / sizeof(block_types[0]); ++i) blocks(&block_types[i], 80, 512);
  return failures != 0;
}
