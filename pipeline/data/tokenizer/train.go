package tokenizer

import (
	"container/heap"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// TrainOptions are the options of a Trainer.
type TrainOptions struct {
	VocabSize    int      // tokens, special ones and the 256 bytes included
	Pattern      string   // how text is cut into words: one of TrainPatterns
	MinFrequency int64    // pairs that occur less often are not merged
	Special      []string // tokens that no text is merged into; the first one ends a document
	MaxWords     int      // different words in memory; 0: DefaultMaxWords
}

// DefaultMaxWords is how many different words a Trainer keeps: they need about 1 GB.
const DefaultMaxWords = 10_000_000

// trainPatterns are the patterns that tokenizers are trained with, by name.
var trainPatterns = map[string]string{"gpt2": gpt2Pattern, "gpt4": gpt4Pattern, "qwen2": qwenPattern}

// TrainPatterns lists the values of TrainOptions.Pattern.
func TrainPatterns() []string { return []string{"gpt4", "gpt2", "qwen2"} }

// MaxVocabulary is the most tokens that a Trainer makes.
const MaxVocabulary = 1 << 20

// Trained is what training has made.
type Trained struct {
	JSON       []byte // a tokenizer.json
	VocabSize  int
	Merges     int
	Words      int   // different words
	WordsTotal int64 // all words of the text
	Pruned     int64 // words that were forgotten since there were too many; a pruned word counts each time
}

// Trainer trains a byte-level BPE: Add counts the words of a text, Train merges their most frequent pairs. Ties go to
// the pair with the smaller ids, as in Hugging Face's tokenizers, so that both find the same merges.
type Trainer struct {
	options TrainOptions
	counter *wordCounter
}

// NewTrainer returns a *fielderror.Error of an invalid option.
func NewTrainer(o TrainOptions) (*Trainer, error) {
	if o.MaxWords == 0 {
		o.MaxWords = DefaultMaxWords
	}
	pattern, ok := trainPatterns[o.Pattern]
	least := 256 + len(o.Special)
	switch {
	case !ok:
		return nil, fielderror.New("pattern", o.Pattern, "%s", strings.Join(TrainPatterns(), ", "))
	case o.VocabSize < least || o.VocabSize > MaxVocabulary:
		return nil, fielderror.New("vocab-size", o.VocabSize, "an integer from %d, the bytes and special tokens, to %d", least,
			MaxVocabulary)
	case o.MinFrequency < 1:
		return nil, fielderror.New("min-frequency", o.MinFrequency, "at least 1")
	case o.MaxWords < 1000:
		return nil, fielderror.New("max-words", o.MaxWords, "at least 1000")
	}
	for i, s := range o.Special {
		if s == "" || slices.Index(o.Special, s) < i || len(s) < 2 {
			return nil, fielderror.New("special", s, "different texts of at least two characters")
		}
	}
	return &Trainer{options: o, counter: newWordCounter(scannerOf(pattern), o.MaxWords)}, nil
}

// Add counts the words of the texts that read passes to emit, on all cores. emit owns a text.
func (t *Trainer) Add(ctx context.Context, read func(emit func(text []byte) error) error) error {
	return t.counter.add(ctx, read)
}

// Train merges pairs until the vocabulary is full. progress may be nil.
func (t *Trainer) Train(ctx context.Context, progress func(tokens, of int)) (out Trained, err error) {
	words := t.counter.total()
	m := newMerger(t.options, words)
	for len(m.tokens) < t.options.VocabSize && m.step() {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		if progress != nil {
			progress(len(m.tokens), t.options.VocabSize)
		}
	}
	out = Trained{VocabSize: len(m.tokens), Words: len(words), WordsTotal: t.counter.seen, Pruned: t.counter.pruned()}
	merges := m.list()
	out.Merges = len(merges)
	out.JSON = trainedJSON(m.tokens, merges, len(t.options.Special), t.options.Pattern)
	return out, nil
}

// merger finds merges. Words are lists of token ids.
type merger struct {
	least   int64
	tokens  []string          // by id: special tokens as they are, others as bytes
	ids     map[string]uint32 // of tokens that are bytes
	symbols []uint32          // of all words
	words   []wordSpan
	pairs   map[uint64]*pairCount // by pairKey
	queue   mergeQueue
	merges  []uint64 // pairs, in order
	touched []uint64 // pairs that the step has made
}

// wordSpan is a word: symbols[from : from+n], which occurs count times.
type wordSpan struct {
	from  int
	n     int32
	count int64
}

// pairCount is how often a pair occurs, and the words where it has occurred since it was last queued.
type pairCount struct {
	count int64
	words []int32
}

func newMerger(o TrainOptions, words map[string]int64) *merger {
	m := &merger{least: o.MinFrequency, tokens: slices.Clone(o.Special), ids: map[string]uint32{}, pairs: map[uint64]*pairCount{}}
	var byteIDs [256]uint32
	for _, b := range bytesInAlphabet() {
		byteIDs[b] = uint32(len(m.tokens))
		m.ids[string([]byte{b})] = byteIDs[b]
		m.tokens = append(m.tokens, string([]byte{b}))
	}
	total := 0
	for w := range words {
		total += len(w)
	}
	m.symbols, m.words = make([]uint32, 0, total), make([]wordSpan, 0, len(words))
	for w, count := range words {
		from, index := len(m.symbols), int32(len(m.words))
		for i := range len(w) {
			m.symbols = append(m.symbols, byteIDs[w[i]])
		}
		m.words = append(m.words, wordSpan{from, int32(len(w)), count})
		for i := from; i+1 < len(m.symbols); i++ {
			m.change(m.symbols[i], m.symbols[i+1], count, index)
		}
	}
	m.enqueue(func(q queuedPair) { m.queue = append(m.queue, q) })
	heap.Init(&m.queue)
	return m
}

// bytesInAlphabet lists the bytes in the order of their characters in GPT-2's alphabet.
func bytesInAlphabet() []byte {
	list := make([]byte, 256)
	for b := range list {
		list[b] = byte(b)
	}
	slices.SortFunc(list, func(a, b byte) int { return strings.Compare(byteChars[a], byteChars[b]) })
	return list
}

// change adds occurrences of a pair in a word, or takes them away if by is negative.
func (m *merger) change(left, right uint32, by int64, word int32) {
	key := pairKey(left, right)
	p := m.pairs[key]
	if p == nil {
		p = &pairCount{}
		m.pairs[key] = p
	}
	p.count += by
	if by < 0 {
		return
	}
	if len(p.words) == 0 {
		m.touched = append(m.touched, key)
	}
	if n := len(p.words); n == 0 || p.words[n-1] != word {
		p.words = append(p.words, word)
	}
}

// enqueue pushes the touched pairs.
func (m *merger) enqueue(push func(queuedPair)) {
	for _, key := range m.touched {
		p := m.pairs[key]
		if p.count > 0 {
			push(queuedPair{p.count, key, p.words})
		}
		p.words = nil
	}
	m.touched = m.touched[:0]
}

// step makes the next merge. It reports false if no pair is frequent enough.
func (m *merger) step() bool {
	for len(m.queue) > 0 {
		top := &m.queue[0]
		if count := m.pairs[top.pair].count; count != top.count {
			top.count = count
			heap.Fix(&m.queue, 0)
			continue
		}
		if top.count < m.least {
			return false
		}
		m.merge(heap.Pop(&m.queue).(queuedPair))
		return true
	}
	return false
}

// merge makes a token of a pair, and replaces the pair in the words where it is.
func (m *merger) merge(q queuedPair) {
	left, right := uint32(q.pair>>32), uint32(q.pair)
	text := m.tokens[left] + m.tokens[right]
	id, ok := m.ids[text]
	if !ok {
		id = uint32(len(m.tokens))
		m.tokens, m.ids[text] = append(m.tokens, text), id
	}
	m.merges = append(m.merges, q.pair)
	for _, w := range q.words {
		m.replace(w, left, right, id)
	}
	m.enqueue(func(q queuedPair) { heap.Push(&m.queue, q) })
}

// replace replaces a pair in a word, and counts the pairs of its neighbors.
func (m *merger) replace(word int32, left, right, id uint32) {
	w := &m.words[word]
	syms := m.symbols[w.from : w.from+int(w.n)]
	k := 0
	for i := 0; i < len(syms); k++ {
		if syms[i] != left || i+1 == len(syms) || syms[i+1] != right {
			syms[k] = syms[i]
			i++
			continue
		}
		if k > 0 {
			m.change(syms[k-1], left, -w.count, word)
			m.change(syms[k-1], id, w.count, word)
		}
		syms[k] = id
		if i += 2; i < len(syms) {
			m.change(right, syms[i], -w.count, word)
			m.change(id, syms[i], w.count, word)
		}
	}
	w.n = int32(k)
}

// list returns the merges in order, each once: of one that was made several times the last counts.
func (m *merger) list() (out [][2]string) {
	last := make(map[uint64]int, len(m.merges))
	for i, pair := range m.merges {
		last[pair] = i
	}
	for i, pair := range m.merges {
		if last[pair] == i {
			out = append(out, [2]string{toAlphabet(m.tokens[pair>>32]), toAlphabet(m.tokens[uint32(pair)])})
		}
	}
	return out
}

// queuedPair is a pair that may be merged, with its count when it was queued and the words where it was found.
type queuedPair struct {
	count int64
	pair  uint64
	words []int32
}

// mergeQueue has the most frequent pair first, and of equally frequent ones that with the smallest ids.
type mergeQueue []queuedPair

func (q mergeQueue) Len() int { return len(q) }
func (q mergeQueue) Less(i, j int) bool {
	return q[i].count > q[j].count || q[i].count == q[j].count && q[i].pair < q[j].pair
}
func (q mergeQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *mergeQueue) Push(x any)   { *q = append(*q, x.(queuedPair)) }
func (q *mergeQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	(*q)[last] = queuedPair{}
	*q = (*q)[:last]
	return x
}

// trainedJSON writes a tokenizer.json. The first tokens are special.
func trainedJSON(tokens []string, merges [][2]string, special int, pattern string) []byte {
	vocab := make([]string, len(tokens))
	var added []addedToken
	for id, s := range tokens {
		if vocab[id] = s; id < special {
			added = append(added, addedToken{ID: int64(id), Content: s, Special: true})
		} else {
			vocab[id] = toAlphabet(s)
		}
	}
	byteLevel := func(regex bool) object {
		return object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex}
	}
	pre := byteLevel(true)
	if pattern != "gpt2" {
		split := object{"type": "Split", "pattern": object{"Regex": trainPatterns[pattern]}, "behavior": "Isolated", "invert": false}
		pre = object{"type": "Sequence", "pretokenizers": []object{split, byteLevel(false)}}
	}
	return bpeJSON(vocab, merges, added, compact(pre), compact(byteLevel(true)))
}

func compact(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("tokenizer: %v", err)) // texts and booleans
	}
	return string(text)
}
