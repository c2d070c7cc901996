package data

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

const (
	manifestName    = "manifest.json"
	manifestVersion = 1
	maxManifest     = 64 << 20
)

// Manifest is what a folder of shards was made from, and how far.
type Manifest struct {
	Version     int         `json:"version"`
	Tokenizer   string      `json:"tokenizer"`
	TokenizerID string      `json:"tokenizer_hash"`
	End         *int64      `json:"end,omitempty"` // token that follows each document; noEnd; nil: of an earlier version
	SpecialText string      `json:"special_text,omitempty"`
	BOS         string      `json:"bos,omitempty"`
	Vocab       int         `json:"vocab"`
	Field       string      `json:"field,omitempty"`
	ShardTokens int64       `json:"shard_tokens"`
	ValTokens   int64       `json:"val_tokens"`
	Inputs      []InputFile `json:"inputs"`
	Val         []InputFile `json:"val,omitempty"`
	Shards      []Shard     `json:"shards"`
	Complete    bool        `json:"complete"`
	Statistics  *Statistics `json:"statistics,omitempty"` // once it is complete

	found Findings
}

// Findings are about the files of a complete folder.
func (m *Manifest) Findings(hasEnd bool) Findings {
	f := m.found
	if m.Statistics == nil { // of a folder that an earlier version completed
		return f
	}
	f.Tally, f.Documents, f.EmptyFiles, f.WithoutEnd = m.Statistics.Tally, m.Statistics.Documents, m.Statistics.EmptyFiles, !hasEnd
	return f
}

// InputFile is a file of text and its content.
type InputFile struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Shard is a finished shard.
type Shard struct {
	Name   string `json:"name"`
	Stream string `json:"stream"` // "val" for tokens of held-out files, else "train"
	Tokens int64  `json:"tokens"`
	SHA256 string `json:"sha256"`
	End    place  `json:"end"` // where the next one of its stream begins
	Counts counts `json:"counts"`
}

// noEnd is the End of a tokenizer without a token for it.
const noEnd = -1

// endOf is the token that follows each document, or noEnd.
func endOf(t Tokenizer) int64 {
	if id, ok := t.EOS(); ok {
		return int64(id)
	}
	return noEnd
}

// endsAlike reports whether documents of the shards end with a token, as far as the manifest says.
func (m *Manifest) endsAlike(end int64) bool { return m.End == nil || *m.End == end }

func newManifest(ctx context.Context, o PrepareOptions, inputs, val []string) (*Manifest, error) {
	end := endOf(o.Tokenizer)
	m := &Manifest{End: &end, Version: manifestVersion, Tokenizer: o.Tokenizer.Name(), TokenizerID: o.Tokenizer.Hash(),
		Vocab:       o.Tokenizer.VocabSize(),
		SpecialText: o.Framing.SpecialText, BOS: o.Framing.BOS, Field: o.Field, ShardTokens: o.ShardTokens, ValTokens: o.ValTokens}
	for _, list := range []struct {
		paths []string
		to    *[]InputFile
	}{{inputs, &m.Inputs}, {val, &m.Val}} {
		for _, path := range list.paths {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			sum, size, err := hashFile(path)
			if err != nil {
				return nil, err
			}
			*list.to = append(*list.to, InputFile{path, size, sum})
		}
	}
	return m, nil
}

func hashFile(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// openManifest returns what an earlier run for the same result left in dir, up to its first shard that is not whole; or
// fresh, if dir has none. It removes files that were never finished.
func openManifest(dir string, fresh *Manifest) (*Manifest, error) {
	names, err := cleanTemps(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, manifestName)
	if st, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if len(names) > 0 {
			return nil, fmt.Errorf("%s: has %s and no %s: expected an empty folder", dir, names[0], manifestName)
		}
		// Written at once: a first shard that is killed before it is listed must not look like a stranger's.
		return fresh, fresh.save(dir)
	} else if err != nil {
		return nil, err
	} else if st.Size() > maxManifest {
		return nil, fmt.Errorf("%s: %d bytes: expected at most %d", path, st.Size(), maxManifest)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var old Manifest
	if err := json.Unmarshal(raw, &old); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if what := fresh.differs(&old); what != "" {
		return nil, fmt.Errorf("%s: the shards there were made from other %s: expected an empty folder or the same options", path, what)
	}
	fresh.adopt(dir, &old)
	return fresh, nil
}

func cleanTemps(dir string) (shards []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		case strings.HasSuffix(e.Name(), ".bin"):
			shards = append(shards, e.Name())
		}
	}
	return shards, nil
}

