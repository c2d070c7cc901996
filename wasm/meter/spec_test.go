package meter

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// The specification's tests as wast2json gives them.
type script struct {
	Commands []command `json:"commands"`
}

type command struct {
	Type, Name, As, Filename string
	Line                     int
	ModuleType               string `json:"module_type"`
	Action                   struct {
		Type, Field, Module string
		Args                []value
	}
}

type value struct {
	Type     string
	LaneType string `json:"lane_type"`
	Value    any
}

// bits is a value as wazero takes it.
func (v value) bits() []uint64 {
	lanes, vector := v.Value.([]any)
	if !vector {
		lanes = []any{v.Value}
	}
	kind := v.Type
	if vector {
		kind = v.LaneType
	}
	size := map[string]int{"i8": 8, "i16": 16, "i32": 32, "f32": 32}[kind]
	if size == 0 {
		size = 64
	}
	out := make([]uint64, max(1, len(lanes)*size/64))
	for i, l := range lanes {
		s, _ := l.(string)
		u, err := strconv.ParseUint(s, 10, 64)
		if n, errSigned := strconv.ParseInt(s, 10, 64); err != nil && errSigned == nil {
			u, err = uint64(n), nil
		}
		if v.Type == "externref" && err == nil {
			u++ // 0 is null
		}
		if size < 64 {
			u &= 1<<size - 1
		}
		out[i*size/64] |= u << (i * size % 64)
	}
	return out
}

// transcript runs a script, each module changed by rewrite, and writes down everything that can be seen.
func transcript(t *testing.T, file string, rewrite func([]byte) ([]byte, error)) []string {
	ctx := context.Background()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var s script
	require.NoError(t, json.Unmarshal(text, &s))
	h := newHost(t, wazero.NewRuntimeConfig())
	defer h.Close(ctx)
	spectest, err := os.ReadFile(corpus(t, "internal/integration_test/spectest/testdata/spectest.wasm")[0])
	require.NoError(t, err)
	_, err = h.InstantiateWithConfig(ctx, spectest, wazero.NewModuleConfig())
	require.NoError(t, err)

	var lines []string
	named, last, all := map[string]api.Module{}, api.Module(nil), []api.Module(nil)
	load := func(c command, as string) (api.Module, string) {
		bin, err := os.ReadFile(filepath.Join(filepath.Dir(file), c.Filename))
		require.NoError(t, err)
		bin, err = rewrite(bin)
		if err != nil {
			return nil, "refused"
		}
		cm, err := h.CompileModule(ctx, bin)
		if err != nil {
			return nil, "refused"
		}
		m, err := h.InstantiateModule(ctx, cm, wazero.NewModuleConfig().WithName(as).WithStartFunctions())
		if err != nil {
			return nil, "not instantiated"
		}
		return m, "loaded"
	}
	for i, c := range s.Commands {
		note := ""
		switch c.Type {
		case "module":
			as := ""
			if i+1 < len(s.Commands) && s.Commands[i+1].Type == "register" {
				as = s.Commands[i+1].As
			}
			m, said := load(c, as)
			require.NotNil(t, m, "%s line %d: %s", file, c.Line, said)
			named[c.Name], last, note, all = m, m, said, append(all, m)
		case "assert_malformed", "assert_invalid", "assert_unlinkable", "assert_uninstantiable":
			if c.ModuleType != "text" {
				_, note = load(c, "")
			}
		case "assert_return", "assert_trap", "assert_exhaustion", "action":
			m := last
			if c.Action.Module != "" {
				m = named[c.Action.Module]
			}
			note = act(ctx, m, c)
			for _, m := range all { // a trap leaves its calls open: a real host drops the instance
				if room, metered := m.ExportedGlobal(Room).(api.MutableGlobal); metered {
					room.Set(uint64(Options{}.withDefaults().Depth))
				}
			}
		}
		lines = append(lines, fmt.Sprintf("%s line %d: %s: %s", filepath.Base(file), c.Line, c.Type, note))
	}
	return lines
}

func act(ctx context.Context, m api.Module, c command) string {
	if c.Action.Type == "get" {
		return fmt.Sprint(m.ExportedGlobal(c.Action.Field).Get())
	}
	f := m.ExportedFunction(c.Action.Field)
	var args []uint64
	for _, a := range c.Action.Args {
		args = append(args, a.bits()...)
	}
	results, err := f.Call(ctx, args...)
	if err != nil {
		return outcome(err)
	}
	i := 0
	for _, r := range f.Definition().ResultTypes() {
		if r == 0x70 && results[i] != 0 {
			results[i] = 1 // a function's address
		}
		i++
		if r == 0x7b {
			i++
		}
	}
	return fmt.Sprintf("%x", results)
}

// The specification's tests do the same, command by command, whether their modules are metered or not: results, traps,
// and which modules are refused. wazero loads modules with elements outside of their table; metering refuses them
// if the module itself has the table's size and the elements' place.
func TestSpecification(t *testing.T) {
	open := Options{MemoryPages: 1 << 16, TableElements: 1<<32 - 1}
	for _, pattern := range []string{"v2/testdata/*.json", "tail-call/testdata/*.json"} {
		for _, file := range corpus(t, "internal/integration_test/spectest/"+pattern) {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
				t.Parallel()
				want := transcript(t, file, func(b []byte) ([]byte, error) { return b, nil })
				got := transcript(t, file, func(b []byte) ([]byte, error) { return Rewrite(b, open) })
				require.Len(t, got, len(want))
				refused := 0
				for i := range want {
					if place, lenient := strings.CutSuffix(want[i], "assert_uninstantiable: loaded"); lenient &&
						got[i] == place+"assert_uninstantiable: refused" {
						refused++
						continue
					}
					assert.Equal(t, want[i], got[i])
				}
				assert.Equal(t, slices.Contains([]string{"elem.json", "linking.json"}, filepath.Base(file)), refused > 0)
			})
		}
	}
}
