package gpupipe

import (
	"encoding/json"
	"errors"
	"go/ast"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
)

const module = "github.com/gpupipe/gpupipe/"

// allowed says which packages of the project a package may import: data flows one way. "a/..." is a and all below it;
// the longest key that fits a package decides. Every package may import its own room (its key), and internal/... except
// internal/testing/.... Tests may import more.
var allowed = map[string]string{
	"graph/...":                      "",
	"optim/...":                      "graph/...",
	"shaders/...":                    "graph/...",
	"runtime/device/...":             "graph/target",
	"runtime/null/...":               "graph/target runtime/device/...",
	"runtime/webgpu/...":             "graph/target runtime/device/...",
	"runtime/webgpujs/...":           "graph/target runtime/device/...",
	"runtime/vulkan/...":             "graph/target runtime/device/... shaders/spirv",
	"runtime/cpu/...":                "graph/target runtime/device/... shaders/native",
	"runtime/sidecar/...":            "graph/target runtime/device/...",
	"runtime/tune":                   "graph/... shaders/... runtime/device/...",
	"runtime/exec":                   "graph/... shaders/... runtime/device/... runtime/tune",
	"runtime/profile":                "runtime/device/... runtime/exec",
	"runtime/devicetest/...":         "graph/... shaders/... runtime/device/... runtime/exec internal/testing/tier",
	"wasm/...":                       "graph/...",
	"pipeline/schedule/...":          "",
	"pipeline/wire":                  "",
	"pipeline/trace":                 "",
	"pipeline/metrics":               "",
	"pipeline/engine/...":            execution + "pipeline/schedule pipeline/trace pipeline/wire",
	"pipeline/engine/stage":          "pipeline/schedule",
	"pipeline/data/...":              "pipeline/checkpoint/gguf pipeline/checkpoint/safetensors",
	"pipeline/checkpoint/...":        "graph/...",
	"pipeline/checkpoint/weights":    execution + "pipeline/checkpoint/... pipeline/engine",
	"pipeline/replicas":              execution + "optim/outer pipeline/engine pipeline/schedule pipeline/trace",
	"pipeline/config":                "graph/... optim optim/outer wasm/hook pipeline/checkpoint/... pipeline/data/tokenizer pipeline/schedule pipeline/wire",
	"pipeline/layout/...":            execution + "optim/outer pipeline/config pipeline/engine pipeline/replicas pipeline/schedule pipeline/wire",
	"pipeline/layout/partition":      "pipeline/schedule pipeline/wire",
	"pipeline/layout/replicate":      "pipeline/schedule",
	"pipeline/train/...":             execution + "wasm/... pipeline/...",
	"pipeline/train/hooks":           "graph/... optim wasm/... pipeline/checkpoint/... pipeline/config pipeline/data/... pipeline/engine pipeline/trace",
	"pipeline/inference/...":         execution + "wasm/hook pipeline/checkpoint/... pipeline/config pipeline/data/... pipeline/engine pipeline/layout pipeline/train/hooks",
	"pipeline/inference/tasks":       "",
	"pipeline/runs/...":              execution + "optim/outer pipeline/checkpoint/... pipeline/config pipeline/layout pipeline/metrics pipeline/schedule pipeline/train pipeline/wire",
	"pipeline/watch":                 "pipeline/metrics pipeline/trace",
	"pipeline/cluster/identity":      "",
	"pipeline/cluster/control":       "pipeline/cluster/identity pipeline/cluster/transport",
	"pipeline/cluster/transport":     "",
	"pipeline/cluster/protocol":      execution + "pipeline/checkpoint/safetensors pipeline/engine/... pipeline/layout/partition pipeline/replicas pipeline/trace",
	"pipeline/cluster/tab":           "pipeline/cluster/protocol",
	"pipeline/cluster/member":        execution + "pipeline/cluster/... pipeline/config pipeline/data pipeline/engine/... pipeline/layout/... pipeline/replicas pipeline/trace pipeline/train/hooks",
	"pipeline/cluster/coordinator":   execution + "pipeline/...",
	"examples/...":                   execution + "wasm/... pipeline/engine pipeline/schedule",
	"examples/browser":               "runtime/device runtime/webgpujs wasm/... examples/browser/...",
	"internal/...":                   "",
	"internal/kerneldump":            "runtime/device",
	"internal/testing/...":           "graph/... optim shaders/... runtime/... pipeline/...",
	"cmd/...":                        execution + "shaders/... runtime/... wasm/... pipeline/...",
	"cmd/gpupipe/internal/hookbench": "wasm/... internal/testing/wasmtest",
	"cmd/runwasm":                    "internal/testing/chromium",
}

// execution is what computes graphs on devices.
const execution = "graph/... optim runtime/device/... runtime/exec runtime/profile runtime/tune "

// backends may be named by commands, test helpers and the browser example only.
var backends = []string{"runtime/webgpu", "runtime/vulkan", "runtime/cpu", "runtime/null", "runtime/webgpujs", "runtime/sidecar"}

