package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/gpupipe/gpupipe/wasm/sdk"
)

type hookCommand struct {
	Check hookCheckCommand `cmd:"" help:"Check a module's hooks on sample data."`
	Bench hookBenchCommand `cmd:"" help:"Measure the speed of a module's hooks."`
	New   hookNewCommand   `cmd:"" help:"Create a folder with a first hook."`
}

func (c *hookCommand) Help() string {
	return `Hooks are WebAssembly modules that customize training: losses, data filters, learning rates. See docs/HOOKS.md.

Examples:
  gpupipe hook new --lang c myloss && make -C myloss
  gpupipe hook check myloss/hook.wasm --config '{"z": 0.001}'
  gpupipe hook bench examples/hooks/quality_filter.wasm --text book.txt`
}

type hookNewCommand struct {
	Dir  string `arg:"" help:"Folder to create."`
	Lang string `help:"Language: c, rust, assemblyscript, tinygo or go." default:"c"`
}

func (c *hookNewCommand) Help() string {
	return `Writes a hook, its SDK and a Makefile, and prints which programs of the language's toolchain are missing.

Example:
  gpupipe hook new --lang rust myloss && make -C myloss`
}

func (c *hookNewCommand) Run(a *app) error {
	names, err := sdk.New(c.Lang, c.Dir)
	if err != nil {
		return usererror.New(fielderror.Rename(err, func(string) string { return "--lang" }))
	}
	for _, n := range names {
		a.printf("%s\n", n)
	}
	tools := sdk.ToolchainOf(c.Lang)
	if missing := tools.Missing(); len(missing) > 0 {
		a.note("building it needs %s; missing here: %s; %s", strings.Join(tools.Programs, ", "), strings.Join(missing, ", "), tools.Get())
	}
	a.note("to build and check it: make -C %s && gpupipe hook check %s", c.Dir, filepath.Join(c.Dir, "hook.wasm"))
	return nil
}

// moduleFlags select a module, and the sample data to check it on.
type moduleFlags struct {
	File    string   `arg:"" help:"Module, a .wasm file."`
	Hook    string   `help:"Check only this hook." placeholder:"NAME"`
	Config  string   `help:"Configuration of the module, a JSON object." default:"{}"`
	Seed    uint64   `help:"Seed of the module."`
	Vocab   int      `help:"Size of the vocabulary." default:"256"`
	SeqLen  int      `help:"Tokens in a sequence." default:"128"`
	Aligned []string `help:"Array aligned with the tokens: its name, and its type and shape for one token, as in teacher=f32[8]." placeholder:"NAME=TYPE" sep:"none"`
	Text    string   `help:"File with documents, instead of sample text." placeholder:"FILE"`
	JSON    bool     `help:"Print one JSON object."`
}

// check validates the flags.
func (f *moduleFlags) check() error {
	switch {
	case !json.Valid([]byte(f.Config)) || !strings.HasPrefix(strings.TrimSpace(f.Config), "{"):
		return usererror.Errorf("--config: found %q, expected a JSON object", f.Config)
	case f.Vocab < 2 || f.Vocab > 1<<24:
		return usererror.Errorf("--vocab: found %d, expected an integer from 2 to %d", f.Vocab, 1<<24)
	case f.SeqLen < 1 || f.SeqLen > 1<<24:
		return usererror.Errorf("--seq-len: found %d, expected an integer from 1 to %d", f.SeqLen, 1<<24)
	}
	_, err := f.aligned()
	return err
}

// maxAligned bounds the elements of one token's array in sample data.
const maxAligned = 4096

var alignedArray = regexp.MustCompile(`^([^=]+)=(f32|i32|u32)(?:\[(\d{1,6}(?:,\d{1,6}){0,1})\])?$`)

