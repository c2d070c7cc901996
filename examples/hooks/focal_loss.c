// Focal loss (arXiv 1708.02002, equation 4) with the z-loss of PaLM (arXiv 2204.02311, section 5): for each token
//
//	(1 − p)^γ · (−log p) + z · (log Σ e^logits)²,  p the target's probability
//
// Config: gamma (2), z (1e-4).
#include "gpupipe.h"

GP_BUILD_LOSS(logits, targets) {
  double gamma = gp_config_number("gamma", 2), z = gp_config_number("z", 1e-4);
  gp_value lse = gp_log_sum_exp(logits);
  gp_value nll = gp_sub(lse, gp_pick(logits, targets)); // −log p
  gp_value miss = gp_shift(gp_neg(gp_exp(gp_neg(nll))), 1);
  gp_value focus = gamma == 2 ? gp_square(miss) : gp_pow(gp_maximum(miss, gp_number(1e-12)), gp_number(gamma));
  return gp_add(gp_mul(focus, nll), gp_scale(gp_square(lse), z));
}
