/* One row of logits becomes a token. reference.py defines every step; this does the same without ever sorting the
 * vocabulary. The first pass notes the maximum of every block of 64 logits; what follows looks only into blocks
 * whose maximum can still matter. */
#pragma GCC optimize("fp-contract=off")

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "../cpu/slipway.h"
#include "acceptance.h"
#include "candidates.h"
#include "lanes.h"

namespace {

/* The best of the tokens seen, by x + Gumbel noise.
 *
 * With u = 1 - y uniform, -log u >= y: a token whose y exceeds exp(x - best) cannot win, so the two logarithms are
 * taken only for the few whose random word passes this bound. */
struct Race {
  uint64_t seed;
  uint32_t position;
  int32_t token = -1;
  double best = -std::numeric_limits<double>::infinity();

  void enter(int32_t candidate, float x, uint32_t word) {
    const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-32;
    const double score = static_cast<double>(x) - std::log(-std::log(uniform));
    if (score > best || (score == best && candidate < token)) {
      best = score;
      token = candidate;
    }
  }

  /* Enters up to kBlock tokens; `ids` has kBlock entries. largest: of their x. */
  void enter_block(const int32_t* ids, const float* x, int32_t count, float largest) {
    /* 1e-9 outweighs the rounding of exp and of the scores. */
    const double bound = std::exp(static_cast<double>(largest) - best + 1e-9) * 0x1p32 - 0.5;
    if (bound < 0) return;
    uint32_t words[kBlock];
    const uint32_t least = bound >= 0x1p32 ? 0 : ~static_cast<uint32_t>(bound);
    if (draw_words(seed, position, ids, words) < least) return;
    for (int32_t i = 0; i < count; ++i) {
      if (words[i] >= least) enter(ids[i], x[i], words[i]);
    }
  }
};

/* Draws from the whole vocabulary. */
int32_t draw_from_row(const Row& row, float inverse, uint64_t seed, int32_t position) {
  Race race{seed, static_cast<uint32_t>(position)};
  const int32_t first = row.argmax();
  race.enter(first, 0.0f, philox(seed, race.position, static_cast<uint32_t>(first)));
  int32_t ids[kBlock];
  float x[kBlock];
  for (int32_t start = 0, block = 0; start < row.vocab; start += kBlock, ++block) {
    const int32_t count = std::min(kBlock, row.vocab - start);
    for (int32_t i = 0; i < kBlock; ++i) ids[i] = start + i;
    std::memcpy(x, row.logits + start, sizeof(float) * static_cast<size_t>(count));
    scale(x, count, row.top(), inverse);
    race.enter_block(ids, x, count, scaled(value_of(row.block_max[block]), row.top(), inverse));
  }
  return race.token;
}

int32_t draw_from(const Candidates& candidates, uint64_t seed, int32_t position) {
  Race race{seed, static_cast<uint32_t>(position)};
  int32_t ids[kBlock] = {};
  for (int32_t start = 0; start < candidates.count; start += kBlock) {
    const int32_t count = std::min(kBlock, candidates.count - start);
    std::memcpy(ids, candidates.ids + start, sizeof(int32_t) * static_cast<size_t>(count));
    const float* x = candidates.x + start;
    race.enter_block(ids, x, count, *std::max_element(x, x + count));
  }
  return race.token;
}

/* Every logit whose exp(x) reaches `ratio` has at least this key; 0.001 and 1.00001 outweigh all rounding. */
int32_t floor_of_ratio(const Row& row, float temperature, double ratio) {
  if (ratio <= 0) return kLowestFinite;
  const double x = std::log(ratio);
  const double floor = row.top() + static_cast<double>(temperature) * (x * 1.00001 - 0.001);
  return std::max(kLowestFinite, key_of(static_cast<float>(floor)));
}

/* Those whose surprise is nearest to the mean, until they hold `share`: |-log p - H| = |x - E[x]|. */
void keep_typical(Candidates* candidates, float share) {
  const float* x = candidates->x;
  double sum = 0;
  for (int32_t i = 0; i < candidates->count; ++i) {
    /* x may be -inf where there is no mass. */
    if (candidates->mass[i] > 0) sum += static_cast<double>(candidates->mass[i]) * static_cast<double>(x[i]);
  }
  const uint64_t total = candidates->total();
  const double mean = sum / static_cast<double>(total);
  candidates->keep_share(total, share, [=](int32_t i) {
    return unsigned_key(key_of(-static_cast<float>(std::fabs(static_cast<double>(x[i]) - mean))));
  });
}

int32_t draw(const sw_sampling& s, const Row& row, const Scratch& scratch, int32_t position, const sw_draft* draft) {
  const float inverse = std::min(1.0f / s.temperature, kLargest);
  const float min_p = std::min(s.min_p, 1.0f);
  const bool by_count = s.top_k > 0 && s.top_k < row.vocab;
  const bool by_mass = s.top_p < 1.0f, by_ratio = min_p > 0.0f, by_surprise = s.typical_p < 1.0f;
  if (!by_count && !by_mass && !by_ratio && !by_surprise) {
    if (draft && accepts(*draft, row, inverse)) return draft->token;
    return draw_from_row(row, inverse, s.seed, position);
  }

  uint64_t total = 0;
  int32_t floor = kLowestFinite;
  if (by_count) {
    floor = row.floor_of_top(s.top_k, kLowestFinite);
  } else {
    if (by_mass) {
      total = row.total_mass(inverse);
      /* What follows a token of the nucleus, itself included, holds more than 1 - top_p of the mass. */
      const double rest = (1.0 - static_cast<double>(s.top_p)) * static_cast<double>(total) / kMassUnit;
      floor = floor_of_ratio(row, s.temperature, rest / row.vocab);
    }
    if (by_ratio) floor = std::max(floor, floor_of_ratio(row, s.temperature, static_cast<double>(min_p)));
  }

  Candidates candidates(row, floor, scratch);
  if (by_count) candidates.keep_largest(s.top_k);
  scale(candidates.x, candidates.count, row.top(), inverse);
  weigh(candidates.x, candidates.count, candidates.mass);
  if (by_count) total = candidates.total();
  if (by_mass) candidates.keep_share(total, s.top_p, candidates.descending());
  if (by_ratio) candidates.keep([&](int32_t i) { return exponential(candidates.x[i]) >= min_p; });
  if (by_surprise) keep_typical(&candidates, s.typical_p);
  if (draft && accepts(*draft, candidates)) return draft->token;
  return draw_from(candidates, s.seed, position);
}

/* Is a token id of this vocabulary? */
struct Known {
  int32_t vocab;