// aligned returns the arrays aligned with the tokens, ordered by name, with their type for one token.
func (f *moduleFlags) aligned() (all []graph.Named, err error) {
	for _, text := range f.Aligned {
		m := alignedArray.FindStringSubmatch(text)
		if m == nil {
			return nil, usererror.Errorf("--aligned: found %q, expected a name, and its type for one token, as in ids=u32, teacher=f32[8] or pairs=i32[2,4]", text)
		}
		t := graph.Type{DType: map[string]graph.DType{"f32": graph.F32, "i32": graph.I32, "u32": graph.U32}[m[2]]}
		for d := range strings.SplitSeq(m[3], ",") {
			if d != "" {
				n, _ := strconv.Atoi(d) // at most six digits
				t.Shape = append(t.Shape, n)
			}
		}
		if t.Shape.Len() > maxAligned {
			return nil, usererror.Errorf("--aligned: %s has %d elements for each token, expected at most %d", text, t.Shape.Len(),
				maxAligned)
		}
		all = append(all, graph.Named{ID: m[1], Type: t})
	}
	slices.SortFunc(all, func(x, y graph.Named) int { return strings.Compare(x.ID, y.ID) })
	return all, nil
}

// spec describes one of the file's hooks.
func (f *moduleFlags) spec(a *app, name string, unmetered bool) hook.Spec {
	var logged atomic.Int64
	return hook.Spec{File: f.File, Hook: name, Config: []byte(f.Config), Seed: f.Seed, Limits: wasm.Limits{Unmetered: unmetered},
		Log: func(line string) {
			switch n := logged.Add(1); {
			case n <= maxLogged:
				a.warnf("%s: %s\n", f.File, line)
			case n == maxLogged+1:
				a.warnf("%s: logs more than %d lines: the others are not shown\n", f.File, maxLogged)
			}
		}}
}

// maxLogged is how many lines of a module's log are shown.
const maxLogged = 100

// each loads the module for every hook that it exports, or for the one that --hook names.
func (f *moduleFlags) each(a *app, h *hook.Host, do func(m *hook.Module) error) error {
	bin, err := hook.ReadFile(f.File)
	if errors.Is(err, fs.ErrNotExist) {
		return usererror.Errorf("%s: no such file", f.File)
	}
	if err != nil {
		return usererror.New(refused(f.File, err))
	}
	names := hook.Names()
	if f.Hook != "" {
		names = []string{f.Hook}
	}
	var exports []string
	for _, name := range names {
		if exports != nil && !slices.Contains(exports, name) {
			continue
		}
		m, err := h.LoadBytes(f.spec(a, name, false), bin)
		if f.Hook == "" && errors.Is(err, wasm.ErrNoHook) {
			continue
		}
		if err != nil {
			return usererror.New(err)
		}
		_, exports = m.Interface()
		if err := errors.Join(do(m), m.Close()); err != nil {
			return err
		}
	}
	if exports == nil {
		return usererror.New(refused(f.File, fmt.Errorf("exports none of the hooks %s", strings.Join(names, ", "))))
	}
	return nil
}

func refused(file string, err error) error {
	return &wasm.Error{Hook: file, Batch: -1, Kind: wasm.Refused, Cause: err}
}

// mostDocument is the longest document, in bytes. Longer paragraphs are cut.
const mostDocument = 1 << 16

// documents returns the paragraphs of --text, or sample text.
func (f *moduleFlags) documents() (texts [][]byte, size int, err error) {
	text := strings.Repeat("It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.\n", 20) + "\n\n" +
		strings.Repeat("0 1 2 3 # # # ... ", 40) + "\n\nÀ la recherche du temps perdu.\n\n"
	text = strings.Repeat(text, 30)
	if f.Text != "" {
		b, err := os.ReadFile(f.Text)
		if err != nil {
			return nil, 0, usererror.New(err)
		}
		text = string(b)
	}
	for p := range strings.SplitSeq(text, "\n\n") {
		for p != "" {
			n := len(p)
			if n > mostDocument {
				if n = strings.LastIndexByte(p[:mostDocument], '\n') + 1; n == 0 {
					n = mostDocument
				}
			}
			texts, size, p = append(texts, []byte(p[:n])), size+n, p[n:]
		}
	}
	if size == 0 {
		return nil, 0, usererror.Errorf("--text: %s has no text", f.Text)
	}
	return texts, size, nil
}
