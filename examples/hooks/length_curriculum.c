// Sequence length warm-up (arXiv 2108.06084, section 4.1): training begins with short sequences, whose length grows
// linearly to the full one. The tokens beyond are not lost: they become sequences of their own. With truncate they are
// dropped, as in the paper, at the cost of the same computation.
//
// What hooks before this one have set apart stays apart.
//
// Config: start (8: the length at step 0), steps (half of the run's: those until sequences have their full length),
// multiple (8: lengths are multiples of this), truncate (false).
#include "gpupipe.h"

static double start, steps, multiple;
static int truncate;

GP_OPEN() {
  start = gp_config_number("start", 8);
  steps = gp_config_number("steps", -1);
  multiple = gp_config_number("multiple", 8);
  truncate = gp_config_true("truncate");
  if (!(start >= 1 && start <= 1 << 24)) gp_fail("start: expected a number of tokens from 1 to 2^24");
  if (!(steps >= 1 || steps == -1)) gp_fail("steps: expected a number of at least 1");
  if (!(multiple >= 1 && multiple <= 1 << 24)) gp_fail("multiple: expected a number of tokens from 1 to 2^24");
}

// length_at is the length of a step's sequences, at most full.
static uint32_t length_at(const gp_batch *batch, double full) {
  double last = steps > 0 ? steps : __builtin_ceil((double)batch->steps / 2);
  if (start >= full || (double)batch->step >= last) return (uint32_t)full;
  double length = start + (full - start) * (double)batch->step / last;
  length = __builtin_floor(length / multiple) * multiple;
  return (uint32_t)(length < start ? start : length);
}

GP_MAP_BATCH(batch) {
  uint32_t length = length_at(batch, (double)batch->length);
  if (length == batch->length) return;
  uint32_t numbers = 1; // of segments so far
  for (size_t i = 0; i < (size_t)batch->rows * batch->length; i++) {
    if (batch->segments[i] >= numbers) numbers = batch->segments[i] + 1;
  }
  for (uint32_t row = 0; row < batch->rows; row++) {
    for (uint32_t i = 0; i < batch->length; i++) {
      size_t at = (size_t)row * batch->length + i;
      batch->segments[at] += i / length * numbers;
      if (truncate && i >= length) batch->weights[at] = 0;
    }
  }
}
