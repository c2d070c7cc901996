package gguf

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"

	"github.com/gpupipe/gpupipe/internal/placeholder"
)

// Keys of a file in parts, as llama-gguf-split writes them. Only the first part has the other keys.
const (
	splitNumber  = "split.no"
	splitCount   = "split.count"
	splitTensors = "split.tensors.count"
)

// partName matches the end of a part's name.
var partName = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.gguf$`)

// PartName reports whether a path is named as a part of a file is, such as m-00001-of-00003.gguf: which one, from 1,
// and of how many.
func PartName(path string) (at, of int, ok bool) {
	m := partName.FindStringSubmatch(path)
	if m == nil {
		return 0, 0, false
	}
	at, _ = strconv.Atoi(m[1]) // five digits
	of, _ = strconv.Atoi(m[2])
	return at, of, true
}

// partPath is the path of another part.
func partPath(path string, at, of int) string {
	return partName.ReplaceAllLiteralString(path, fmt.Sprintf("-%05d-of-%05d.gguf", at, of))
}

// addParts opens the other parts of a file whose first one is f, and takes their tensors.
func (f *File) addParts() error {
	count, _ := f.keys[splitCount].(int64)
	if n, _ := f.keys[splitNumber].(int64); n > 0 {
		return fmt.Errorf("%s: part %d of %d, expected the first one to be named, which has the model's keys", f.path, n+1, count)
	}
	if count < 2 {
		return nil
	}
	_, of, named := PartName(f.path)
	if !named || int64(of) != count {
		return fmt.Errorf("%s: the first of %d parts, expected a name that ends in -00001-of-%05d.gguf, beside the others", f.path, count,
			count)
	}
	for at := 2; at <= of; at++ {
		path := partPath(f.path, at, of)
		part, err := openOne(path)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: missing, expected the %d parts of the model in one folder: download it, too", path, of)
		}
		if err != nil {
			return err
		}
		f.closers = append(f.closers, part.closers...)
		if n, _ := part.keys[splitNumber].(int64); n != int64(at-1) {
			return fmt.Errorf("%s: part %d by its %s, expected part %d", path, n+1, splitNumber, at)
		}
		for _, t := range part.tensors {
			if f.Has(t.Name) {
				return fmt.Errorf("%s: tensor %q is in an earlier part, too", path, t.Name)
			}
			f.byName[t.Name] = len(f.tensors)
			f.tensors = append(f.tensors, t)
		}
	}
	if n, ok := f.keys[splitTensors].(int64); ok && n != int64(len(f.tensors)) {
		return fmt.Errorf("%s: the parts have %d tensors, expected the %d of %s", f.path, len(f.tensors), n, splitTensors)
	}
	return nil
}

// openOne opens a file or one part.
func openOne(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	switch {
	case err == nil && !st.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file", path)
	case err == nil:
		if found := placeholder.Check(f, st.Size()); found != nil {
			err = fmt.Errorf("%s: %w", path, found)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g, err := Parse(f, st.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	g.path, g.closers = path, append(g.closers, f.Close)
	return g, nil
}
