// Drops documents that are near-duplicates of earlier ones: MinHash over shingles of five words (Broder 1997, "On the
// resemblance and containment of documents"). 128 hashes come from one pass (one permutation hashing, arXiv 1208.1259;
// what stays empty is filled as in arXiv 1703.04664). Documents that agree in one of 32 bands of four hashes are
// compared by all of them, of which 8 bits are kept (arXiv 0910.3349). The first of several that are alike stays.
//
// Words are runs of letters and digits; whether letters are large or small is the same. A document of fewer than five
// words is one shingle.
//
// Config: threshold (0.8: the share of shingles in common, of all of both, that makes a duplicate), documents (200000:
// how many of the latest ones are remembered, each at the price of 0.3 kB), split (""; "\n", say, looks at lines
// instead of documents).
#include "gpupipe.h"

enum { HASHES = 128, BANDS = 32, ROWS = HASHES / BANDS, WORDS = 5, CHAIN = 64, LOOKS = 64, FEW = 12 };

typedef struct {
  uint8_t hashes[HASHES];
  uint32_t before[BANDS]; // in each band the document before in its bucket
} memory;

// The number of documents seen makes the module stateful, so that it sees all of them in order. Numbers begin at 1.
static struct {
  uint64_t kept;
} state;
GP_STATE(state)

static double threshold;
static uint32_t room, buckets; // of the ring of memories, and of each band's table
static memory *ring;
static uint32_t *latest; // [BANDS, buckets]: the last document in each bucket
static const char *split;
static size_t split_length;

