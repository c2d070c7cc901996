package data

import (
	"encoding/binary"
	"fmt"
	"io"
)

// llm.c's token shards: a header of 256 int32 (magic, version, number of tokens, zeros), then the tokens,
// little-endian.
const (
	binHeader   = 256 * 4
	magicGPT2   = 20240520 // version 1, uint16
	versionGPT2 = 1
	magicLlama3 = 20240801 // version 7, uint32
	versionLM3  = 7
	MaxShard    = 1<<31 - 1 // most tokens of a shard: llm.c reads the number as an int
)

// binInfo is what the header of a shard says.
type binInfo struct {
	width  int // bytes a token
	tokens int64
}

// checkBin reads the header of a shard of the given size.
func checkBin(r io.ReaderAt, size int64) (binInfo, error) {
	if size < binHeader {
		return binInfo{}, fmt.Errorf("%d bytes: expected a header of %d (an llm.c token shard)", size, binHeader)
	}
	var h [12]byte
	if _, err := r.ReadAt(h[:], 0); err != nil {
		return binInfo{}, err
	}
	magic, version := int32(binary.LittleEndian.Uint32(h[0:])), int32(binary.LittleEndian.Uint32(h[4:]))
	info := binInfo{tokens: int64(int32(binary.LittleEndian.Uint32(h[8:])))}
	switch {
	case magic == magicGPT2 && version == versionGPT2:
		info.width = 2
	case magic == magicLlama3 && version == versionLM3:
		info.width = 4
	default:
		return binInfo{}, fmt.Errorf("magic %d, version %d: expected an llm.c token shard: %d, %d (uint16) or %d, %d (uint32)",
			magic, version, magicGPT2, versionGPT2, magicLlama3, versionLM3)
	}
	if info.tokens <= 0 {
		return binInfo{}, fmt.Errorf("the header says %d tokens: expected at least 1", info.tokens)
	}
	if want := binHeader + info.tokens*int64(info.width); size != want {
		what := "truncated"
		if size > want {
			what = "too long"
		}
		return binInfo{}, fmt.Errorf("%s: %d bytes found, %d expected for the %d tokens of its header", what, size, want, info.tokens)
	}
	return info, nil
}

func binWidth(vocab int) int {
	if vocab <= 1<<16 {
		return 2
	}
	return 4
}

func binHead(width, tokens int) []byte {
	head := make([]byte, binHeader)
	magic, version := uint32(magicGPT2), uint32(versionGPT2)
	if width == 4 {
		magic, version = magicLlama3, versionLM3
	}
	binary.LittleEndian.PutUint32(head[0:], magic)
	binary.LittleEndian.PutUint32(head[4:], version)
	binary.LittleEndian.PutUint32(head[8:], uint32(tokens))
	return head
}

func appendToken(buf []byte, id uint32, width int) []byte {
	switch width {
	case 1:
		return append(buf, byte(id))
	case 2:
		return binary.LittleEndian.AppendUint16(buf, uint16(id))
	}
	return binary.LittleEndian.AppendUint32(buf, id)
}
