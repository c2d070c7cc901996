// The learning rate of "Attention is all you need" (arXiv 1706.03762, equation 3), with its peak at 1: it rises
// linearly over the warm-up, then falls with the square root of the step. The config's own schedule is not used.
//
// Config: warmup (100).
#include "gpupipe.h"

static double warmup;

GP_OPEN() { warmup = gp_config_number("warmup", 100); }

GP_LEARNING_RATE(step, steps, base) {
  (void)steps, (void)base;
  double t = (double)(step + 1);
  return t < warmup ? t / warmup : __builtin_sqrt(warmup / t);
}
