package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Encodings of values and levels.
const (
	plainEncoding           = 0
	plainDictionaryEncoding = 2
	rleEncoding             = 3
	deltaLengthEncoding     = 6
	deltaBytesEncoding      = 7
	dictionaryEncoding      = 8
)

// hybrid reads integers of the RLE and bit-packing hybrid, one by one: runs of one value, and groups of eight.
type hybrid struct {
	b      []byte
	width  int
	left   uint64 // in the run
	packed bool
	value  uint32 // of a run of one value
	bits   int    // of the first byte of b, that a run of groups has used
}

func newHybrid(b []byte, width int) (*hybrid, error) {
	if width > 32 {
		return nil, fmt.Errorf("integers of %d bits, expected at most 32", width)
	}
	return &hybrid{b: b, width: width}, nil
}

func (h *hybrid) next() (uint32, error) {
	for h.left == 0 {
		if err := h.run(); err != nil {
			return 0, err
		}
	}
	h.left--
	if !h.packed {
		return h.value, nil
	}
	x := unpack(h.b, h.bits, h.width)
	h.bits += h.width
	h.b, h.bits = h.b[h.bits/8:], h.bits%8
	return x, nil
}

// run begins the next run.
func (h *hybrid) run() error {
	head, n := binary.Uvarint(h.b)
	if n <= 0 {
		return errors.New("the page has fewer values than it declares")
	}
	h.b, h.packed, h.bits = h.b[n:], head&1 == 1, 0
	if h.packed {
		groups := head >> 1
		if h.width > 0 { // the last run may lack the bytes of values that are not there
			groups = min(groups, uint64(len(h.b)/h.width)+1)
		}
		h.left = groups * 8
		if h.width > 0 {
			h.left = min(h.left, uint64(len(h.b))*8/uint64(h.width))
		} else {
			h.packed, h.value = false, 0
		}
		return nil
	}
	size := (h.width + 7) / 8
	if size > len(h.b) {
		return errors.New("a run has no value")
	}
	var value [4]byte
	copy(value[:], h.b[:size])
	h.value, h.left, h.b = binary.LittleEndian.Uint32(value[:]), head>>1, h.b[size:]
	return nil
}

// unpack returns the integer of width bits that begins at a bit of b.
func unpack(b []byte, bit, width int) uint32 {
	var word [8]byte
	copy(word[:], b[bit/8:])
	return uint32(binary.LittleEndian.Uint64(word[:]) >> (bit % 8) & (1<<width - 1))
}

// plainTexts cuts texts with lengths before them off a page.
type plainTexts struct{ b []byte }

func (p *plainTexts) next() ([]byte, error) {
	if len(p.b) < 4 {
		return nil, errors.New("the page has fewer values than it declares")
	}
	n := uint64(binary.LittleEndian.Uint32(p.b))
	if n > uint64(len(p.b)-4) {
		return nil, fmt.Errorf("a text of %d bytes where %d are left", n, len(p.b)-4)
	}
	text := p.b[4 : 4+n]
	p.b = p.b[4+n:]
	return text, nil
}

// dictionary is a page of texts with lengths before them, and where each begins.
type dictionary struct {
	content []byte
	offsets []uint32
}

