/* Routing of one token and the sum of its experts' results. */

/* Softmax over all experts, then the top_k of it by (value descending, index ascending). ids and weights
 * [top_k] come out in ascending order of the expert, the order in which they are summed. */
static void route(const float* logits, int experts, int top_k, int normalize, int32_t* ids, float* weights) {
  float maximum = logits[0], total = 0.0f;
  for (int e = 1; e < experts; ++e) maximum = logits[e] > maximum ? logits[e] : maximum;
  for (int e = 0; e < experts; ++e) total += exponential(logits[e] - maximum);
  int count = 0;
  float chosen_total = 0.0f;
  for (; count < top_k; ++count) {
    int best = -1;
    for (int e = 0; e < experts; ++e) {
      int taken = 0;
      for (int i = 0; i < count; ++i) taken |= ids[i] == e;
      if (!taken && (best < 0 || logits[e] > logits[best])) best = e;
    }
    ids[count] = best;
    chosen_total += exponential(logits[best] - maximum);
  }
  for (int i = 1; i < top_k; ++i)
    for (int j = i; j > 0 && ids[j] < ids[j - 1]; --j) {
      int32_t id = ids[j];
      ids[j] = ids[j - 1];
      ids[j - 1] = id;
    }
  for (int i = 0; i < top_k; ++i)
    weights[i] = exponential(logits[ids[i]] - maximum) / (normalize ? chosen_total : total);
}

/* A place below 0 has no row of y, and adds nothing. */
static void combine(float* out, const float* y, const int32_t* places, const float* weights, int top_k, int width,
                    size_t y_stride, int accumulate) {
  for (int i = 0; i < width; i += 16) {
    F16 sum = zero();
    for (int j = 0; j < top_k; ++j)
      if (places[j] >= 0) sum = fma(splat(weights[j]), pick(y + places[j] * y_stride + i, width - i), sum);
    put(out + i, accumulate ? pick(out + i, width - i) + sum : sum, width - i);
  }
}
