package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Entry is a tensor to write. WriteTo produces its data when they are needed.
type Entry struct {
	Tensor
	WriteTo func(io.Writer) error
}

// The numbers of metadata types.
const (
	typeUint8 uint32 = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
)

// Write writes a file. Keys and tensors keep their order. The data of one tensor at a time are produced.
func Write(w io.Writer, keys []Key, tensors []Entry) error {
	sizes := make([]int64, len(tensors))
	for i, t := range tensors {
		var err error
		if sizes[i], err = t.Bytes(); err != nil {
			return err
		}
	}
	header, err := encodeHeader(keys, tensors, sizes)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 1<<20)
	if err := writeAligned(b, int64(len(header)), func(w io.Writer) error { _, err := w.Write(header); return err }); err != nil {
		return err
	}
	for i, t := range tensors {
		if err := writeAligned(b, sizes[i], t.WriteTo); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return b.Flush()
}

// writeAligned writes size bytes and zeros up to the alignment.
func writeAligned(w io.Writer, size int64, write func(io.Writer) error) error {
	c := &counter{w: w}
	if err := write(c); err != nil {
		return err
	}
	if c.n != size {
		return fmt.Errorf("%d bytes were written, expected %d", c.n, size)
	}
	_, err := w.Write(make([]byte, aligned(size, defaultAlignment)-size))
	return err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// aligned rounds up to a multiple of the alignment.
func aligned(n, alignment int64) int64 { return (n + alignment - 1) / alignment * alignment }

func encodeHeader(keys []Key, tensors []Entry, sizes []int64) ([]byte, error) {
	le := binary.LittleEndian
	buf := le.AppendUint32([]byte(magic), version)
	buf = le.AppendUint64(buf, uint64(len(tensors)))
	buf = le.AppendUint64(buf, uint64(len(keys)))
	for _, k := range keys {
		var err error
		if buf, err = appendValue(appendString(buf, k.Name), k.Value); err != nil {
			return nil, fmt.Errorf("key %q: %w", k.Name, err)
		}
	}
	offset := int64(0)
	for i, t := range tensors {
		buf = le.AppendUint32(appendString(buf, t.Name), uint32(len(t.Shape)))
		for d := len(t.Shape) - 1; d >= 0; d-- {
			buf = le.AppendUint64(buf, uint64(t.Shape[d]))
		}
		buf = le.AppendUint64(le.AppendUint32(buf, uint32(t.Type)), uint64(offset))
		offset += aligned(sizes[i], defaultAlignment)
	}
	return buf, nil
}

func appendString(buf []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(buf, uint64(len(s))), s...)
}

// appendValue appends the number of a value's type and the value.
func appendValue(buf []byte, value any) ([]byte, error) {
	le := binary.LittleEndian
	list := func(kind uint32, n int) []byte {
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(buf, typeArray), kind), uint64(n))
	}
	switch v := value.(type) {
	case bool:
		buf = append(le.AppendUint32(buf, typeBool), 0)
		if v {
			buf[len(buf)-1] = 1
		}
	case uint8:
		buf = append(le.AppendUint32(buf, typeUint8), v)
	case int32:
		buf = le.AppendUint32(le.AppendUint32(buf, typeInt32), uint32(v))
	case uint32:
		buf = le.AppendUint32(le.AppendUint32(buf, typeUint32), v)
	case uint64:
		buf = le.AppendUint64(le.AppendUint32(buf, typeUint64), v)
	case float32:
		buf = le.AppendUint32(le.AppendUint32(buf, typeFloat32), math.Float32bits(v))
	case string:
		buf = appendString(le.AppendUint32(buf, typeString), v)
	case []string:
		buf = list(typeString, len(v))
		for _, s := range v {
			buf = appendString(buf, s)
		}
	case []int32:
		buf = list(typeInt32, len(v))
		for _, n := range v {
			buf = le.AppendUint32(buf, uint32(n))
		}
	case []float32:
		buf = list(typeFloat32, len(v))
		for _, x := range v {
			buf = le.AppendUint32(buf, math.Float32bits(x))
		}
	default:
		return nil, fmt.Errorf("a value of type %T has no type in GGUF here", value)
	}
	return buf, nil
}
