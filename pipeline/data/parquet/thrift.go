package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Types of Thrift's compact protocol.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftByte   = 3
	thriftI16    = 4
	thriftI32    = 5
	thriftI64    = 6
	thriftDouble = 7
	thriftBinary = 8
	thriftList   = 9
	thriftSet    = 10
	thriftMap    = 11
	thriftStruct = 12
)

// maxDepth bounds how deeply structs and lists nest; Parquet's own nest 6 deep.
const maxDepth = 32

// errShort reports that the bytes end within a value.
var errShort = errors.New("it ends within a value")

// thrift reads values of Thrift's compact protocol. It keeps the first error; after it all values are zero.
type thrift struct {
	b   []byte // the bytes that are left
	err error
}

func (t *thrift) fail(err error) {
	if t.err == nil {
		t.err, t.b = err, nil
	}
}

func (t *thrift) take(n uint64) []byte {
	if n > uint64(len(t.b)) {
		t.fail(errShort)
		return nil
	}
	taken := t.b[:n]
	t.b = t.b[n:]
	return taken
}

func (t *thrift) byte() byte {
	if b := t.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (t *thrift) uvarint() uint64 {
	x, n := binary.Uvarint(t.b)
	switch {
	case n == 0:
		t.fail(errShort)
		return 0
	case n < 0:
		t.fail(errors.New("an integer has more than 64 bits"))
		return 0
	}
	t.b = t.b[n:]
	return x
}

func (t *thrift) int() int64 {
	x := t.uvarint()
	return int64(x>>1) ^ -int64(x&1)
}

func (t *thrift) binary() []byte { return t.take(t.uvarint()) }

// structure calls visit with the fields of a struct, which must read or skip each.
func (t *thrift) structure(visit func(id int64, kind byte)) {
	id := int64(0)
	for t.err == nil {
		head := t.byte()
		kind := head & 15
		if head == 0 || t.err != nil {
			return
		}
		if delta := int64(head >> 4); delta > 0 {
			id += delta
		} else {
			id = t.int()
		}
		visit(id, kind)
	}
}

// list calls visit for each element of a list, which must read or skip it.
func (t *thrift) list(visit func(kind byte)) {
	head := t.byte()
	n, kind := uint64(head>>4), head&15
	if n == 15 {
		n = t.uvarint()
	}
	for range n {
		if t.err != nil {
			return
		}
		visit(kind)
	}
}

// want reads a field by read if its kind is the expected one.
func (t *thrift) want(kind, expected byte, read func()) {
	if kind != expected {
		t.fail(fmt.Errorf("a field has type %d, expected %d", kind, expected))
		return
	}
	read()
}

func (t *thrift) intField(kind byte, to *int64) {
	switch kind {
	case thriftI16, thriftI32, thriftI64:
		*to = t.int()
	default:
		t.fail(fmt.Errorf("a field has type %d, expected an integer", kind))
	}
}

func (t *thrift) skip(kind byte) { t.skipNested(kind, maxDepth) }

func (t *thrift) skipNested(kind byte, depth int) {
	if depth == 0 {
		t.fail(fmt.Errorf("it nests deeper than %d", maxDepth))
		return
	}
	switch kind {
	case thriftTrue, thriftFalse:
	case thriftByte:
		t.byte()
	case thriftI16, thriftI32, thriftI64:
		t.uvarint()
	case thriftDouble:
		t.take(8)
	case thriftBinary:
		t.binary()
	case thriftList, thriftSet:
		t.list(func(kind byte) { t.skipElement(kind, depth-1) })
	case thriftMap:
		t.skipMap(depth - 1)
	case thriftStruct:
		t.structure(func(_ int64, kind byte) { t.skipNested(kind, depth-1) })
	default:
		t.fail(fmt.Errorf("a value has the unknown type %d", kind))
	}
}

// skipElement skips an element of a list: there, a boolean has a byte.
func (t *thrift) skipElement(kind byte, depth int) {
	if kind == thriftTrue || kind == thriftFalse {
		kind = thriftByte
	}
	t.skipNested(kind, depth)
}

func (t *thrift) skipMap(depth int) {
	n := t.uvarint()
	if n == 0 {
		return
	}
	kinds := t.byte()
	for range n {
		if t.err != nil {
			return
		}
		t.skipElement(kinds>>4, depth)
		t.skipElement(kinds&15, depth)
	}
}
