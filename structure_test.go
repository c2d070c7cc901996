package gpupipe

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/gpupipe/gpupipe/"

// allowed says which packages of the project a package may import, by prefix: data flows one way. Tests may import more.
// The longest prefix decides.
var allowed = map[string][]string{
	"graph":                {},
	"graph/op":             {"graph"},
	"graph/eval":           {"graph"},
	"graph/autodiff":       {"graph", "graph/op"},
	"graph/fuse":           {"graph"},
	"graph/plan":           {"graph", "graph/fuse"},
	"graph/model":          {"graph", "graph/op", "graph/autodiff"},
	"shaders":              {"graph", "graph/fuse"},
	"runtime/device":       {},
	"runtime/webgpu":       {"runtime/device"},
	"runtime/vulkan":       {"runtime/device"},
	"runtime/null":         {"runtime/device"},
	"runtime/tune":         {"graph", "graph/fuse", "shaders", "runtime/device"},
	"runtime/exec":         {"graph", "graph/fuse", "graph/plan", "shaders", "runtime/device", "runtime/tune"},
	"runtime/devicetest":   {"graph", "graph/op", "graph/eval", "graph/autodiff", "graph/fuse", "shaders", "runtime/device", "runtime/exec"},
	"runtime/bench":        {"graph", "graph/op", "graph/autodiff", "graph/model", "optim", "shaders", "runtime/device", "runtime/exec", "runtime/tune"},
	"optim":                {"graph", "graph/op"},
	"pipeline/schedule":    {},
	"pipeline/partition":   {"graph"},
	"pipeline/stage":       {"pipeline/schedule"},
	"pipeline/transport":   {"pipeline/transport"},
	"pipeline/data":        {"pipeline/data", "pipeline/tokenizer"},
	"pipeline/tokenizer":   {"pipeline/tokenizer"},
	"pipeline/checkpoint":  {"pipeline/checkpoint"},
	"pipeline/trace":       {},
	"pipeline/metrics":     {},
	"pipeline/train":       {"graph", "shaders", "runtime/device", "runtime/exec", "runtime/tune", "optim", "pipeline", "wasm"},
	"wasm":                 {"graph", "wasm"},
	"cmd":                  {"graph", "shaders", "runtime", "pipeline", "optim", "wasm", "cmd"},
	"runtime/device/check": {"runtime/device"}, // checktest: the refusals that every backend's tests expect
}

// whole lists the entries of allowed that stand for all packages below them, too.
var whole = []string{"graph", "shaders", "pipeline", "wasm", "runtime", "cmd", "pipeline/data", "pipeline/tokenizer", "pipeline/checkpoint", "pipeline/transport"}

// portable packages use no cgo and build for WebAssembly.
var portable = []string{"./graph/...", "./shaders/...", "./optim/...", "./runtime/device", "./runtime/null", "./runtime/exec", "./runtime/tune"}

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
	CgoFiles   []string
}

func list(t *testing.T, env []string, args ...string) []pkg {
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Imports,Standard,CgoFiles"}, args...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var ps []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return ps
		}
		require.NoError(t, err)
		ps = append(ps, p)
	}
}

// rule is the longest key of allowed that is the package or one of its parents.
func rule(path string) (string, bool) {
	best, found := "", false
	for key := range allowed {
		if (path == key || strings.HasPrefix(path, key+"/") || key == "runtime/device/check" && strings.HasPrefix(path, key)) && len(key) >= len(best) {
			best, found = key, true
		}
	}
	return best, found
}

func TestImportDirections(t *testing.T) {
	for _, p := range list(t, nil, "./...") {
		path := strings.TrimPrefix(p.ImportPath, module)
		if path+"/" == module {
			continue // this test
		}
		key, ok := rule(path)
		if !assert.True(t, ok, "%s is in no list of what it may import", path) {
			continue
		}
		for _, in := range p.Imports {
			if in, ours := strings.CutPrefix(in, module); ours {
				assert.True(t, permitted(key, in), "%s imports %s, which DESIGN does not allow", path, in)
			}
		}
	}
}

func permitted(key, in string) bool {
	return slices.ContainsFunc(allowed[key], func(a string) bool {
		return in == a || slices.Contains(whole, a) && !slices.Contains([]string{"graph"}, key) && strings.HasPrefix(in, a+"/")
	})
}