// differs names the first thing in which two manifests ask for different shards; "" if there is none.
func (m *Manifest) differs(old *Manifest) string {
	for _, f := range []struct {
		name     string
		old, new any
	}{
		{"version", old.Version, m.Version},
		{"tokenizer", old.TokenizerID, m.TokenizerID},
		{"end of documents", old.endsAlike(*m.End), true},
		{"treatment of special tokens or BOS", old.framing(), m.framing()},
		{"vocabulary", old.Vocab, m.Vocab},
		{"field", old.Field, m.Field},
		{"shard length", old.ShardTokens, m.ShardTokens},
		{"number of held-out tokens", old.ValTokens, m.ValTokens},
		{"inputs", contents(old.Inputs), contents(m.Inputs)},
		{"held-out files", contents(old.Val), contents(m.Val)},
	} {
		if !reflect.DeepEqual(f.old, f.new) {
			return f.name
		}
	}
	return ""
}

// contents leaves the paths out: the same files may be named from another folder. The name of a file says its kind.
func contents(files []InputFile) []InputFile {
	out := make([]InputFile, len(files))
	for i, f := range files {
		out[i] = InputFile{f.ending(), f.Size, f.SHA256}
	}
	return out
}

// ending is the end of the file's name, which says what the file holds: .jsonl, or .jsonl.gz.
func (f InputFile) ending() string {
	ext := filepath.Ext(f.Path)
	if compressions[strings.ToLower(ext)] != compressedNot {
		return filepath.Ext(strings.TrimSuffix(f.Path, ext)) + ext
	}
	return ext
}

// adopt takes over the shards of old that are whole on disk and follow one another.
func (m *Manifest) adopt(dir string, old *Manifest) {
	next := map[string]int{"train": m.firstTrain()}
	if len(m.Val) > 0 {
		next["val"] = 0
	}
	for _, s := range old.Shards {
		number, ok := next[s.Stream]
		if !ok || s.Name != shardName(s.Stream, number) || !m.within(s.End, s.Stream) {
			return
		}
		sum, _, err := hashFile(filepath.Join(dir, s.Name))
		if err != nil || sum != s.SHA256 {
			return
		}
		m.Shards = append(m.Shards, s)
		next[s.Stream]++
	}
	m.Complete, m.Statistics = old.Complete, old.Statistics
}

// firstTrain is the number of the training stream's first shard. Number 0 holds the tokens that are held out of it.
func (m *Manifest) firstTrain() int {
	if m.ValTokens > 0 {
		return 0
	}
	return 1
}

// within says whether a place lies in the inputs of a stream.
func (m *Manifest) within(p place, stream string) bool {
	files := m.Inputs
	if stream == "val" {
		files = m.Val
	}
	if p.File == len(files) {
		return p == place{File: len(files)}
	}
	if p.File < 0 || p.File >= len(files) || p.Offset < 0 || p.Piece < 0 || p.Skip < 0 {
		return false
	}
	f := files[p.File]
	return !f.plain() || p.Offset < f.Size
}

// remove deletes the manifest and its shards.
func (m *Manifest) remove(dir string) error {
	names := []string{manifestName}
	for _, s := range m.Shards {
		names = append(names, s.Name)
	}
	var errs []error
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *Manifest) save(dir string) error {
	return writeAtomic(filepath.Join(dir, manifestName), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(m)
	})
}

// bytes is the size of all inputs.
func (m *Manifest) bytes() (n int64) {
	for _, f := range append(m.Val[:len(m.Val):len(m.Val)], m.Inputs...) {
		n += f.Size
	}
	return n
}

// bytesBefore is how much of all inputs lies before a place of a stream.
func (m *Manifest) bytesBefore(stream string, p place) (n int64) {
	files := m.Val
	if stream == "train" {
		for _, f := range m.Val {
			n += f.Size
		}
		files = m.Inputs
	}
	for _, f := range files[:p.File] {
		n += f.Size
	}
	if p.File < len(files) && files[p.File].plain() {
		n += p.Offset
	}
	return n
}

// plain reports whether offsets in the file's documents are offsets in the file.
func (f InputFile) plain() bool {
	format, err := formatOf(f.Path)
	return err == nil && format.compression == compressedNot && (format.kind == kindText || format.kind == kindJSON)
}
