package checkpoint

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/userpath"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
)

// Tensor is one tensor to save. Data is called once, in the order of the tensors, and must return the little-endian,
// row-major bytes. They are released before Data of the next tensor is called.
type Tensor struct {
	Name  string
	DType safetensors.DType
	Shape []int
	Data  func() ([]byte, error)
}

// Contents is what a checkpoint holds.
type Contents struct {
	Step      int
	Model     []Tensor
	Optimizer []Tensor
	Config    any               // config.json: whatever encodes as JSON
	State     any               // state.json: tokens, data position, random state, …
	Files     map[string][]byte // further small files by name, as they are: tokenizer.json
	Spared    []int             // steps of checkpoints that are kept beyond Options.Keep
}

// Options of a Store.
type Options struct {
	Keep       int   // how many checkpoints to keep, the newest ones; 0 keeps all
	ShardLimit int64 // bytes of tensors in one file; 0 is safetensors.DefaultShardLimit
}

// Store saves the checkpoints of one run. Only one process may have a run's Store; any number may read.
type Store struct {
	dir  string // <run>/checkpoints
	opts Options
	fs   fileSystem
}

// NewStore makes <runDir>/checkpoints and clears it of what killed processes left there.
func NewStore(runDir string, o Options) (*Store, error) { return newStore(runDir, o, disk{}) }

func newStore(runDir string, o Options, fs fileSystem) (*Store, error) {
	if o.Keep < 0 || o.ShardLimit < 0 {
		return nil, fmt.Errorf("checkpoints: keep is %d and the shard limit %d, expected at least 0", o.Keep, o.ShardLimit)
	}
	s := &Store{filepath.Join(runDir, "checkpoints"), o, fs}
	for _, step := range []func() error{
		func() error { return fs.MkdirAll(s.dir) },
		func() error { return fs.SyncDir(runDir) },
		s.clean,
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("checkpoints: %w", err)
		}
	}
	return s, nil
}

// Save writes a checkpoint and returns once it is durable. Until then, and on any error, the older ones stay
// as they are; a checkpoint of the same step is replaced. Then, and only after the new one has been read back
// and verified, those beyond Options.Keep are deleted; checkpoints of later steps are left alone. An error
// beside a non-nil Checkpoint says that it was saved, but that tidying up failed.
func (s *Store) Save(c Contents) (*Checkpoint, error) {
	fail := func(err error) error { return fmt.Errorf("save checkpoint of step %d: %w", c.Step, err) }
	if c.Step < 0 {
		return nil, fail(errors.New("the step is negative"))
	}
	if err := s.clean(); err != nil {
		return nil, fail(err)
	}
	tmp := s.side("tmp", c.Step)
	files, err := s.write(tmp, c)
	if err != nil {
		s.fs.RemoveAll(tmp) // the next clean removes the rest
		return nil, fail(err)
	}
	final, old, err := s.publish(tmp, c.Step)
	if err != nil {
		return nil, fail(err)
	}
	out := &Checkpoint{Dir: final, Step: c.Step, files: files}
	if err := s.tidy(out, old, c.Spared); err != nil {
		return out, fmt.Errorf("checkpoint of step %d is saved, but tidying up failed: %w", c.Step, err)
	}
	return out, nil
}

func (s *Store) side(kind string, step int) string {
	return filepath.Join(s.dir, fmt.Sprintf(".%s-step-%d-%s", kind, step, rand.Text()[:10]))
}

// publish gives the finished folder its name, final, or removes it. An older folder of that name steps aside first, as
// .old-…, which Latest also reads, so that at every moment one of the two can be found; old is its path.
func (s *Store) publish(tmp string, step int) (final, old string, err error) {
	defer func() {
		if err != nil {
			s.fs.RemoveAll(tmp)
		}
	}()
	final = filepath.Join(s.dir, fmt.Sprintf("step-%d", step))
	if _, err := os.Lstat(final); err == nil {
		old = s.side("old", step)
		if err := s.fs.Rename(final, old); err != nil {
			return "", "", err
		}
	}
	if err := s.fs.Rename(tmp, final); err != nil {
		if old != "" {
			err = errors.Join(err, s.fs.Rename(old, final))
		}
		return "", "", err
	}
	return final, old, s.fs.SyncDir(s.dir)
}

// tidy deletes what the new checkpoint makes superfluous, except for the spared steps.
func (s *Store) tidy(c *Checkpoint, old string, spared []int) error {
	var spare []entry
	if s.opts.Keep > 0 {
		list, err := scan(s.dir)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(e entry) bool { return e.kind != whole || e.step >= c.Step })
		spare = slices.DeleteFunc(list[min(len(list), s.opts.Keep-1):], func(e entry) bool { return slices.Contains(spared, e.step) })
	}
	if old == "" && len(spare) == 0 {
		return nil
	}
	if _, err := Open(c.Dir); err != nil { // never delete a good one for the sake of one that cannot be read
		return err
	}
	var errs []error
	if old != "" {
		errs = append(errs, s.discard(old))
	}
	for _, e := range spare {
		errs = append(errs, s.remove(e))
	}
	return errors.Join(errs...)
}

