package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/gpupipe/gpupipe/wasm/sdk"
)

type hookCommand struct {
	Check hookCheckCommand `cmd:"" help:"Try a module's hooks on sample data."`
	Bench hookBenchCommand `cmd:"" help:"Measure how fast a module's hooks are."`
	New   hookNewCommand   `cmd:"" help:"Make a folder with a hook to begin with."`
}

func (c *hookCommand) Help() string {
	return `Hooks are WebAssembly modules that take part in training: losses, data filters, learning rates. See docs/HOOKS.md.

Examples:
  gpupipe hook new --lang c myloss && make -C myloss
  gpupipe hook check myloss/hook.wasm --config '{"z": 0.001}'
  gpupipe hook bench examples/hooks/quality_filter.wasm --text book.txt`
}

type hookNewCommand struct {
	Dir  string `arg:"" help:"The folder to make."`
	Lang string `help:"c, rust, assemblyscript, tinygo or go." default:"c"`
}

func (c *hookNewCommand) Help() string {
	return `Example:
  gpupipe hook new --lang rust myloss && make -C myloss`
}

func (c *hookNewCommand) Run(a *app) error {
	names, err := sdk.New(c.Lang, c.Dir)
	if err != nil {
		return usererror.New(err)
	}
	for _, n := range names {
		a.printf("%s\n", n)
	}
	return nil
}

// moduleFlags say which module is tried, and how.
type moduleFlags struct {
	File    string   `arg:"" help:"The module, a .wasm file."`
	Hook    string   `help:"One of its hooks only."`
	Config  string   `help:"Its configuration, a JSON object." default:"{}"`
	Seed    uint64   `help:"Its seed."`
	Vocab   int      `help:"Tokens of the vocabulary." default:"256"`
	SeqLen  int      `help:"Tokens of a sequence." default:"128"`
	Aligned []string `help:"An array that goes along with the tokens: a name, and what one token has of it, as in teacher=f32[8]." placeholder:"NAME=TYPE" sep:"none"`
	Text    string   `help:"A file to take documents from, instead of sample text." placeholder:"FILE"`
	JSON    bool     `help:"Print one JSON object."`
}

// check refuses what no module can be tried with.
func (f *moduleFlags) check() error {
	switch {
	case !json.Valid([]byte(f.Config)) || !strings.HasPrefix(strings.TrimSpace(f.Config), "{"):
		return usererror.New(fmt.Errorf("--config: found %q, expected a JSON object", f.Config))
	case f.Vocab < 2 || f.Vocab > 1<<24:
		return usererror.New(fmt.Errorf("--vocab: found %d, expected an integer from 2 to %d", f.Vocab, 1<<24))
	case f.SeqLen < 1 || f.SeqLen > 1<<24:
		return usererror.New(fmt.Errorf("--seq-len: found %d, expected an integer from 1 to %d", f.SeqLen, 1<<24))
	}
	_, err := f.aligned()
	return err
}

// maxAligned bounds the numbers of one token in sample data.
const maxAligned = 4096

var alignedArray = regexp.MustCompile(`^([^=]+)=(f32|i32|u32)(?:\[(\d{1,6}(?:,\d{1,6}){0,1})\])?$`)

// aligned are the arrays that go along with the tokens, by their names in order: the type of one token's.
func (f *moduleFlags) aligned() (all []graph.Named, err error) {
	for _, text := range f.Aligned {
		m := alignedArray.FindStringSubmatch(text)
		if m == nil {
			return nil, usererror.New(fmt.Errorf("--aligned: found %q, expected a name and the type of one token's: ids=u32, teacher=f32[8] or i32[2,4]", text))
		}
		t := graph.Type{DType: map[string]graph.DType{"f32": graph.F32, "i32": graph.I32, "u32": graph.U32}[m[2]]}
		for d := range strings.SplitSeq(m[3], ",") {
			if d != "" {
				n, _ := strconv.Atoi(d) // of digits, few enough
				t.Shape = append(t.Shape, n)
			}
		}
		if t.Shape.Len() > maxAligned {
			return nil, usererror.New(fmt.Errorf("--aligned: %s has %d numbers a token, at most %d can be tried", text, t.Shape.Len(), maxAligned))
		}
		all = append(all, graph.Named{ID: m[1], Type: t})
	}
	slices.SortFunc(all, func(x, y graph.Named) int { return strings.Compare(x.ID, y.ID) })
	return all, nil
}

// spec is of one of the file's hooks.
func (f *moduleFlags) spec(a *app, name string, unmetered bool) hook.Spec {
	return hook.Spec{File: f.File, Hook: name, Config: []byte(f.Config), Seed: f.Seed, Limits: wasm.Limits{Unmetered: unmetered},
		Log: func(line string) { fmt.Fprintf(a.stderr, "%s: %s\n", f.File, line) }}
}

// each loads the module for every hook that it has, or for the one that is wanted.
func (f *moduleFlags) each(a *app, h *hook.Host, do func(m *hook.Module) error) error {
	bin, err := hook.ReadFile(f.File)
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

// mostDocument is where a paragraph of a file is cut, in bytes.
const mostDocument = 1 << 16

// documents are paragraphs of a file, or made up.
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
		return nil, 0, fmt.Errorf("%s: no text in it", f.Text)
	}
	return texts, size, nil
}
