// Distillation from a teacher (arXiv 1503.02531, section 2) of whose predictions the k likeliest tokens are stored, as `gpupipe topk`
// writes them: for each token
//
//	α · (−log q(target)) + (1 − α) · T² · Σ p · (log p − log q_T)
//
// p ∝ teacher's probabilities^(1/T) over its k tokens, q_T the student's softmax(logits / T) over the whole vocabulary.
//
// Wants data.aligned with teacher_ids [N, k] (u32 or i32, below the vocabulary's size) and teacher_logprobs f32 [N, k].
//
// Config: alpha (0.5), temperature (1).
#include "gpupipe.h"

GP_BUILD_LOSS(logits, targets) {
  double alpha = gp_config_number("alpha", 0.5), t = gp_config_number("temperature", 1);
  if (!(alpha >= 0 && alpha <= 1)) gp_fail("alpha: expected a number from 0 to 1");
  if (!(t > 0 && t <= 1000)) gp_fail("temperature: expected a number above 0 and at most 1000");
  gp_value ids = gp_input("teacher_ids"), logprobs = gp_input("teacher_logprobs");
  uint32_t k = gp_dim(ids, -1);
  if (gp_rank(ids) != 2 || gp_rank(logprobs) != 2 || gp_dim(logprobs, -1) != k) {
    gp_fail("teacher_ids and teacher_logprobs: expected two arrays [tokens, k] of the same shape");
    return logits;
  }
  ids = gp_op("cast", &ids, 1, "{\"to\":\"u32\"}");
  gp_value z = gp_scale(logits, 1 / t), log_p = gp_log_softmax(gp_scale(logprobs, 1 / t)), p = gp_exp(log_p);
  gp_value divergence = gp_add(gp_sum(gp_mul(p, log_p), -1, 0), gp_log_sum_exp(z));
  for (uint32_t j = 0; j < k; j++) {
    gp_value id = gp_reshape(gp_slice(ids, 1, j, j + 1), -1), share = gp_reshape(gp_slice(p, 1, j, j + 1), -1);
    divergence = gp_sub(divergence, gp_mul(share, gp_pick(z, id)));
  }
  gp_value nll = gp_sub(gp_log_sum_exp(logits), gp_pick(logits, targets));
  return gp_add(gp_scale(nll, alpha), gp_scale(divergence, (1 - alpha) * t * t));
}
