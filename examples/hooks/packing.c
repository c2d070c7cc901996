// Packs documents into rows (best fit, as in arXiv 2404.10830): a document that fits into a row lies whole in one, and
// attention stays within it. One that is longer than a row is cut into full rows and a rest. What fits nowhere yet
// waits for the next batch. Once more than `waiting` predictions wait, the end of a row is filled with the beginning of
// a document instead of padding: so nothing is lost, and what waits stays bounded.
//
// A separator is the last token of its document: it is predicted, but nothing is predicted from it. Each other token is
// learnt from once, in the order of its document. Padding has weight 0.
//
// Wants data.shuffle: false, so that documents go on from row to row; with shuffled, each row is taken for a text of
// its own. Comes before other map_batch hooks, and has no use for data.aligned.
//
// Config: separator (the number of a token: the tokenizer's end of text, or of bytes 10, a line break), waiting
// (16384), shuffled (false).
#include "gpupipe.h"

static uint32_t separator, waiting;
static int shuffled;

GP_OPEN() {
  double s = gp_config_number("separator", -1), w = gp_config_number("waiting", 16384);
  separator = s >= 0 && s < 4294967295.0 ? (uint32_t)s : 0;
  waiting = w >= 0 && w <= 65536 ? (uint32_t)w : 0;
  shuffled = gp_config_true("shuffled");
  if (s != (double)separator) gp_fail("separator: expected the number of a token");
  if (w != (double)waiting) gp_fail("waiting: expected an integer from 0 to 65536");
}

// ---- What goes from batch to batch: whether there was one, its last target, how many documents wait, the lengths of
// them and of the one that is not at its end yet, in tokens, and these tokens.

enum { BEGUN, LAST, WAIT, LENGTHS };

static uint32_t *kept;
static size_t kept_words, kept_room;

static int make_room(size_t words) {
  if (words <= kept_room) return 1;
  kept = gp_alloc(words * 2 * sizeof *kept);
  kept_room = kept ? words * 2 : 0;
  return kept != 0;
}

GP_EXPORT(gpupipe_save) int32_t save(void *to, size_t room) {
  size_t size = kept_words * sizeof *kept;
  if (size && room >= size) __builtin_memcpy(to, kept, size);
  return (int32_t)size;
}

GP_EXPORT(gpupipe_load) int32_t load(const void *from, size_t size) {
  kept_words = size / sizeof *kept;
  if (!make_room(kept_words)) return -1;
  if (size) __builtin_memcpy(kept, from, size);
  return 0;
}

// ---- Documents of this batch and of those before, oldest first

enum { NONE = 0xffffffff };

typedef struct {
  uint32_t at, predictions; // one more token than predictions; 0: it is placed
  uint32_t next;            // of those with as many predictions
} document;

static uint32_t *text, used, open; // tokens; open is where the document begins that is not at its end yet
static document *documents;
static uint32_t count, pending, width; // pending: predictions in all, width: of a row
static uint32_t *first;                // [width + 1]: the oldest document with so many predictions, or NONE

static void end_document(void) {
  uint32_t n = used - open;
  if (n >= 2) documents[count++] = (document){open, n - 1, NONE};
  else used = open;
  open = used;
}

// cut has the document that is not at its end go on as another one.
static void cut(void) {
  uint32_t token = text[used - 1];
  end_document();
  text[used++] = token;
}

// add adds a token. What is as long as a row is cut.
static void add(uint32_t token) {
  text[used++] = token;
  if (used - open > 1) pending++;
  if (token == separator) end_document();
  else if (used - open > width) cut();
}

static int prepare(const gp_batch *batch) {
  width = batch->length;
  size_t tokens = batch->rows * (2 * (size_t)width + 2), most = tokens + kept_words;
  text = gp_temp(most * sizeof *text);
  documents = gp_temp(most * sizeof *documents);
  first = gp_temp(((size_t)width + 1) * sizeof *first);
  if (!text || !documents || !first) return gp_fail("out of memory"), 0;
  used = open = count = pending = 0;
  if (!kept_words) return 1;
  const uint32_t *lengths = kept + LENGTHS, *from = lengths + kept[WAIT] + 1;
  for (uint32_t i = 0; i <= kept[WAIT]; i++) {
    for (uint32_t j = 0; j < lengths[i]; j++) text[used++] = *from++;
    pending += lengths[i] ? lengths[i] - 1 : 0;
    if (i < kept[WAIT]) end_document();
  }
  return 1;
}

