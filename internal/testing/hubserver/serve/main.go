// Command serve is a Hub for other programs' tests: it serves the folders models/ORG/NAME and datasets/ORG/NAME of a
// folder, prints its address, and ends with its standard input. NAME@BRANCH has the files of another branch than main;
// a / in BRANCH is %2F. Uploads need the token hf_test.
package main

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpupipe/gpupipe/internal/testing/hubserver"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir string) error {
	repos := map[string]map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		parts := strings.SplitN(filepath.ToSlash(rel), "/", 4)
		if len(parts) < 4 {
			return fmt.Errorf("%s: expected kind/org/name/file", rel)
		}
		name := strings.Join(parts[:3], "/")
		if repos[name] == nil {
			repos[name] = map[string][]byte{}
		}
		repos[name][parts[3]], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return err
	}
	s := &hubserver.Server{Token: "hf_test", Access: true, PageSize: 50}
	if err := s.Start(); err != nil {
		return err
	}
	defer s.Close()
	for name, files := range repos {
		name, branch, _ := strings.Cut(name, "@")
		s.Add(name, cmp.Or(strings.ReplaceAll(branch, "%2F", "/"), "main"), files)
	}
	fmt.Println(s.URL())
	_, err = io.Copy(io.Discard, os.Stdin)
	if leaks := s.Leaks(); len(leaks) > 0 {
		return fmt.Errorf("the token went to the storage: %v", leaks)
	}
	return err
}