static uint64_t mix(uint64_t x) { // of SplitMix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static unsigned char folded[256];    // characters as hashed; 0 between words
static uint8_t looks[HASHES][LOOKS]; // where an empty bin looks for one that is not
// turn is of a bin, and of each where it looks: at which look first; LOOKS for where it does not.
static uint8_t turn[HASHES][HASHES];

static void prepare(void) {
  for (int c = 0; c < 256; c++) {
    int digit = c >= '0' && c <= '9', letter = (c | 32) >= 'a' && (c | 32) <= 'z';
    folded[c] = (unsigned char)(letter ? c | 32 : digit || c >= 128 ? c : 0);
  }
  for (uint64_t i = 0; i < HASHES * LOOKS; i++) looks[i / LOOKS][i % LOOKS] = mix(i + 1) % HASHES;
  for (int i = 0; i < HASHES; i++) {
    for (int b = 0; b < HASHES; b++) turn[i][b] = LOOKS;
    for (int n = LOOKS; n-- > 0;) turn[i][looks[i][n]] = (uint8_t)n;
  }
}

GP_OPEN() {
  prepare();
  threshold = gp_config_number("threshold", 0.8);
  double documents = gp_config_number("documents", 200000);
  split = gp_config_text("split", "");
  split_length = gp_length(split);
  if (!(threshold > 0 && threshold <= 1)) {
    gp_fail("threshold: expected a number above 0 and at most 1");
    return;
  }
  if (!(documents >= 1 && documents <= 1 << 24)) {
    gp_fail("documents: expected a number from 1 to 2^24");
    return;
  }
  room = (uint32_t)documents;
  for (buckets = 1; buckets < room;) buckets *= 2;
  ring = gp_alloc((size_t)room * sizeof *ring); // fresh memory is zero
  latest = gp_alloc((size_t)BANDS * buckets * sizeof *latest);
  if (!ring || !latest) gp_fail("documents: too many for the module's memory: raise memory_mb");
}

static const uint64_t EMPTY = UINT64_MAX;

// A shingle falls into the bin of its hash's low bits; a bin keeps the least of what falls into it.
static void drop(uint64_t *bins, uint64_t shingle) {
  uint64_t h = mix(shingle);
  uint64_t *bin = bins + h % HASHES;
  h >>= 16;
  if (h < *bin) *bin = h;
}

// sketch fills bins with the shingles of a text and returns how many words it has. A shingle is its words' hashes w as
// the polynomial Σ w·P^age, of which the oldest word is taken away when the next one comes.
static size_t sketch(const char *text, size_t length, uint64_t *bins) {
  const uint64_t P = 0x9e3779b97f4a7c15u, P5 = P * P * P * P * P;
  for (int i = 0; i < HASHES; i++) bins[i] = EMPTY;
  uint64_t ages[WORDS] = {0}, shingle = 0;
  size_t words = 0;
  for (size_t i = 0; i < length;) {
    uint64_t w = 0;
    unsigned char c;
    for (; i < length && (c = folded[(unsigned char)text[i]]); i++) w = (w ^ c) * 0x100000001b3u;
    i++;
    if (!w) continue;
    w = mix(w);
    uint64_t *oldest = ages + words++ % WORDS;
    shingle = shingle * P + w - *oldest * P5;
    *oldest = w;
    if (words >= WORDS) drop(bins, shingle);
  }
  if (words > 0 && words < WORDS) drop(bins, shingle);
  return words;
}

// find looks for a bin that is not empty, in the place of one that is.
static int find(const uint64_t *bins, int i) {
  int at = looks[i][0];
  for (int n = 1; bins[at] == EMPTY; n++) at = n < LOOKS ? looks[i][n] : (at + 1) % HASHES;
  return at;
}

// earliest is what find finds, where few bins are not empty: it asks each of them how soon it is looked at.
static int earliest(const uint64_t *bins, const uint8_t *taken, int few, int i) {
  int soonest = LOOKS, at = 0;
  for (int k = 0; k < few; k++) {
    int n = turn[i][taken[k]];
    at = n < soonest ? taken[k] : at;
    soonest = n < soonest ? n : soonest;
  }
  return soonest < LOOKS ? at : find(bins, i);
}

// fill_gaps lets empty bins have what another bin has, the first that is not empty of those where the empty one looks.
static void fill_gaps(const uint64_t *bins, uint64_t *full) {
  uint8_t taken[HASHES];
  int count = 0;
  for (int i = 0; i < HASHES; i++) {
    taken[count] = (uint8_t)i;
    count += bins[i] != EMPTY;
  }
  for (int i = 0; i < HASHES; i++)
    full[i] = bins[i] != EMPTY ? bins[i] : bins[count < FEW ? earliest(bins, taken, count, i) : find(bins, i)];
}

// alike estimates the share of shingles that two documents have in common: hashes of 8 bits are also equal by chance.
static double alike(const uint8_t *a, const uint8_t *b) {
  uint32_t equal = 0;
  for (int i = 0; i < HASHES; i++) equal += a[i] == b[i];
  return ((double)equal / HASHES - 1. / 256) / (1 - 1. / 256);
}

// is_new reports whether no remembered document resembles this one, and then remembers it.
static int is_new(const char *text, size_t length) {
  uint64_t bins[HASHES], full[HASHES];
  if (sketch(text, length, bins) == 0) return 1; // nothing to compare
  fill_gaps(bins, full);
  uint32_t number = (uint32_t)(state.kept + 1), bucket[BANDS];
  memory here;
  for (int i = 0; i < HASHES; i++) here.hashes[i] = (uint8_t)full[i];
  for (uint32_t b = 0; b < BANDS; b++) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < ROWS; i++) h = h * 0x9e3779b97f4a7c15u + full[ROWS * b + i];
    bucket[b] = b * buckets + (uint32_t)(mix(h) & (buckets - 1));
    here.before[b] = latest[bucket[b]]; // of all bands at once: the memory is slow, and has time meanwhile
  }
  for (uint32_t b = 0; b < BANDS; b++) {
    uint32_t other = here.before[b];
    for (int n = 0; n < CHAIN && other && number - other <= room; n++) {
      const memory *m = ring + other % room;
      if (alike(here.hashes, m->hashes) >= threshold) return 0;
      other = m->before[b];
    }
  }
  for (uint32_t b = 0; b < BANDS; b++) latest[bucket[b]] = number;
  ring[number % room] = here;
  state.kept++;
  return 1;
}

// ends returns where a part of a text ends: after the next separator, or with the text.
static size_t ends(const char *text, size_t length, size_t at) {
  for (; split_length && at + split_length <= length; at++) {
    size_t same = 0;
    while (same < split_length && text[at + same] == split[same]) same++;
    if (same == split_length) return at + split_length;
  }
  return length;
}

GP_MAP_DOCUMENT(text, length) {
  char *out = gp_temp(length), *to = out;
  if (!out) {
    gp_fail("out of memory");
    return;
  }
  for (size_t i = 0, end; i < length; i = end) {
    end = ends(text, length, i);
    if (!is_new(text + i, end - i)) continue;
    __builtin_memcpy(to, text + i, end - i);
    to += end - i;
  }
  if (to > out) gp_emit(out, (size_t)(to - out));
}
