package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/gpupipe/gpupipe/internal/testing/sources"
)

// kept is a file of counts.
type kept struct {
	Sources string // what the tests were built from
	Counts  *counts
}

// forget removes a file of counts and returns the sum of the sources, before tests run.
func forget(path string) (string, error) {
	if err := os.RemoveAll(path); err != nil {
		return "", err
	}
	return sum(".")
}

func (k kept) write(path string) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o666)
}

func readKept(path string) (kept, error) {
	k := kept{Counts: newCounts()}
	data, err := os.ReadFile(path)
	if err != nil {
		return k, fmt.Errorf("run make test first: %w", err)
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// sum returns a sum of the names and contents of all files of the module in dir.
func sum(dir string) (string, error) {
	all, root := sha256.New(), os.DirFS(dir)
	err := sources.Walk(dir, func(path string) error {
		f, err := root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		content := sha256.New()
		if _, err := io.Copy(content, f); err != nil {
			return err
		}
		fmt.Fprintf(all, "%x %s\n", content.Sum(nil), path)
		return nil
	})
	return fmt.Sprintf("%x", all.Sum(nil)), err
}