  bool operator()(int32_t token) const { return token >= 0 && token < vocab; }
};

struct History {
  const int32_t* tokens;
  int32_t length, prompt_len;

  bool ends_with(const int32_t* sequence, int32_t count) const {
    return count <= length && std::equal(sequence, sequence + count, tokens + length - count);
  }
};

bool penalizes(const sw_sampling& s) {
  return s.repetition_penalty != 1.0f || s.frequency_penalty != 0.0f || s.presence_penalty != 0.0f;
}

bool holds_back_stop(const sw_sampling& s, const History& history) {
  return s.num_stop > 0 && history.length - history.prompt_len < s.min_tokens;
}

bool needs_edit(const sw_sampling& s, const History& history) {
  return s.num_allowed > 0 || s.num_bad > 0 || s.num_bias > 0 || holds_back_stop(s, history) || penalizes(s);
}

/* Each token of the history once. The counts need no clearing between rows: the first walk does it. */
void penalize(const sw_sampling& s, const History& history, int32_t vocab, uint32_t* counts, float* row) {
  constexpr uint32_t kDone = ~0u;
  const Known known{vocab};
  const int32_t first = s.repetition_penalty == 1.0f ? history.prompt_len : 0;
  for (int32_t i = first; i < history.length; ++i) {
    if (known(history.tokens[i])) counts[history.tokens[i]] = 0;
  }
  for (int32_t i = history.prompt_len; i < history.length; ++i) {
    if (known(history.tokens[i])) ++counts[history.tokens[i]];
  }
  for (int32_t i = first; i < history.length; ++i) {
    const int32_t token = history.tokens[i];
    if (!known(token) || counts[token] == kDone) continue;
    float logit = row[token];
    logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
    logit -= static_cast<float>(counts[token]) * s.frequency_penalty;
    if (counts[token] > 0) logit -= s.presence_penalty;
    row[token] = logit;
    counts[token] = kDone;
  }
}

/* Tokens whose bit is not set cannot be drawn. */
void apply(const uint32_t* mask, int32_t vocab, float* row) {
  for (int32_t start = 0; start < vocab; start += 32) {
    const uint32_t bits = mask[start / 32];
    if (bits == ~0u) continue;
    for (int32_t token = start; token < std::min(start + 32, vocab); ++token) {
      if (!(bits >> (token - start) & 1)) row[token] = -kInfinity;
    }
  }
}

/* Mask, allowed tokens, bad words, minimum length, bias, penalties, in this order, on a copy of the row. */
void edit(const sw_sampling& s, const float* logits, const uint32_t* mask, int32_t vocab, const History& history,
          const Scratch& scratch) {
  float* row = scratch.row;
  const Known known{vocab};
  if (s.num_allowed > 0) {
    std::fill(row, row + vocab, -kInfinity);
    for (int32_t i = 0; i < s.num_allowed; ++i) {
      if (known(s.allowed_ids[i])) row[s.allowed_ids[i]] = logits[s.allowed_ids[i]];
    }
  } else {
    std::memcpy(row, logits, sizeof(float) * static_cast<size_t>(vocab));
  }
  if (mask) apply(mask, vocab, row);
  for (int32_t i = 0; i < s.num_bad; ++i) {
    const int32_t* sequence = s.bad_ids + s.bad_offsets[i];
    const int32_t before = s.bad_offsets[i + 1] - s.bad_offsets[i] - 1;
    const bool completes = before >= 0 && known(sequence[before]) && history.ends_with(sequence, before);
    if (completes) row[sequence[before]] = -kInfinity;
  }
  if (holds_back_stop(s, history)) {
    for (int32_t i = 0; i < s.num_stop; ++i) {
      if (known(s.stop_ids[i])) row[s.stop_ids[i]] = -kInfinity;
    }
  }
  for (int32_t i = 0; i < s.num_bias; ++i) {
    if (known(s.bias_ids[i])) row[s.bias_ids[i]] += s.bias_values[i];
  }
  if (penalizes(s)) penalize(s, history, vocab, scratch.counts, row);
}

/* log-softmax of a row. */
struct Report {
  const float* logits;
  float top;
  double log_total; /* log of the sum of exp(logit - top) */

