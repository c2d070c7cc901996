package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

const (
	maxHeader   = 100_000_000 // bytes, the format's own limit
	maxRank     = 64
	metadataKey = "__metadata__"
)

// placed is a tensor and where it lies, in bytes from the start of the file's data.
type placed struct {
	Tensor
	begin, end int64
}

// readHeader validates the header of a file of the given size wholly. It returns the tensors by offset, and
// where the data begins.
func readHeader(r io.ReaderAt, size int64) (tensors []placed, data int64, err error) {
	var length [8]byte
	if size < 8 {
		return nil, 0, fmt.Errorf("file of %d bytes is too short for a header", size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, 0, fmt.Errorf("header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader {
		return nil, 0, fmt.Errorf("header claims %d bytes, at most %d are allowed", n, maxHeader)
	}
	if int64(n) > size-8 {
		return nil, 0, fmt.Errorf("header claims %d bytes, the file has %d after its length", n, size-8)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, 8); err != nil {
		return nil, 0, fmt.Errorf("header: %w", err)
	}
	if tensors, err = parseHeader(text); err != nil {
		return nil, 0, err
	}
	data = 8 + int64(n)
	return tensors, data, checkPlacement(tensors, size-data)
}

// checkPlacement sorts tensors by offset and demands that they tile the data: no gap, overlap or remainder.
func checkPlacement(tensors []placed, size int64) error {
	slices.SortFunc(tensors, func(a, b placed) int {
		// Of tensors that begin together the empty one comes first, or it would seem to overlap.
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var end int64
	last := "the start"
	for _, t := range tensors {
		want, err := t.Bytes()
		switch {
		case err != nil:
			return err
		case t.begin > t.end || t.end > size:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] are not a range within the file's %d bytes of data",
				t.Name, t.begin, t.end, size)
		case t.end-t.begin != want:
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] span %d bytes, shape %v of %s takes %d",
				t.Name, t.begin, t.end, t.end-t.begin, t.Shape, t.DType, want)
		case t.begin < end:
			return fmt.Errorf("tensor %q: begins at %d and overlaps %s, which ends at %d", t.Name, t.begin, last, end)
		case t.begin > end:
			return fmt.Errorf("tensor %q: begins at %d, a gap after %s, which ends at %d", t.Name, t.begin, last, end)
		}
		end, last = t.end, fmt.Sprintf("tensor %q", t.Name)
	}
	if end != size {
		return fmt.Errorf("the tensors end at %d, the file has %d bytes of data", end, size)
	}
	return nil
}

// header is a strict JSON reader: encoding/json would let duplicate keys pass.
type header struct{ *json.Decoder }

func parseHeader(text []byte) (tensors []placed, err error) {
	if !utf8.Valid(text) {
		return nil, errors.New("header is not UTF-8")
	}
	h := header{json.NewDecoder(bytes.NewReader(text))}
	h.UseNumber()
	seen := map[string]bool{}
	err = h.object(func(name string) error {
		if seen[name] {
			return fmt.Errorf("duplicate key %q", name)
		}
		seen[name] = true
		if name == metadataKey {
			return h.metadata()
		}
		t, err := h.tensor(name)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		tensors = append(tensors, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if rest := bytes.TrimLeft(text[h.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return nil, fmt.Errorf("header: %d bytes after the closing brace", len(rest))
	}
	return tensors, nil
}

// metadata checks __metadata__: texts by distinct keys.
func (h header) metadata() error {
	seen := map[string]bool{}
	return h.object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("%s: duplicate key %q", metadataKey, key)
		}
		seen[key] = true
		if _, err := h.text(); err != nil {
			return fmt.Errorf("%s: %q: %w", metadataKey, key, err)
		}
		return nil
	})
}

func (h header) tensor(name string) (placed, error) {
	t := placed{Tensor: Tensor{Name: name, Shape: []int{}}}
	seen := map[string]bool{}
	err := h.object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("duplicate key %q", key)
		}
		seen[key] = true
		switch key {
		case "dtype":
			d, err := h.text()
			t.DType = DType(d)
			if err == nil && t.DType.Size() == 0 {
				err = fmt.Errorf("unknown dtype %q", d)
			}
			return err
		case "shape":
			dims, err := h.numbers(maxRank)
			for _, d := range dims {
				t.Shape = append(t.Shape, int(d))
			}
			return wrap("shape", err)
		case "data_offsets":
			at, err := h.numbers(2)
			if err == nil && len(at) != 2 {
				err = fmt.Errorf("found %d numbers, expected 2", len(at))
			}
			if err == nil {
				t.begin, t.end = at[0], at[1]
			}
			return wrap("data_offsets", err)
		}
		return fmt.Errorf("unknown key %q", key)
	})
	if err != nil {
		return t, err
	}
	for _, key := range []string{"dtype", "shape", "data_offsets"} {
		if !seen[key] {
			return t, fmt.Errorf("%s is missing", key)
		}
	}
	return t, nil
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (h header) object(member func(key string) error) error {
	if err := h.expect(json.Delim('{')); err != nil {
		return err
	}
	for h.More() {
		key, err := h.text()
		if err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
	}
	return h.expect(json.Delim('}'))
}

func (h header) numbers(limit int) ([]int64, error) {
	if err := h.expect(json.Delim('[')); err != nil {
		return nil, err
	}
	var out []int64
	for h.More() {
		if len(out) == limit {
			return nil, fmt.Errorf("more than %d numbers", limit)
		}
		tok, err := h.next()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("found %v, expected a whole number", tok)
		}
		n, err := strconv.ParseUint(num.String(), 10, 63)
		if err != nil || n > math.MaxInt {
			return nil, fmt.Errorf("found %s, expected a whole number below 2^63", num)
		}
		out = append(out, int64(n))
	}
	return out, h.expect(json.Delim(']'))
}

func (h header) text() (string, error) {
	tok, err := h.next()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("found %v, expected a string", tok)
	}
	return s, nil
}

func (h header) expect(want json.Delim) error {
	tok, err := h.next()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("found %v, expected %v", tok, want)
	}
	return nil
}

func (h header) next() (json.Token, error) {
	tok, err := h.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("invalid JSON at byte %d: %w", h.InputOffset(), err)
	}
	return tok, nil
}
