package data

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

// Aligned is a tensor with a row for each token of a corpus; row i belongs to the prediction that is made after token
// i.
type Aligned struct {
	Name  string
	DType safetensors.DType // F32, I32 or U32
	Shape []int             // of one row

	file string
	rows io.ReaderAt
	row  int64 // bytes
}

// MaxAligned bounds how many tensors go along with a corpus.
const MaxAligned = 32

// Bytes is the size of one row.
func (a Aligned) Bytes() int64 { return a.row }

// alignment is all tensors of a corpus, in the order of their names.
type alignment struct {
	files   []*safetensors.Reader
	tensors []Aligned
	hash    string
}

var alignedName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// ReadAligned describes the tensors of files, for a corpus of any size.
func ReadAligned(paths []string) ([]Aligned, error) {
	a, err := openAligned(paths, anyLength)
	if err != nil {
		return nil, fielderror.Wrap("aligned", err)
	}
	return a.tensors, a.close()
}

const anyLength = -1

// openAligned opens files for a corpus of n tokens.
func openAligned(paths []string, n int64) (a *alignment, err error) {
	a = &alignment{}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
			a = nil
		}
	}()
	for _, path := range paths {
		path, err := userpath.Expand(path)
		if err != nil {
			return a, err
		}
		if path, err = hub.OneFile(path); err != nil {
			return a, err
		}
		r, err := safetensors.Open(path)
		if err != nil {
			return a, err
		}
		a.files = append(a.files, r)
		for _, t := range r.Tensors() {
			if err := a.add(path, r, t, n); err != nil {
				return a, fmt.Errorf("%s: tensor %q: %w", path, t.Name, err)
			}
		}
	}
	if len(a.tensors) > MaxAligned {
		return a, fmt.Errorf("%d tensors, at most %d can go along with the tokens", len(a.tensors), MaxAligned)
	}
	slices.SortFunc(a.tensors, func(x, y Aligned) int { return strings.Compare(x.Name, y.Name) })
	if n == anyLength {
		return a, nil
	}
	return a, a.identify()
}

func (a *alignment) add(path string, r *safetensors.Reader, t safetensors.Tensor, n int64) error {
	switch {
	case !alignedName.MatchString(t.Name):
		return errors.New("expected a name of at most 64 letters, digits, '_', '.' and '-'")
	case !slices.Contains([]safetensors.DType{safetensors.F32, safetensors.I32, safetensors.U32}, t.DType):
		return fmt.Errorf("its dtype is %s, expected F32, I32 or U32", t.DType)
	case len(t.Shape) < 1 || len(t.Shape) > 3:
		return fmt.Errorf("its shape is %v, expected 1 to 3 extents, the first of them the number of training tokens", t.Shape)
	case n != anyLength && int64(t.Shape[0]) != n:
		return fmt.Errorf("it has %d rows, expected %d, one for each training token, those that will be held out included", t.Shape[0], n)
	}
	if i := slices.IndexFunc(a.tensors, func(o Aligned) bool { return o.Name == t.Name }); i >= 0 {
		return fmt.Errorf("%s has one of this name", a.tensors[i].file)
	}
	size, err := t.Bytes()
	if err != nil {
		return err
	}
	if size == 0 {
		return fmt.Errorf("its shape is %v: it is empty", t.Shape)
	}
	section, err := r.Section(t.Name)
	a.tensors = append(a.tensors, Aligned{t.Name, t.DType, t.Shape[1:], path, section, size / int64(t.Shape[0])})
	return err
}

// identify takes a hash of names, types and contents.
func (a *alignment) identify() error {
	sum := sha256.New()
	for _, t := range a.tensors {
		fmt.Fprintf(sum, "%s %s %v\n", t.Name, t.DType, t.Shape)
		if err := sample(sum, t.rows.(*io.SectionReader)); err != nil {
			return fmt.Errorf("%s: tensor %q: %w", t.file, t.Name, err)
		}
	}
	a.hash = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return nil
}

// Of a tensor that is larger, so many blocks stand for all: terabytes are not read to begin a run.
const (
	sampleBlock  = 1 << 16
	sampleBlocks = 256
)

// sample hashes a tensor, or blocks at even distances of a large one, its first and its last among them.
func sample(sum hash.Hash, r *io.SectionReader) error {
	if r.Size() <= sampleBlock*sampleBlocks {
		_, err := io.Copy(sum, io.NewSectionReader(r, 0, r.Size()))
		return err
	}
	block := make([]byte, sampleBlock)
	for i := range int64(sampleBlocks - 1) {
		if _, err := r.ReadAt(block, (r.Size()-sampleBlock)/(sampleBlocks-1)*i); err != nil {
			return err
		}
		sum.Write(block)
	}
	_, err := r.ReadAt(block, r.Size()-sampleBlock)
	sum.Write(block)
	return err
}

// read fills dst with the rows from at on.
func (a Aligned) read(dst []byte, at int64) error {
	if n, err := a.rows.ReadAt(dst, at*a.row); n < len(dst) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the file was cut since it was opened
		}
		return fmt.Errorf("%s: tensor %q: rows from %d on: %w", a.file, a.Name, at, err)
	}
	return nil
}

func (a *alignment) close() error {
	if a == nil {
		return nil
	}
	var errs []error
	for _, r := range a.files {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// Aligned lists the tensors that go along with the tokens, in the order of their names.
func (b *Batcher) Aligned() []Aligned {
	if b.corpus.aligned == nil {
		return nil
	}
	return b.corpus.aligned.tensors
}

// AlignedBatch returns, of each of them, the rows of a step's inputs: [BatchSize, SeqLen, Shape…], little-endian.
func (b *Batcher) AlignedBatch(step int64) ([][]byte, error) {
	var out [][]byte
	for _, a := range b.Aligned() {
		window := int64(b.cfg.SeqLen) * a.row
		rows := make([]byte, int64(b.cfg.BatchSize)*window)
		for i := range b.cfg.BatchSize {
			if err := a.read(rows[int64(i)*window:][:window], b.start(b.Window(step, i))); err != nil {
				return nil, err
			}
		}
		out = append(out, rows)
	}
	return out, nil
}
