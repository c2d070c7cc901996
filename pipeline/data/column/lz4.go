package column

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errLZ4 reports a block that is no sequence of literals and matches of the declared length.
var errLZ4 = errors.New("LZ4: the block is damaged")

// LZ4Block decompresses a block into dst, which it must fill:
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md.
func LZ4Block(dst, src []byte) error {
	n, err := lz4Block(dst, 0, src)
	if err == nil && n != len(dst) {
		err = fmt.Errorf("LZ4: %d bytes, expected %d", n, len(dst))
	}
	return err
}

// lz4Block decompresses a block behind the first n bytes of dst, to which matches may refer, and returns how many bytes
// of dst are filled.
func lz4Block(dst []byte, n int, src []byte) (int, error) {
	if len(src) == 0 {
		return n, nil
	}
	for {
		if len(src) == 0 {
			return 0, errLZ4
		}
		token := src[0]
		literals, rest, ok := lz4Length(int(token>>4), src[1:], len(dst)-n)
		if !ok || literals > len(rest) {
			return 0, errLZ4
		}
		n += copy(dst[n:], rest[:literals])
		if src = rest[literals:]; len(src) == 0 { // the last sequence has no match
			return n, nil
		}
		if len(src) < 2 {
			return 0, errLZ4
		}
		distance := int(binary.LittleEndian.Uint16(src))
		match, rest, ok := lz4Length(int(token&15), src[2:], len(dst)-n-lz4MinMatch)
		if match += lz4MinMatch; !ok || distance == 0 || distance > n {
			return 0, errLZ4
		}
		for end := n + match; n < end; { // a match may overlap the bytes that it writes
			n += copy(dst[n:end], dst[n-distance:n])
		}
		src = rest
	}
}

const lz4MinMatch = 4

// lz4Length completes a length of four bits by the bytes that follow; ok: it is at most most.
func lz4Length(length int, src []byte, most int) (n int, rest []byte, ok bool) {
	for more := length == 15; more; src = src[1:] {
		if len(src) == 0 || length > most {
			return 0, nil, false
		}
		length += int(src[0])
		more = src[0] == 255
	}
	return length, src, length <= most
}

// Frames.
const (
	lz4Magic          = 0x184D2204
	lz4Version        = 0x40
	lz4Independent    = 0x20
	lz4BlockChecksum  = 0x10
	lz4ContentSize    = 0x08
	lz4Dictionary     = 0x01
	lz4Stored         = 1 << 31 // of a block's length
	lz4VersionAndUsed = 0xC0
)

// IsLZ4Frame reports whether src begins as a frame does.
func IsLZ4Frame(src []byte) bool { return len(src) >= 4 && binary.LittleEndian.Uint32(src) == lz4Magic }

// LZ4Frame decompresses frames into dst, which they must fill. It does not compare checksums:
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md.
func LZ4Frame(dst, src []byte) error {
	n := 0
	for len(src) > 0 {
		var err error
		if n, src, err = lz4Frame(dst, n, src); err != nil {
			return err
		}
	}
	if n != len(dst) {
		return fmt.Errorf("LZ4: %d bytes, expected %d", n, len(dst))
	}
	return nil
}

// lz4Frame decompresses one frame behind the first n bytes of dst.
func lz4Frame(dst []byte, n int, src []byte) (filled int, rest []byte, err error) {
	if !IsLZ4Frame(src) || len(src) < 7 {
		return 0, nil, errors.New("LZ4: not a frame")
	}
	flags := src[4]
	if flags&lz4VersionAndUsed != lz4Version || flags&lz4Dictionary != 0 {
		return 0, nil, fmt.Errorf("LZ4: a frame with flags 0x%02x", flags)
	}
	head := 7 // magic, flags, size of blocks, checksum
	if flags&lz4ContentSize != 0 {
		head += 8
	}
	begin := n
	for src = src[min(head, len(src)):]; ; {
		if len(src) < 4 {
			return 0, nil, errors.New("LZ4: the frame is truncated")
		}
		length := binary.LittleEndian.Uint32(src)
		if src = src[4:]; length == 0 {
			break
		}
		size := uint64(length &^ lz4Stored)
		if size > uint64(len(src)) {
			return 0, nil, errors.New("LZ4: the frame is truncated")
		}
		switch block := src[:size]; {
		case length&lz4Stored != 0 && len(block) > len(dst)-n:
			err = errLZ4
		case length&lz4Stored != 0:
			n += copy(dst[n:], block)
		case flags&lz4Independent != 0:
			begin = n
			fallthrough
		default:
			var more int
			more, err = lz4Block(dst[begin:], n-begin, block)
			n = begin + more
		}
		if src = src[size:]; flags&lz4BlockChecksum != 0 {
			src = src[min(4, len(src)):]
		}
		if err != nil {
			return 0, nil, err
		}
	}
	if flags&lz4ContentChecksum != 0 {
		src = src[min(4, len(src)):]
	}
	return n, src, nil
}

const lz4ContentChecksum = 0x04

// LZ4Hadoop decompresses blocks with two lengths before each, as Hadoop's codec writes them, into dst, which they must
// fill.
func LZ4Hadoop(dst, src []byte) error {
	n := 0
	for len(src) > 0 {
		if len(src) < 8 {
			return errLZ4
		}
		size, compressed := uint64(binary.BigEndian.Uint32(src)), uint64(binary.BigEndian.Uint32(src[4:]))
		src = src[8:]
		if size > uint64(len(dst)-n) || compressed > uint64(len(src)) {
			return errLZ4
		}
		if err := LZ4Block(dst[n:n+int(size)], src[:compressed]); err != nil {
			return err
		}
		n, src = n+int(size), src[compressed:]
	}
	if n != len(dst) {
		return fmt.Errorf("LZ4: %d bytes, expected %d", n, len(dst))
	}
	return nil
}
