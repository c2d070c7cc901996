// Cross-entropy with label smoothing (arXiv 1512.00567, section 7) whose ε changes in the course of the run, linearly
// from one value to another, and a z-loss (arXiv 2204.02311, section 5): for each token, with V tokens in the
// vocabulary,
//
//	−(1 − ε) · log p(target) − ε/V · Σ log p + z · (log Σ e^logits)²
//
// ε is a scalar of the graph: it changes without building the loss again.
//
// Config: from (0.1: ε at step 0), to (0), steps (those of the run: when ε has become `to`), z (0).
#include "gpupipe.h"

GP_BUILD_LOSS(logits, targets) {
  double from = gp_config_number("from", 0.1), to = gp_config_number("to", 0), z = gp_config_number("z", 0);
  if (!(from >= 0 && from < 1)) gp_fail("from: expected a number of at least 0 and below 1");
  if (!(to >= 0 && to < 1)) gp_fail("to: expected a number of at least 0 and below 1");
  if (!(gp_config_number("steps", 1) >= 1)) gp_fail("steps: expected a number of at least 1");
  gp_value lse = gp_log_sum_exp(logits), epsilon = gp_scalar("epsilon");
  gp_value target = gp_pick(logits, targets), mean = gp_mean(logits, -1, 0);
  gp_value loss = gp_sub(lse, gp_add(target, gp_mul(epsilon, gp_sub(mean, target))));
  return z == 0 ? loss : gp_add(loss, gp_scale(gp_square(lse), z));
}

GP_LOSS_SCALARS(step, steps, scalars) {
  double from = gp_config_number("from", 0.1), to = gp_config_number("to", 0);
  double done = (double)step / gp_config_number("steps", (double)steps);
  scalars[0] = (float)(from + (to - from) * (done < 1 ? done : 1));
}
