package data

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Statistics are about all documents of a folder of shards.
type Statistics struct {
	Documents     int64   `json:"documents"`
	Bytes         int64   `json:"bytes"` // of their texts
	Tokens        int64   `json:"tokens"`
	BytesPerToken float64 `json:"bytes_per_token"`
	Tally
	EmptyFiles int64 `json:"empty_files,omitempty"` // files without a document
	// Duplicates are documents with the text of an earlier one; nil: not known, since shards of a complete folder were
	// repaired.
	Duplicates *int64 `json:"duplicates,omitempty"`
}

// counts counts the parts of a stream that were read, up to the piece in which a shard ends.
type counts struct {
	Documents int64  `json:"documents"`
	Bytes     int64  `json:"bytes"`
	Hash      uint64 `json:"hash,omitempty"` // of the pieces so far of the document that is not at its end
	Tally
	EmptyFiles int64 `json:"empty_files,omitempty"`
}

// add counts a piece. The hash of a document that ends in it is appended to the log.
func (c *counts) add(e encoded, log *hashLog) error {
	c.Tally.add(e.tally)
	if e.empty() {
		return nil
	}
	c.Bytes += int64(len(e.text))
	if e.first {
		c.Hash = 0
	}
	c.Hash = mix(c.Hash ^ e.hash)
	if !e.last {
		return nil
	}
	c.Documents++
	hash := c.Hash
	c.Hash = 0
	return log.append(hash)
}

// hashOf is the hash of a piece.
func hashOf(text []byte) uint64 {
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:])
}

// hashLog is a file of the hashes of all documents so far, to count duplicates in bounded memory.
type hashLog struct {
	path string
	file *os.File
	w    *bufio.Writer
}

const hashLogName = "hashes.partial"

// openHashLog opens the log of a folder after n documents, or returns nil if it has fewer.
func openHashLog(dir string, n int64) (*hashLog, error) {
	path := filepath.Join(dir, hashLogName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() < 8*n {
		return nil, errors.Join(f.Close(), os.Remove(path))
	}
	if err == nil {
		err = f.Truncate(8 * n)
	}
	if err == nil {
		_, err = f.Seek(8*n, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &hashLog{path, f, bufio.NewWriterSize(f, 1<<16)}, nil
}

func (l *hashLog) append(hash uint64) error {
	if l == nil {
		return nil
	}
	_, err := l.w.Write(binary.LittleEndian.AppendUint64(nil, hash))
	return err
}

// sync makes appended bytes durable.
func (l *hashLog) sync() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.w.Flush(), l.file.Sync())
}

func (l *hashLog) close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// remove deletes the log.
func (l *hashLog) remove() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.file.Close(), os.Remove(l.path))
}

// hashesAtOnce bounds the hashes in memory.
const hashesAtOnce = 8 << 20

// duplicates counts the hashes that are equal to an earlier one, of most at once.
func (l *hashLog) duplicates(most int64) (n int64, err error) {
	if err := l.w.Flush(); err != nil {
		return 0, err
	}
	st, err := l.file.Stat()
	if err != nil {
		return 0, err
	}
	passes := uint64(st.Size()/8/most + 1)
	for pass := range passes {
		var hashes []uint64
		r := bufio.NewReaderSize(io.NewSectionReader(l.file, 0, st.Size()), 1<<20)
		var b [8]byte
		for {
			if _, err := io.ReadFull(r, b[:]); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return 0, err
			}
			if h := binary.LittleEndian.Uint64(b[:]); h%passes == pass {
				hashes = append(hashes, h)
			}
		}
		slices.Sort(hashes)
		n += int64(len(hashes) - len(slices.Compact(hashes)))
	}
	return n, nil
}
