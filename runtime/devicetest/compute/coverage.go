package compute

import (
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/shaders"
)

// shares is how many backends of this repository compile the same text. On software adapters, which take longer to
// compile a kernel than to run it, they divide the suite: see coverage.
const shares = 2

// claimsOnly is the share of a backend that runs claims and kernel variants, and leaves statements to others.
const claimsOnly = shares + 1

// coverage selects the runs of the suite on a software adapter. A kernel's statements are its lines without their
// numbers. A backend makes every run that has
//
//   - a claim or a kernel variant that no run of its op had before, or no kernel, or
//   - a statement that no kernel before had, or
//   - a kernel that combines such statements as none before did, if the run is of the backend's share.
//
// It leaves out a run whose kernels differ from earlier ones in numbers only. A backend of claimsOnly makes the first
// kind of runs alone. The CPU's native code and GPUs make all runs.
type coverage struct {
	share uint32 // below shares, shares for both, or claimsOnly
	seen  map[string]bool
}

// newCoverage returns the coverage for a device: nil, which takes every run, unless it is a software adapter.
func newCoverage(dev device.Device, share uint32) *coverage {
	if dev.Info().Kind != device.Software {
		return nil
	}
	return &coverage{share: share, seen: map[string]bool{}}
}

// takes reports whether the backend makes a run of a task with kernels, given the runs that it was asked for before.
func (c *coverage) takes(t Task, ks []shaders.Kernel) bool {
	if c == nil {
		return true
	}
	needed := c.add("claim "+t.Op+" "+t.Claim) || len(ks) == 0
	combined, run := false, t.Op+" "+t.Name
	for _, k := range ks {
		run += " " + k.Name
		needed = c.add("variant "+t.Op+" "+k.Name) || needed
		if c.share == claimsOnly {
			continue
		}
		for _, p := range k.Passes {
			lines := statements(p.Source)
			for _, line := range lines {
				needed = c.add(line) || needed
			}
			combined = c.add(strings.Join(lines, "\n")) || combined
		}
	}
	return needed || combined && (c.share == shares || crc32.ChecksumIEEE([]byte(run))%shares == c.share)
}

// adds reports whether one of the kernels has a statement that no kernel before had.
func (c *coverage) adds(ks []shaders.Kernel) (found bool) {
	for _, k := range ks {
		for _, p := range k.Passes {
			for _, line := range statements(p.Source) {
				found = c.add(line) || found
			}
		}
	}
	return found
}

// add reports whether a key is new.
func (c *coverage) add(key string) bool {
	if c.seen[key] {
		return false
	}
	c.seen[key] = true
	return true
}

// counted are the names in which digits are no numbers.
var counted = map[string]bool{"f16": true, "f32": true, "u32": true, "i32": true, "vec2": true, "vec3": true, "vec4": true}

// withoutNumbers returns a kernel's text with # for each number except in types.
func withoutNumbers(text string) string {
	isDigit := func(c byte) bool { return '0' <= c && c <= '9' }
	isWord := func(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		start := i
		for i < len(text) && isWord(text[i]) {
			i++
		}
		word := text[start:i]
		if counted[word] {
			out = append(out, word...)
			continue
		}
		for j := range len(word) {
			if !isDigit(word[j]) {
				out = append(out, word[j])
			} else if j == 0 || !isDigit(word[j-1]) {
				out = append(out, '#')
			}
		}
		for i < len(text) && !isWord(text[i]) {
			out = append(out, text[i])
			i++
		}
	}
	return string(out)
}

// statements returns the distinct lines of a kernel, without numbers, in order.
func statements(text string) []string {
	set := map[string]bool{}
	for line := range strings.Lines(withoutNumbers(text)) {
		set[strings.TrimSpace(line)] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// rounds returns the kernels of each run of a task by Check. It returns one run without kernels for a task that cannot
// be lowered, so that the run reports it.
func rounds(dev device.Device, t Task) [][]shaders.Kernel {
	choose := &nth{}
	first, err := kernels(dev, t, choose)
	if err != nil {
		return [][]shaders.Kernel{nil}
	}
	runs := [][]shaders.Kernel{first}
	for i := 1; i < choose.most(); i++ {
		var ks []shaders.Kernel
		for _, variants := range choose.several {
			ks = append(ks, variants[min(i, len(variants)-1)])
		}
		runs = append(runs, ks)
	}
	return runs
}

// kernels returns the kernels of a task that a chooser selects; nil is the static choice.
func kernels(dev device.Device, t Task, choose exec.Chooser) (ks []shaders.Kernel, err error) {
	defer caught(&err)
	plan, err := exec.NewPlan(dev, map[string]*graph.Graph{"task": t.Graph}, exec.Options{Tune: choose})
	if err != nil {
		return nil, err
	}
	return plan.Chosen("task")
}
