package meter

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Error says why a module was refused. It is the only error that Rewrite returns.
type Error struct {
	Offset int    // byte of the module at which it was noticed
	Where  string // the section, and within the code section the function
	What   string // the fault: the finding, and the allowed value
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (byte %d): %s", e.Where, e.Offset, e.What)
}

// reader walks over bytes of the module. What it cannot read it refuses by a panic with an *Error, which Rewrite
// returns.
type reader struct {
	b     []byte
	i     int
	base  int // offset of b[0] in the module
	where string
}

func (r *reader) refuse(format string, a ...any) {
	panic(&Error{Offset: r.base + r.i, Where: r.where, What: fmt.Sprintf(format, a...)})
}

func (r *reader) more() bool { return r.i < len(r.b) }

func (r *reader) byte() byte {
	if r.i >= len(r.b) {
		r.refuse("ends in the middle of an entry")
	}
	r.i++
	return r.b[r.i-1]
}

// take gives the next n bytes.
func (r *reader) take(n uint32) []byte {
	if uint64(n) > uint64(len(r.b)-r.i) {
		r.refuse("found a length of %d bytes, expected at most the %d that are left", n, len(r.b)-r.i)
	}
	s := r.b[r.i : r.i+int(n) : r.i+int(n)]
	r.i += int(n)
	return s
}

// sub is a reader of the next n bytes.
func (r *reader) sub(n uint32, where string) *reader {
	base := r.base + r.i
	return &reader{b: r.take(n), base: base, where: where}
}

func (r *reader) end() {
	if r.more() {
		r.refuse("has %d bytes after its entries", len(r.b)-r.i)
	}
}

// u32 reads an unsigned LEB128 number of at most 5 bytes and 32 bits.
func (r *reader) u32() uint32 {
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		c := r.byte()
		if shift == 28 && c > 0x0f {
			break
		}
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	r.refuse("an unsigned LEB128 number has more than 5 bytes or 32 bits")
	return 0
}

// signed reads a signed LEB128 number of at most the given bits: 32, 33 or 64.
func (r *reader) signed(bits int) int64 {
	var v int64
	for shift := 0; shift < bits; shift += 7 {
		c := r.byte()
		v |= int64(c&0x7f) << shift
		if c >= 0x80 {
			continue
		}
		if left := bits - shift; left < 7 { // what lies above the last bit repeats the sign
			if high := int8(c<<1) >> left; high != 0 && high != -1 {
				break
			}
		} else if shift+7 < 64 && c&0x40 != 0 {
			v |= -1 << (shift + 7)
		}
		if bits < 64 {
			v = v << (64 - bits) >> (64 - bits)
		}
		return v
	}
	r.refuse("a signed LEB128 number has more than %d bits", bits)
	return 0
}

// count reads the number of entries of a vector, each of at least one byte, and holds it against a limit.
func (r *reader) count(what string, limit int) int {
	n := r.u32()
	if uint64(n) > uint64(limit) {
		r.refuse("found %d %s, expected at most %d", n, what, limit)
	}
	if int(n) > len(r.b)-r.i {
		r.refuse("found %d %s in %d bytes", n, what, len(r.b)-r.i)
	}
	return int(n)
}

// index reads an index that must be below n.
func (r *reader) index(what string, n int) uint32 {
	v := r.u32()
	if uint64(v) >= uint64(n) {
		r.refuse("%s %d does not exist, there are %d", what, v, n)
	}
	return v
}

// name reads text, which must be UTF-8.
func (r *reader) name() string {
	s := r.take(r.u32())
	if !utf8.Valid(s) {
		r.refuse("name %q is not UTF-8", s)
	}
	return string(s)
}

func appendU32(b []byte, v uint32) []byte { return binary.AppendUvarint(b, uint64(v)) }

func appendS64(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func appendName(b []byte, s string) []byte { return append(appendU32(b, uint32(len(s))), s...) }

func appendSection(b []byte, id byte, content []byte) []byte {
	return append(appendU32(append(b, id), uint32(len(content))), content...)
}