// remove deletes a checkpoint in such a way that a kill half-way leaves nothing that looks like a damaged one.
func (s *Store) remove(e entry) error {
	bin := s.side("tmp", e.step)
	if err := s.fs.Rename(e.dir, bin); err != nil {
		return err
	}
	return s.discard(bin)
}

// clean removes what a killed process left, and puts back a checkpoint that was being replaced.
func (s *Store) clean() error {
	list, err := scan(s.dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		final := filepath.Join(s.dir, fmt.Sprintf("step-%d", e.step))
		switch e.kind {
		case trash:
			err = s.discard(e.dir)
		case replaced:
			if _, missing := os.Lstat(final); errors.Is(missing, os.ErrNotExist) {
				err = errors.Join(s.fs.Rename(e.dir, final), s.fs.SyncDir(s.dir))
			} else if _, damaged := Open(final); damaged == nil {
				err = s.discard(e.dir)
			} // else neither is certain: keep both
		}
		if err != nil && !atomicfile.Busy(err) { // that was said when it was discarded
			return err
		}
	}
	return nil
}

// discard deletes a folder whose name says that it is of no use. One with a file that another program has open stays
// until a later clean; the error says so.
func (s *Store) discard(dir string) error {
	err := s.fs.RemoveAll(dir)
	if atomicfile.Busy(err) {
		return fmt.Errorf("%w: another program has it open, and a later save removes it", err)
	}
	return err
}

// write fills a fresh folder: every file, the manifest last, all of it durable.
func (s *Store) write(dir string, c Contents) (map[string]FileInfo, error) {
	outputs, err := s.outputs(c)
	if err != nil {
		return nil, err
	}
	if err := s.fs.Mkdir(dir); err != nil {
		return nil, err
	}
	m := manifest{Version: manifestVersion, Step: c.Step}
	files := map[string]FileInfo{}
	for _, o := range outputs {
		info, err := s.writeFile(dir, o)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, info)
		files[o.Name] = info
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	last, err := jsonOutput(manifestFile, m)
	if err != nil {
		return nil, err
	}
	if _, err := s.writeFile(dir, last); err != nil {
		return nil, err
	}
	return files, s.fs.SyncDir(dir)
}

// outputs lists the files to write. An encoding error comes before gigabytes are written. The state is encoded again
// when the tensors are written: by then it may say what they lack.
func (s *Store) outputs(c Contents) ([]safetensors.Output, error) {
	config, err := jsonOutput(configFile, c.Config)
	if err != nil {
		return nil, err
	}
	if _, err := jsonOutput(stateFile, c.State); err != nil {
		return nil, err
	}
	out := []safetensors.Output{config}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		out = append(out, raw(name, c.Files[name]))
	}
	for _, part := range []struct {
		base    string
		tensors []Tensor
	}{{modelBase, c.Model}, {optimizerBase, c.Optimizer}} {
		layout, err := safetensors.Layout(part.base, entries(part.tensors), s.opts.ShardLimit)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.base, err)
		}
		out = append(out, layout...)
	}
	out = append(out, safetensors.Output{Name: stateFile, Encode: func(w io.Writer) error {
		state, err := jsonOutput(stateFile, c.State)
		if err != nil {
			return err
		}
		return state.Encode(w)
	}})
	seen := map[string]bool{manifestFile: true}
	for _, o := range out {
		if seen[o.Name] || !userpath.IsName(o.Name) {
			return nil, fmt.Errorf("file %q: the name is taken or is not a plain one", o.Name)
		}
		seen[o.Name] = true
	}
	return out, nil
}

func entries(tensors []Tensor) []safetensors.Entry {
	var out []safetensors.Entry
	for _, t := range tensors {
		out = append(out, safetensors.Entry{Name: t.Name, DType: t.DType, Shape: t.Shape, WriteTo: func(w io.Writer) error {
			b, err := t.Data()
			if err == nil {
				_, err = w.Write(b)
			}
			return err
		}})
	}
	return out
}

func jsonOutput(name string, v any) (safetensors.Output, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return safetensors.Output{}, fmt.Errorf("%s: %w", name, err)
	}
	return raw(name, append(text, '\n')), nil
}

func raw(name string, text []byte) safetensors.Output {
	return safetensors.Output{Name: name, Encode: func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}}
}

// writeFile writes one file durably and sums it up on the way.
func (s *Store) writeFile(dir string, o safetensors.Output) (FileInfo, error) {
	path := filepath.Join(dir, o.Name)
	fail := func(err error) (FileInfo, error) {
		if named := (*os.PathError)(nil); errors.As(err, &named) {
			return FileInfo{}, &os.PathError{Op: "write", Path: path, Err: named.Err} // the path once
		}
		return FileInfo{}, fmt.Errorf("write %s: %w", path, err)
	}
	f, err := s.fs.Create(path)
	if err != nil {
		return fail(err)
	}
	defer f.Close() // a second Close is harmless
	sum := &summing{to: f, hash: sha256.New()}
	b := bufio.NewWriterSize(sum, 128<<10)
	if err := o.Encode(b); err != nil {
		return fail(err)
	}
	for _, step := range []func() error{b.Flush, f.Sync, f.Close} {
		if err := step(); err != nil {
			return fail(err)
		}
	}
	return FileInfo{o.Name, sum.size, hex.EncodeToString(sum.hash.Sum(nil))}, nil
}
