package arrow

import (
	"encoding/binary"
	"errors"
)

// errOutside reports an offset in a flatbuffer that points outside of it.
var errOutside = errors.New("metadata: an offset points outside")

// flatbuffer reads fields of tables. It keeps the first error; after it all values are zero.
type flatbuffer struct {
	b   []byte
	err error
}

// table is a table at an offset; the table at 0 is none, and all its fields are absent.
type table struct {
	f  *flatbuffer
	at int
}

func (f *flatbuffer) bytes(at, n int) []byte {
	if f.err != nil || at < 0 || n < 0 || at > len(f.b)-n {
		if f.err == nil {
			f.err = errOutside
		}
		return make([]byte, min(max(n, 0), 8))
	}
	return f.b[at : at+n]
}

func (f *flatbuffer) u16(at int) int   { return int(binary.LittleEndian.Uint16(f.bytes(at, 2))) }
func (f *flatbuffer) u32(at int) int   { return int(binary.LittleEndian.Uint32(f.bytes(at, 4))) }
func (f *flatbuffer) i64(at int) int64 { return int64(binary.LittleEndian.Uint64(f.bytes(at, 8))) }

// follow returns what the offset at a place points to.
func (f *flatbuffer) follow(at int) int { return at + f.u32(at) }

func (f *flatbuffer) root() table { return table{f, f.follow(0)} }

// field returns where the field with a slot lies in a table; 0: it is absent.
func (t table) field(slot int) int {
	if t.at == 0 {
		return 0
	}
	vtable := t.at - int(int32(t.f.u32(t.at)))
	if entry := 4 + 2*slot; entry+2 <= t.f.u16(vtable) {
		if offset := t.f.u16(vtable + entry); offset > 0 {
			return t.at + offset
		}
	}
	return 0
}

func (t table) byte(slot int) byte {
	if at := t.field(slot); at > 0 {
		return t.f.bytes(at, 1)[0]
	}
	return 0
}

func (t table) i16(slot int) int {
	if at := t.field(slot); at > 0 {
		return t.f.u16(at)
	}
	return 0
}

func (t table) i32(slot int) int {
	if at := t.field(slot); at > 0 {
		return int(int32(t.f.u32(at)))
	}
	return 0
}

func (t table) i64(slot int) int64 {
	if at := t.field(slot); at > 0 {
		return t.f.i64(at)
	}
	return 0
}

func (t table) table(slot int) table {
	if at := t.field(slot); at > 0 {
		return table{t.f, t.f.follow(at)}
	}
	return table{f: t.f}
}

// vector returns where the elements of a vector begin, and their number: each of size bytes lies in the buffer.
func (t table) vector(slot, size int) (at, n int) {
	field := t.field(slot)
	if field == 0 {
		return 0, 0
	}
	at = t.f.follow(field)
	n = t.f.u32(at)
	if n > len(t.f.b)/size || t.f.err != nil {
		t.f.bytes(0, len(t.f.b)+1)
		return 0, 0
	}
	t.f.bytes(at+4, n*size)
	return at + 4, n
}

func (t table) text(slot int) string {
	at, n := t.vector(slot, 1)
	return string(t.f.bytes(at, n))
}
