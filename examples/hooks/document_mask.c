// Keeps attention within documents (as in arXiv 2407.21783, section 3.2): a token sees those of its own document only.
// A separator is the last token of its document; what comes after it is another one's to predict, and does not count.
//
// What hooks before this one have set apart stays apart.
//
// Config: separator (the number of a token: the tokenizer's end of text, or of bytes 10, a line break).
#include "gpupipe.h"

static uint32_t separator;

GP_OPEN() {
  double s = gp_config_number("separator", -1);
  separator = s >= 0 && s < 4294967295.0 ? (uint32_t)s : 0;
  if (s != (double)separator) gp_fail("separator: expected the number of a token");
}

GP_MAP_BATCH(batch) {
  uint32_t numbers = 1; // of segments so far
  for (size_t i = 0; i < (size_t)batch->rows * batch->length; i++) {
    if (batch->segments[i] >= numbers) numbers = batch->segments[i] + 1;
  }
  for (uint32_t row = 0; row < batch->rows; row++) {
    size_t first = (size_t)row * batch->length;
    uint32_t document = 0;
    for (size_t i = first; i < first + batch->length; i++) {
      batch->segments[i] += document * numbers;
      if (batch->tokens[i] != separator) continue;
      batch->weights[i] = 0;
      document++;
    }
  }
}
