// Fill in the middle (arXiv 2207.14255): a share of the documents is cut at two random characters, and its middle moved
// to the end, so that a model learns to fill gaps. Half of them are laid out as PSM, the others as SPM (its appendix
// D):
//
//	<PRE>prefix<SUF>suffix<MID>middle     <PRE><SUF>suffix<MID>prefix middle
//
// A document that holds one of the sentinels already stays as it is.
//
// Config: rate (0.5: the share of documents), spm (0.5: the share of SPM among them), prefix ("<PRE>"), suffix
// ("<SUF>"), middle ("<MID>"), end (""): the sentinels, best special tokens of the tokenizer; chunk (0 bytes: longer
// documents are cut into documents of this length first; 0: they stay whole).
#include "gpupipe.h"

static struct {
  const char *prefix, *suffix, *middle, *end;
  double rate, spm, chunk;
} config;

GP_OPEN() {
  config.prefix = gp_config_text("prefix", "<PRE>");
  config.suffix = gp_config_text("suffix", "<SUF>");
  config.middle = gp_config_text("middle", "<MID>");
  config.end = gp_config_text("end", "");
  config.rate = gp_config_number("rate", 0.5);
  config.spm = gp_config_number("spm", 0.5);
  config.chunk = gp_config_number("chunk", 0);
  const char *why = 0;
  if (!(config.rate >= 0 && config.rate <= 1)) why = "rate: expected a number from 0 to 1";
  if (!(config.spm >= 0 && config.spm <= 1)) why = "spm: expected a number from 0 to 1";
  if (!(config.chunk == 0 || (config.chunk >= 16 && config.chunk <= 1 << 30))) why = "chunk: expected 0, or 16 bytes to 2^30";
  if (!*config.prefix || !*config.suffix || !*config.middle) why = "prefix, suffix, middle: expected a text that is not empty";
  if (why) gp_fail(why);
}

static int holds(const char *text, size_t length, const char *part) {
  size_t n = gp_length(part);
  for (size_t i = 0; n && i + n <= length; i++) {
    size_t same = 0;
    while (same < n && text[i + same] == part[same]) same++;
    if (same == n) return 1;
  }
  return 0;
}

static int is_start(char c) { return (c & 0xc0) != 0x80; } // of a character

// places finds where two characters, by their numbers, begin.
static void places(const char *text, size_t length, uint32_t first, uint32_t second, size_t *a, size_t *b) {
  *a = *b = length;
  uint32_t n = 0;
  for (size_t i = 0; i < length; i++) {
    if (!is_start(text[i])) continue;
    if (n == first) *a = i;
    if (n++ == second) {
      *b = i;
      return;
    }
  }
}

static char *put(char *to, const char *text, size_t n) {
  __builtin_memcpy(to, text, n);
  return to + n;
}
static char *say(char *to, const char *text) { return put(to, text, gp_length(text)); }

static void transform(const char *text, size_t length) {
  double chosen = gp_uniform(), spm = gp_uniform();
  if (chosen >= config.rate || holds(text, length, config.prefix) || holds(text, length, config.suffix) ||
      holds(text, length, config.middle) || holds(text, length, config.end)) {
    gp_emit(text, length);
    return;
  }
  uint32_t characters = 0;
  for (size_t i = 0; i < length; i++) characters += (uint32_t)is_start(text[i]);
  uint32_t first = gp_below(characters + 1), second = gp_below(characters + 1);
  size_t a, b;
  places(text, length, first < second ? first : second, first < second ? second : first, &a, &b);
  size_t sentinels = gp_length(config.prefix) + gp_length(config.suffix) + gp_length(config.middle) + gp_length(config.end);
  char *out = gp_temp(length + sentinels), *to = out;
  if (!out) {
    gp_fail("out of memory");
    return;
  }
  to = say(to, config.prefix);
  if (spm >= config.spm) to = put(to, text, a);
  to = put(say(to, config.suffix), text + b, length - b);
  to = say(to, config.middle);
  if (spm < config.spm) to = put(to, text, a);
  to = say(put(to, text + a, b - a), config.end);
  gp_emit(out, (size_t)(to - out));
}

GP_MAP_DOCUMENT(text, length) {
  size_t chunk = config.chunk > 0 ? (size_t)config.chunk : length;
  for (size_t i = 0, n; i < length; i += n) {
    n = length - i < chunk ? length - i : chunk;
    while (i + n < length && !is_start(text[i + n])) n++;
    transform(text + i, n);
  }
}