// portable packages use no cgo and build for WebAssembly.
var portable = strings.Fields(`./graph/... ./shaders/... ./optim/... ./runtime/device/... ./runtime/null ./runtime/exec
	./runtime/tune ./runtime/devicetest/compute ./pipeline/schedule/... ./pipeline/layout/partition ./pipeline/engine/...
	./pipeline/trace ./pipeline/wire ./pipeline/data/tokenizer/... ./pipeline/checkpoint ./pipeline/checkpoint/safetensors
	./pipeline/checkpoint/gguf ./pipeline/cluster/transport ./pipeline/cluster/identity ./pipeline/cluster/control
	./internal/strictyaml ./wasm/graphhook ./wasm/meter ./wasm`)

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
	CgoFiles   []string
}

// lookAround looks at every source file, so that go test does not take a cached result for a tree that has changed: it
// cannot know what the go command that a test runs reads.
func lookAround(t *testing.T) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			_, err = os.Stat(path)
		}
		return err
	}))
}

func list(t *testing.T, env []string, args ...string) []pkg {
	t.Helper()
	lookAround(t)
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

// fits reports whether a package matches a pattern.
func fits(path, pattern string) bool {
	parent, below := strings.CutSuffix(pattern, "/...")
	return path == parent || below && strings.HasPrefix(path, parent+"/")
}

// rule is the longest key of allowed that fits a package.
func rule(path string) string {
	best := ""
	for pattern := range allowed {
		if fits(path, pattern) && len(pattern) > len(best) {
			best = pattern
		}
	}
	return best
}

func permitted(importer, imported string) bool {
	if fits(imported, "internal/...") && !fits(imported, "internal/testing/...") || fits(imported, rule(importer)) {
		return true
	}
	return slices.ContainsFunc(strings.Fields(allowed[rule(importer)]), func(p string) bool { return fits(imported, p) })
}

// listAll lists what there is natively and, behind it, in a page.
func listAll(t *testing.T) []pkg {
	return append(list(t, nil, "./..."), list(t, []string{"GOOS=js", "GOARCH=wasm"}, "./...")...)
}

func TestImportDirections(t *testing.T) {
	for _, p := range listAll(t) {
		path, below := strings.CutPrefix(p.ImportPath, module)
		if !below {
			continue // the folder of this test
		}
		if !assert.NotEmpty(t, rule(path), "%s is a new package: say here what it may import", path) {
			continue
		}
		for _, in := range p.Imports {
			if in, ours := strings.CutPrefix(in, module); ours {
				assert.True(t, permitted(path, in), "%s imports %s, against the direction in which data flows", path, in)
			}
		}
	}
}

func TestOnlyCommandsNameBackends(t *testing.T) {
	for importer := range allowed {
		for _, b := range backends {
			path := strings.TrimSuffix(importer, "/...")
			if path != b && path != "cmd" && path != "examples/browser" && path != "internal/testing" {
				assert.False(t, permitted(path, b), "%s may import %s", importer, b)
			}
		}
	}
}

func TestRulesRefuse(t *testing.T) {
	assert.False(t, permitted("graph/op", "shaders"))
	assert.False(t, permitted("optim", "internal/testing/tier"))
	assert.False(t, permitted("pipeline/train", "runtime/webgpu"))
	assert.False(t, permitted("shaders/spirv", "runtime/device"))
	assert.True(t, permitted("pipeline/checkpoint/safetensors", "internal/atomicfile"))
	assert.Empty(t, rule("runtime/new"))
}

func TestTheCoreUsesNoCgo(t *testing.T) {
	for _, p := range list(t, []string{"CGO_ENABLED=1"}, append([]string{"-deps"}, portable...)...) {
		if !p.Standard {
			assert.Empty(t, p.CgoFiles, "%s uses cgo", p.ImportPath)
		}
	}
}

func TestTheCoreIsPortable(t *testing.T) {
	tier.Rest(t)
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-tags=grpcnotrace"}, portable...)...)
	cmd.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "GOOS=js: %s", out)
}

// The build for js uses the same compiler. For wasip1 it can refuse only types, and functions without a body. Checking
// them takes a sixth of the time of a build.
func TestTheCoreIsPortableToWASI(t *testing.T) {
	tier.Rest(t)
	const mode = packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedFiles | packages.NeedCompiledGoFiles |
		packages.NeedModule | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax
	ps, err := packages.Load(&packages.Config{Mode: mode, Env: append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")}, portable...)
	require.NoError(t, err)
	checked := map[string]bool{}
	packages.Visit(ps, nil, func(p *packages.Package) {
		checked[p.PkgPath] = true
		assert.Empty(t, p.Errors, p.PkgPath)
		if p.Module == nil || len(p.OtherFiles) > 0 { // the standard library, or there is assembly
			return
		}
		for _, file := range p.Syntax {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Body == nil {
					assert.True(t, linked(file, f.Name.Name), "%s: %s has no body", p.PkgPath, f.Name)
				}
			}
		}
	})
	assert.True(t, checked["runtime"] && checked[module+"graph"] && checked["google.golang.org/grpc"])
}

// linked reports whether the file has a go:linkname directive for the function.
func linked(file *ast.File, name string) bool {
	return slices.ContainsFunc(file.Comments, func(c *ast.CommentGroup) bool {
		return slices.ContainsFunc(c.List, func(line *ast.Comment) bool { return strings.HasPrefix(line.Text, "//go:linkname "+name+" ") })
	})
}
