// Keeps documents that look like prose, by some of Gopher's rules (arXiv 2112.11446, table A1), and drops their lines
// of nothing but white space.
//
// Config: least_words (50), least_letters (0.8: the share of words with a letter), most_symbols (0.1: # and … a word).
#include "gpupipe.h"

static double least_words, least_letters, most_symbols;

GP_OPEN() {
  least_words = gp_config_number("least_words", 50);
  least_letters = gp_config_number("least_letters", 0.8);
  most_symbols = gp_config_number("most_symbols", 0.1);
}

static int is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static int is_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

typedef struct {
  size_t words, lettered, letters, symbols;
} counts;

static counts count(const char *text, size_t length) {
  counts n = {0, 0, 0, 0};
  for (size_t i = 0; i < length;) {
    while (i < length && is_space(text[i])) i++;
    if (i == length) break;
    int lettered = 0;
    for (; i < length && !is_space(text[i]); i++) {
      int letter = is_letter(text[i]) || text[i] < 0; // what is not ASCII counts as a letter
      n.letters += (size_t)letter, lettered |= letter;
      n.symbols += text[i] == '#' || (i + 2 < length && text[i] == '.' && text[i + 1] == '.' && text[i + 2] == '.');
    }
    n.words++, n.lettered += (size_t)lettered;
  }
  return n;
}

// without_blank_lines copies text and returns the length of what is left.
static size_t without_blank_lines(const char *text, size_t length, char *out) {
  size_t n = 0;
  for (size_t i = 0; i < length;) {
    size_t begin = i, blank = 1;
    for (; i < length && text[i] != '\n'; i++) blank &= is_space(text[i]);
    i += i < length;
    for (size_t j = begin; !blank && j < i; j++) out[n++] = text[j];
  }
  return n;
}

GP_MAP_DOCUMENT(text, length) {
  counts n = count(text, length);
  double words = (double)n.words;
  if (words < least_words) return;
  if ((double)n.lettered < least_letters * words) return;
  if ((double)n.symbols > most_symbols * words) return;
  if (n.letters < 3 * n.words || n.letters > 10 * n.words) return; // the mean length of a word
  char *out = gp_temp(length);
  if (!out) {
    gp_fail("out of memory");
    return;
  }
  gp_emit(out, without_blank_lines(text, length, out));
}
