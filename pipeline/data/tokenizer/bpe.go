package tokenizer

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// bpe is the model of byte-pair encoding: a vocabulary and the ranked merges of its tokens.
type bpe struct {
	vocabulary
	merges map[uint64]merge // keyed by pairKey of the two tokens

	prefix, suffix string // continuing_subword_prefix, end_of_word_suffix
	unk            int64  // id of unk_token; -1 if none
	fuseUnk        bool
	byteFallback   bool
	ignoreMerges   bool

	whole map[string]uint32 // ignoreMerges: id of a whole word
	joins map[uint64]bool   // pairs of initial symbols that some merge can bring together; nil if unknown
}

type merge struct{ rank, id uint32 }

func pairKey(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }

func (m *bpe) index(byteLevel bool) {
	m.vocabulary.index(byteLevel)
	if !m.ignoreMerges {
		return
	}
	m.whole = make(map[string]uint32, len(m.ids))
	for s, id := range m.ids {
		if byteLevel {
			raw, ok := fromAlphabet(s)
			if !ok {
				continue
			}
			s = raw
		}
		m.whole[s] = id
	}
}

// symbols appends the ids of the characters of word, before any merge.
func (m *bpe) symbols(dst []uint32, word string) ([]uint32, error) {
	if m.byteLevel && m.prefix == "" && m.suffix == "" && !m.byteFallback {
		for i := range len(word) {
			id := m.letterIDs[word[i]]
			if id < 0 {
				if id = m.unk; id < 0 {
					return nil, fmt.Errorf("byte 0x%02X has no token, and the model has no unk_token", word[i])
				}
				if m.fuseUnk && i > 0 && m.letterIDs[word[i-1]] < 0 {
					continue
				}
			}
			dst = append(dst, uint32(id))
		}
		return dst, nil
	}
	if m.byteLevel {
		word = toAlphabet(word)
	}
	pending := false // an unk_token not yet written, to which fuse_unk may join the next
	for i := 0; i < len(word); {
		_, n := utf8.DecodeRuneInString(word[i:])
		s := word[i : i+n]
		if i > 0 {
			s = m.prefix + s
		}
		if i += n; i == len(word) {
			s += m.suffix
		}
		if id, ok := m.ids[s]; ok {
			if pending {
				dst, pending = append(dst, uint32(m.unk)), false
			}
			dst = append(dst, id)
			continue
		}
		if m.byteFallback {
			if with, ok := m.fallback(dst, s); ok {
				dst = with
				continue
			}
		}
		if m.unk < 0 {
			return nil, fmt.Errorf("character %q has no token, and the model has no unk_token", s)
		}
		if pending && !m.fuseUnk {
			dst = append(dst, uint32(m.unk))
		}
		pending = true
	}
	if pending {
		dst = append(dst, uint32(m.unk))
	}
	return dst, nil
}

// scanLimit is the number of symbols up to which a plain scan for the best pair beats the heap.
const scanLimit = 48

// encode appends the ids of one word.
func (m *bpe) encode(dst []uint32, word string, s *scratch) ([]uint32, error) {
	if ids, ok := s.cache[word]; ok {
		return append(dst, ids...), nil
	}
	if m.ignoreMerges {
		if id, ok := m.whole[word]; ok {
			return append(dst, id), nil
		}
	}
	syms, err := m.symbols(s.syms[:0], word)
	if err != nil {
		return nil, err
	}
	s.syms = syms
	start := len(dst)
	// No merge reaches over a pair of symbols that no merge brings together: such a word falls into pieces. It matters
	// where a whole document is one word (Llama-2).
	from := 0
	for i := 1; i <= len(syms); i++ {
		if i == len(syms) || m.joins != nil && !m.joins[pairKey(syms[i-1], syms[i])] {
			dst = append(dst, m.merge(syms[from:i], s)...)
			from = i
		}
	}
	s.remember(word, dst[start:])
	return dst, nil
}

// merge applies the merges to syms, lowest rank first and leftmost first among equals, and returns the symbols
// that are left. It overwrites syms.
func (m *bpe) merge(syms []uint32, s *scratch) []uint32 {
	if len(syms) > scanLimit {
		return m.mergeHeap(syms, s)
	}
	for {
		best, at := merge{rank: math.MaxUint32}, -1
		for i := range len(syms) - 1 {
			if c, ok := m.merges[pairKey(syms[i], syms[i+1])]; ok && c.rank < best.rank {
				best, at = c, i
			}
		}
		if at < 0 {
			return syms
		}
		syms[at] = best.id
		syms = append(syms[:at+1], syms[at+2:]...)
	}
}

// node is a symbol in the doubly linked list of mergeHeap.
type node struct {
	id         uint32
	prev, next int32 // -1 at the ends
	dead       bool
}

// candidate is a merge of the node at and its successor, as it was when it was found.
type candidate struct {
	merge
	at          int32
	left, right uint32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// mergeHeap does the same as the scan in n·log n.
func (m *bpe) mergeHeap(syms []uint32, s *scratch) []uint32 {
	nodes, heap := s.nodes[:0], s.heap[:0]
	for i, id := range syms {
		nodes = append(nodes, node{id: id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	nodes[len(nodes)-1].next = -1
	push := func(at int32) {
		if at < 0 || nodes[at].next < 0 {
			return
		}
		l, r := nodes[at].id, nodes[nodes[at].next].id
		if c, ok := m.merges[pairKey(l, r)]; ok {
			heap = heapPush(heap, candidate{c, at, l, r})
		}
	}
	for i := range nodes {
		push(int32(i))
	}
	for len(heap) > 0 {
		var c candidate
		c, heap = heapPop(heap)
		n := &nodes[c.at]
		if n.dead || n.id != c.left || n.next < 0 || nodes[n.next].id != c.right {
			continue // one of the two has been merged since
		}
		gone := &nodes[n.next]
		gone.dead = true
		n.id, n.next = c.id, gone.next
		if n.next >= 0 {
			nodes[n.next].prev = c.at
		}
		push(n.prev)
		push(c.at)
	}
	out := syms[:0]
	for at := int32(0); at >= 0; at = nodes[at].next {
		out = append(out, nodes[at].id)
	}
	s.nodes, s.heap = nodes, heap
	return out
}

func heapPush(h []candidate, c candidate) []candidate {
	h = append(h, c)
	for i := len(h) - 1; i > 0; {
		p := (i - 1) / 2
		if !h[i].before(h[p]) {
			break
		}
		h[i], h[p] = h[p], h[i]
		i = p
	}
	return h
}

func heapPop(h []candidate) (candidate, []candidate) {
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			return top, h
		}
		if c+1 < last && h[c+1].before(h[c]) {
			c++
		}
		if !h[c].before(h[i]) {
			return top, h
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
