// Distillation from a teacher (arXiv 1503.02531, section 2) of whose predictions the k likeliest tokens are stored, as
// `gpupipe topk` writes them: for each token
//
//	α · (−log q(target)) + (1 − α) · T² · Σ p · (log p − log q_T)
//
// p ∝ teacher's probabilities^(1/T) over its k tokens, q_T the student's softmax(logits / T) over the whole vocabulary.
// That has the student forget all other tokens; with `rest` they count as one more, whose probability is what is left,
// so that it learns how much that is. This needs T = 1: at another one the store does not hold the rest.
//
// Wants data.aligned with teacher_ids [N, k] (u32 or i32, below the vocabulary's size) and teacher_logprobs f32 [N, k].
//
// Config: alpha (0.5), temperature (1), rest (false).
#include "gpupipe.h"

// rest is 1 − Σ x along the last axis, but not so little that its logarithm says nothing.
static gp_value rest_of(gp_value x) { return gp_maximum(gp_shift(gp_neg(gp_sum(x, -1, 0)), 1), gp_number(1e-5)); }

// times_log is p · (log p − log q).
static gp_value times_log(gp_value p, gp_value log_p, gp_value log_q) { return gp_mul(p, gp_sub(log_p, log_q)); }

GP_BUILD_LOSS(logits, targets) {
  double alpha = gp_config_number("alpha", 0.5), t = gp_config_number("temperature", 1);
  int rest = gp_config_true("rest");
  if (!(alpha >= 0 && alpha <= 1)) gp_fail("alpha: expected a number from 0 to 1");
  if (!(t > 0 && t <= 1000)) gp_fail("temperature: expected a number above 0 and at most 1000");
  if (rest && t != 1) gp_fail("rest: expected temperature 1");
  gp_value ids = gp_input("teacher_ids"), logprobs = gp_input("teacher_logprobs");
  uint32_t k = gp_dim(ids, -1);
  if (gp_rank(ids) != 2 || gp_rank(logprobs) != 2 || gp_dim(logprobs, -1) != k) {
    gp_fail("teacher_ids and teacher_logprobs: expected two arrays [tokens, k] of the same shape");
    return logits;
  }
  ids = gp_op("cast", &ids, 1, "{\"to\":\"u32\"}");
  gp_value log_p = rest ? logprobs : gp_log_softmax(gp_scale(logprobs, 1 / t)), p = gp_exp(log_p);
  gp_value z = gp_scale(logits, 1 / t), lse = gp_log_sum_exp(z), divergence = gp_number(0), known = gp_number(0);
  for (uint32_t j = 0; j < k; j++) {
    gp_value log_q = gp_sub(gp_pick(z, gp_reshape(gp_slice(ids, 1, j, j + 1), -1)), lse);
    gp_value p_j = gp_reshape(gp_slice(p, 1, j, j + 1), -1), log_p_j = gp_reshape(gp_slice(log_p, 1, j, j + 1), -1);
    divergence = gp_add(divergence, times_log(p_j, log_p_j, log_q));
    known = gp_add(known, gp_exp(log_q));
  }
  if (rest) {
    gp_value p_rest = rest_of(p), q_rest = rest_of(gp_reshape(known, -1, 1));
    divergence = gp_add(divergence, times_log(p_rest, gp_log(p_rest), gp_log(q_rest)));
  }
  gp_value nll = gp_sub(gp_log_sum_exp(logits), gp_pick(logits, targets));
  return gp_add(gp_scale(nll, alpha), gp_scale(divergence, (1 - alpha) * t * t));
}
