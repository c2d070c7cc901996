// Package jsonfile keeps values in files as JSON.
package jsonfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
)

// Write replaces the file at path by a value, which indent sets off at each level.
func Write(path string, v any, indent string) error {
	text, err := json.MarshalIndent(v, "", indent)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return atomicfile.WriteBytes(path, append(text, '\n'))
}

// ReadCache reads what a cache keeps, by key. It is empty if there is no file, or a damaged one.
func ReadCache[T any](path string) (map[string]T, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var known map[string]T
	if err != nil || json.Unmarshal(text, &known) != nil || known == nil { // JSON's null leaves no map
		known = map[string]T{}
	}
	return known, nil
}
