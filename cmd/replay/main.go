// Command replay shows which kernels a change of the code changes. It generates the kernels of every preset and of
// every op's cases, for each kind of device, and keeps them in a file or compares them with the kernels in a file. make
// replay compares the working tree with a commit.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

func main() {
	write := flag.String("write", "", "keep the kernels in this `file`")
	against := flag.String("against", "", "compare the kernels with those of this `file`, and exit with 1 if they differ")
	most := flag.Int("most", 5, "print the differences of so many kernels")
	flag.Parse()
	changed, err := run(*write, *against, *most)
	if err != nil {
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(2)
	}
	if changed {
		os.Exit(1)
	}
}

func run(write, against string, most int) (changed bool, err error) {
	now, err := generate()
	if err != nil {
		return false, err
	}
	if write != "" {
		if err := now.save(write); err != nil {
			return false, err
		}
	}
	if against == "" {
		return false, nil
	}
	before, err := load(against)
	if err != nil {
		return false, err
	}
	return report(before, now, most)
}

// change is a text that another has replaced, under so many keys.
type change struct {
	before, after string // hashes; "": there is no kernel
	keys          []string
}

// changes lists the distinct replacements. Replacements in the most kernels come first.
func changes(before, now *kernels) []change {
	by := map[[2]string]*change{}
	keys := maps.Clone(before.Kernels)
	maps.Copy(keys, now.Kernels)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		pair := [2]string{before.Kernels[key], now.Kernels[key]}
		if pair[0] == pair[1] {
			continue
		}
		if by[pair] == nil {
			by[pair] = &change{before: pair[0], after: pair[1]}
		}
		by[pair].keys = append(by[pair].keys, key)
	}
	var out []change
	for _, c := range by {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b change) int {
		return cmp.Or(cmp.Compare(len(b.keys), len(a.keys)), cmp.Compare(a.keys[0], b.keys[0]))
	})
	return out
}

// report prints what changed, with the differences of the texts that most kernels have.
func report(before, now *kernels, most int) (changed bool, err error) {
	all := changes(before, now)
	replaced := 0
	for _, c := range all {
		replaced += len(c.keys)
	}
	fmt.Printf("%d kernels of %d texts; %d differ, in %d texts\n", len(now.Kernels), len(now.Texts), replaced, len(all))
	for i, c := range all {
		fmt.Printf("%d×  %s\n", len(c.keys), c.keys[0])
		if i < most {
			if err := diff(before.Texts[c.before], now.Texts[c.after]); err != nil {
				return true, err
			}
		}
	}
	return len(all) > 0, nil
}

// diff prints the lines in which two texts differ.
func diff(before, after string) error {
	dir, err := os.MkdirTemp("", "replay-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files := [2]string{filepath.Join(dir, "before"), filepath.Join(dir, "now")}
	for i, text := range [2]string{before, after} {
		if err := os.WriteFile(files[i], []byte(text), 0o600); err != nil {
			return err
		}
	}
	command := exec.Command("git", "diff", "--no-index", "--no-prefix", "--", files[0], files[1])
	command.Dir, command.Stdout, command.Stderr = dir, os.Stdout, os.Stderr
	if err := command.Run(); err != nil && command.ProcessState.ExitCode() != 1 { // 1: they differ
		return fmt.Errorf("git diff: %w", err)
	}
	return nil
}