// read takes the documents from a batch.
static int read(const gp_batch *batch) {
  uint32_t breaks = 0, last = kept_words ? kept[LAST] : 0;
  int begun = kept_words && kept[BEGUN];
  for (uint32_t row = 0; row < batch->rows; row++) {
    const uint32_t *tokens = batch->tokens + (size_t)row * width;
    if (begun && (shuffled || tokens[0] != last)) {
      add(last); // what was left is not gone on with
      end_document();
      breaks += row > 0;
    }
    for (uint32_t i = 0; i < width; i++) add(tokens[i]);
    last = batch->targets[(size_t)row * width + width - 1];
    begun = 1;
  }
  if (!shuffled && breaks > 1 && 2 * breaks > batch->rows) {
    gp_fail("rows do not go on where the row before ends: set data.shuffle: false, or shuffled: true for this hook");
    return 0;
  }
  if (count == 0 && used - open > 1) cut(); // a batch must not be empty
  if (!make_room(LENGTHS)) return gp_fail("out of memory"), 0;
  kept[BEGUN] = 1, kept[LAST] = last;
  return 1;
}

// keep keeps what was not placed.
static int keep(void) {
  size_t n = 0, words = used - open;
  for (uint32_t d = 0; d < count; d++) {
    if (documents[d].predictions) n++, words += documents[d].predictions + 1;
  }
  uint32_t last = kept[LAST];
  if (!make_room(LENGTHS + n + 1 + words)) return gp_fail("out of memory"), 0;
  kept[BEGUN] = 1, kept[LAST] = last, kept[WAIT] = (uint32_t)n;
  uint32_t *lengths = kept + LENGTHS, *to = lengths + n + 1;
  for (uint32_t d = 0; d < count; d++) {
    if (!documents[d].predictions) continue;
    *lengths++ = documents[d].predictions + 1;
    for (uint32_t i = 0; i <= documents[d].predictions; i++) *to++ = text[documents[d].at + i];
  }
  *lengths = used - open;
  for (uint32_t i = open; i < used; i++) *to++ = text[i];
  kept_words = (size_t)(to - kept);
  return 1;
}

// ---- Rows

static void sort_in(uint32_t d) {
  uint32_t *link = first + documents[d].predictions;
  while (*link < d) link = &documents[*link].next;
  documents[d].next = *link;
  *link = d;
}

static uint32_t oldest(void) {
  uint32_t d = NONE;
  for (uint32_t n = 1; n <= width; n++) d = first[n] < d ? first[n] : d;
  return d;
}

// choose gives the largest document that fits; if none does and too much waits, the oldest.
static uint32_t choose(uint32_t space) {
  for (uint32_t n = space; n > 0; n--) {
    if (first[n] != NONE) return first[n];
  }
  return space && pending > waiting ? oldest() : NONE;
}

static void fill(const gp_batch *batch, size_t at) {
  for (size_t i = at; i < at + width; i++) {
    batch->tokens[i] = batch->targets[i] = separator;
    batch->weights[i] = 0;
    batch->segments[i] = 0;
  }
  uint32_t space = width, d = first[width] != NONE ? first[width] : oldest();
  for (uint32_t segment = 1; d != NONE; segment++, d = choose(space)) {
    document *of = documents + d;
    uint32_t n = of->predictions < space ? of->predictions : space;
    first[of->predictions] = of->next;
    for (uint32_t i = 0; i < n; i++, at++) {
      batch->tokens[at] = text[of->at + i];
      batch->targets[at] = text[of->at + i + 1];
      batch->weights[at] = 1;
      batch->segments[at] = segment;
    }
    space -= n, pending -= n;
    of->at += n, of->predictions -= n;
    if (of->predictions) sort_in(d);
  }
}

static int comes_first(const gp_batch *batch) {
  for (size_t i = 0; i < (size_t)batch->rows * batch->length; i++) {
    if (batch->weights[i] != 1 || batch->segments[i] != 0) return 0;
  }
  return 1;
}

GP_MAP_BATCH(batch) {
  if (batch->aligned_count > 0) return gp_fail("data.aligned: packing moves tokens, and what is aligned with them would be lost");
  if (!comes_first(batch)) return gp_fail("packing must come before the hooks that set weights or segments");
  if (12 * ((size_t)waiting + batch->length) > 1 << 20) return gp_fail("waiting: with seq_len it may be 87000 at most");
  if (!prepare(batch) || !read(batch)) return;
  for (uint32_t n = 0; n <= width; n++) first[n] = NONE;
  for (uint32_t d = count; d-- > 0;) sort_in(d);
  for (uint32_t row = 0; row < batch->rows; row++) fill(batch, (size_t)row * width);
  keep();
}