  explicit Report(const Row& row)
      : logits(row.logits),
        top(row.top()),
        log_total(std::log(static_cast<double>(row.total_mass(1.0f)) / kMassUnit)) {}

  float logprob(int32_t token) const {
    return static_cast<float>(static_cast<double>(scaled(logits[token], top, 1.0f)) - log_total);
  }
};

void report_top(const Row& row, const Report& report, int32_t num_top, const Scratch& scratch, int32_t* ids,
                float* logprobs) {
  const int32_t available = std::min(num_top, row.vocab);
  Candidates best(row, row.floor_of_top(available, key_of(-kInfinity)), scratch);
  best.keep_largest(available);
  std::sort(best.ids, best.ids + available, [&row](int32_t a, int32_t b) {
    const float left = row.logits[a], right = row.logits[b];
    return left != right ? left > right : a < b;
  });
  for (int32_t i = 0; i < num_top; ++i) {
    ids[i] = i < available ? best.ids[i] : -1;
    logprobs[i] = i < available ? report.logprob(best.ids[i]) : -kInfinity;
  }
}

}  // namespace

extern "C" size_t sw_sample_scratch_bytes(int32_t vocab) {
  Scratch scratch;
  return lay_out(vocab, nullptr, &scratch);
}

extern "C" void sw_sample_row(const sw_sampling* sampling, float* logits, const float* edited, const uint32_t* mask,
                              int32_t vocab, const int32_t* tokens, int32_t history_len, int32_t prompt_len, int32_t given,
                              const sw_draft* draft, int32_t want_logprob, int32_t num_top, void* memory,
                              sw_drawn* drawn, int32_t* top_ids, float* top_logprobs) {
  const sw_sampling& s = *sampling;
  const History history{tokens, history_len, prompt_len};
  Scratch scratch;
  lay_out(vocab, static_cast<char*>(memory), &scratch);
  *drawn = {-1, 1, 0.0f, 0};
  Row row;
  if (!scan_row(logits, vocab, scratch.block_max, &row)) return;

  std::optional<Report> report;
  if (want_logprob) {
    report.emplace(row);
    if (num_top > 0) report_top(row, *report, num_top, scratch, top_ids, top_logprobs);
  }
  drawn->token = given;
  if (given < 0) {
    if (edited || mask || needs_edit(s, history)) {
      edit(s, edited ? edited : logits, mask, vocab, history, scratch);
      if (!scan_row(scratch.row, vocab, scratch.block_max, &row)) return;
    }
    drawn->token = s.temperature > 0 ? draw(s, row, scratch, history_len, draft) : row.argmax();
  }
  drawn->failed = 0;
  if (report) {
    drawn->logprob = report->logprob(drawn->token);
    drawn->rank = 1 + count_before(logits, vocab, drawn->token);
  }
}
