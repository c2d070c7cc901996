// A hook for gpupipe: mean cross-entropy with a z-loss. gpupipe.h lists the other hooks.
#include "gpupipe.h"

GP_BUILD_LOSS(logits, targets) {
  gp_value lse = gp_log_sum_exp(logits);
  gp_value nll = gp_sub(lse, gp_pick(logits, targets));
  return gp_add(nll, gp_scale(gp_square(lse), gp_config_number("z", 1e-4)));
}