// newDictionary finds the n texts of a page.
func newDictionary(content []byte, n int64) (*dictionary, error) {
	if n > int64(len(content)/4) {
		return nil, fmt.Errorf("a dictionary of %d values in %d bytes", n, len(content))
	}
	d := &dictionary{content, make([]uint32, n)}
	p := plainTexts{content}
	for i := range d.offsets {
		d.offsets[i] = uint32(len(content) - len(p.b))
		if _, err := p.next(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// dictionaryTexts looks texts up.
type dictionaryTexts struct {
	dictionary *dictionary
	indexes    *hybrid
}

func newDictionaryTexts(b []byte, dictionary *dictionary) (*dictionaryTexts, error) {
	if len(b) == 0 { // no value but nulls
		return &dictionaryTexts{dictionary, &hybrid{}}, nil
	}
	h, err := newHybrid(b[1:], int(b[0]))
	return &dictionaryTexts{dictionary, h}, err
}

func (d *dictionaryTexts) next() ([]byte, error) {
	i, err := d.indexes.next()
	if err != nil {
		return nil, err
	}
	if int64(i) >= int64(len(d.dictionary.offsets)) {
		return nil, fmt.Errorf("value %d of a dictionary of %d", i, len(d.dictionary.offsets))
	}
	p := plainTexts{d.dictionary.content[d.dictionary.offsets[i]:]}
	return p.next()
}

// deltaTexts are texts whose lengths come first, as differences; with prefixes, each begins with as many bytes of the
// one before.
type deltaTexts struct {
	prefixes, lengths []int32
	b, last           []byte
}

// newDeltaTexts reads the lengths of at most n texts.
func newDeltaTexts(b []byte, n int64, prefixed bool) (d *deltaTexts, err error) {
	d = &deltaTexts{}
	if len(b) == 0 { // no value but nulls
		return d, nil
	}
	if prefixed {
		if d.prefixes, b, err = deltas(b, n); err != nil {
			return nil, err
		}
	}
	if d.lengths, b, err = deltas(b, n); err != nil {
		return nil, err
	}
	if prefixed && len(d.prefixes) != len(d.lengths) {
		return nil, fmt.Errorf("%d prefixes of %d texts", len(d.prefixes), len(d.lengths))
	}
	d.b = b
	return d, nil
}

func (d *deltaTexts) next() ([]byte, error) {
	if len(d.lengths) == 0 {
		return nil, errors.New("the page has fewer values than it declares")
	}
	n := int(d.lengths[0])
	d.lengths = d.lengths[1:]
	if n < 0 || n > len(d.b) {
		return nil, fmt.Errorf("a text of %d bytes where %d are left", n, len(d.b))
	}
	text := d.b[:n:n]
	d.b = d.b[n:]
	if d.prefixes == nil {
		return text, nil
	}
	p := int(d.prefixes[0])
	d.prefixes = d.prefixes[1:]
	if p < 0 || p > len(d.last) || p+n > MaxPage {
		return nil, fmt.Errorf("a text with %d bytes of one of %d", p, len(d.last))
	}
	d.last = append(d.last[:p:p], text...)
	return d.last, nil
}

// deltas reads at most n integers of the encoding DELTA_BINARY_PACKED, and returns what follows them.
func deltas(b []byte, n int64) (values []int32, rest []byte, err error) {
	t := &thrift{b: b}
	block, minis, count, value := t.uvarint(), t.uvarint(), t.uvarint(), t.int()
	switch {
	case t.err != nil:
		return nil, nil, fmt.Errorf("lengths: %w", t.err)
	case block == 0 || block > 1<<16 || minis == 0 || minis > block || block%minis != 0 || block/minis%8 != 0:
		return nil, nil, fmt.Errorf("lengths: blocks of %d in %d", block, minis)
	case count > uint64(n) || count > 1024+64*uint64(len(b)): // a block of 128 takes at least 5 bytes
		return nil, nil, fmt.Errorf("lengths: %d, expected at most %d in %d bytes", count, n, len(b))
	case count == 0:
		return nil, t.b, nil
	}
	mini := block / minis
	for first := true; uint64(len(values)) < count; {
		if first {
			values, first = append(values, int32(value)), false
			continue
		}
		least, widths := t.int(), t.take(minis)
		if t.err != nil {
			return nil, nil, fmt.Errorf("lengths: %w", t.err)
		}
		for _, width := range widths {
			if uint64(len(values)) == count {
				break
			}
			if width > 32 {
				return nil, nil, fmt.Errorf("lengths: differences of %d bits", width)
			}
			packed := t.take(mini * uint64(width) / 8)
			if t.err != nil {
				return nil, nil, fmt.Errorf("lengths: %w", t.err)
			}
			for i := uint64(0); i < mini && uint64(len(values)) < count; i++ {
				bit := i * uint64(width)
				value += least + int64(unpack(packed[min(bit/8, uint64(len(packed))):], int(bit%8), int(width)))
				if value < math.MinInt32 || value > math.MaxInt32 {
					return nil, nil, fmt.Errorf("lengths: %d", value)
				}
				values = append(values, int32(value))
			}
		}
	}
	return values, t.b, nil
}

// levelWidth is the number of bits of levels from 0 to most.
func levelWidth(most int) int { return bits.Len(uint(most)) }
