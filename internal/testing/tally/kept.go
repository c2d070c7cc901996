package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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
	return sources(".")
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

// outputs are the folders of the root that hold no sources.
var outputs = map[string]bool{".git": true, "bin": true, "build": true, "runs": true, "studies": true}

// sources returns a sum of the names and contents of all files of the module in dir.
func sources(dir string) (string, error) {
	sum := sha256.New()
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case outputs[path]:
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil // the .git of a worktree
		case !d.Type().IsRegular():
			return nil
		}
		f, err := root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		content := sha256.New()
		if _, err := io.Copy(content, f); err != nil {
			return err
		}
		fmt.Fprintf(sum, "%x %s\n", content.Sum(nil), filepath.ToSlash(path))
		return nil
	})
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}
