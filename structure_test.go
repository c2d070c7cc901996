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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/tools/go/packages"
)

const module = "github.com/gpupipe/gpupipe/"

// allowed says which packages of the project a package may import: data flows one way. "a/..." is a and all below it;
// the longest key that fits a package decides. Tests may import more.
var allowed = map[string]string{
	"graph":                        "graph/target",
	"graph/target":                 "",
	"graph/op":                     "graph graph/target",
	"graph/eval":                   "graph",
	"graph/autodiff":               "graph graph/op",
	"graph/fuse":                   "graph",
	"graph/plan":                   "graph graph/fuse graph/target",
	"graph/split":                  "graph",
	"graph/model":                  "graph graph/op graph/autodiff graph/split internal/...",
	"shaders/...":                  "graph graph/fuse graph/target shaders/...",
	"shaders/spirv":                "internal/...",
	"runtime/device/...":           "graph/target runtime/device runtime/device/base runtime/device/host",
	"runtime/webgpu/...":           "graph/target runtime/device runtime/device/base runtime/device/host",
	"runtime/vulkan/...":           "graph/target runtime/device runtime/device/base runtime/device/host shaders/spirv internal/...",
	"runtime/cpu":                  "graph/target runtime/device runtime/device/base runtime/device/host runtime/cpu/cc shaders/native internal/...",
	"runtime/cpu/cc":               "internal/...",
	"runtime/cpu/crosstest":        "", // tests only
	"runtime/null/...":             "graph/target runtime/device runtime/device/base",
	"runtime/webgpujs/...":         "graph/target runtime/device runtime/device/base",
	"runtime/sidecar":              "graph/target runtime/device runtime/device/base",
	"runtime/tune":                 "graph graph/fuse shaders runtime/device internal/...",
	"runtime/exec":                 "graph/target graph graph/fuse graph/plan shaders runtime/device runtime/tune internal/units",
	"runtime/devicetest":           "graph/target graph graph/op graph/eval graph/autodiff shaders runtime/device runtime/exec internal/tier",
	"runtime/bench":                "graph/target graph graph/op graph/autodiff graph/model optim shaders runtime/device runtime/exec runtime/tune runtime/profile internal/...",
	"runtime/report":               "internal/...",
	"runtime/profile":              "runtime/device runtime/exec internal/...",
	"optim/...":                    "graph graph/op internal/...",
	"pipeline/schedule":            "",
	"pipeline/schedule/draw":       "pipeline/schedule internal/...",
	"pipeline/partition":           "pipeline/schedule pipeline/wire internal/...",
	"pipeline/measure":             "graph graph/model graph/target optim runtime/device runtime/device/host runtime/exec runtime/tune pipeline/partition internal/...",
	"pipeline/stage":               "pipeline/schedule",
	"pipeline/engine":              "graph graph/model optim runtime/device runtime/device/host runtime/exec pipeline/schedule pipeline/stage pipeline/trace pipeline/wire internal/...",
	"pipeline/wire":                "",
	"pipeline/bench":               "graph/model optim runtime/device runtime/exec pipeline/engine pipeline/schedule pipeline/trace internal/...",
	"pipeline/data/...":            "pipeline/data/... pipeline/tokenizer pipeline/checkpoint/safetensors internal/...",
	"pipeline/gguf":                "graph internal/...",
	"pipeline/pretrained":          "pipeline/gguf pipeline/checkpoint/safetensors graph/model internal/...",
	"pipeline/tokenizer/...":       "pipeline/tokenizer/... pipeline/gguf internal/...",
	"pipeline/checkpoint/...":      "graph pipeline/checkpoint/... internal/...",
	"pipeline/trace":               "internal/...",
	"pipeline/metrics":             "internal/...",
	"pipeline/watch":               "pipeline/metrics pipeline/trace internal/...",
	"pipeline/cluster/identity":    "internal/...",
	"pipeline/cluster/control":     "pipeline/cluster/identity internal/...",
	"pipeline/cluster/transport":   "",
	"pipeline/cluster/protocol":    "internal/... pipeline/trace runtime/device graph/model runtime/exec pipeline/checkpoint/safetensors pipeline/engine pipeline/partition pipeline/stage",
	"pipeline/cluster/member":      "pipeline/trace pipeline/cluster/identity pipeline/cluster/control optim runtime/device runtime/exec pipeline/cluster/protocol pipeline/cluster/transport pipeline/config pipeline/data pipeline/engine pipeline/hooks pipeline/layout pipeline/measure pipeline/partition pipeline/stage",
	"pipeline/cluster/tab":         "pipeline/cluster/protocol",
	"pipeline/cluster/coordinator": "pipeline/cluster/tab pipeline/trace pipeline/cluster/member pipeline/cluster/identity pipeline/cluster/control pipeline/config graph/model optim runtime/device runtime/exec pipeline/cluster/protocol pipeline/cluster/transport pipeline/engine pipeline/layout pipeline/metrics pipeline/partition pipeline/train pipeline/weights internal/...",
	"pipeline/config":              "pipeline/pretrained pipeline/gguf graph graph/model optim pipeline/schedule pipeline/partition pipeline/tokenizer pipeline/wire wasm/hook internal/...",
	"pipeline/hooks":               "graph graph/op graph/model optim pipeline/config pipeline/data/... pipeline/checkpoint/... pipeline/engine pipeline/trace wasm wasm/... internal/...",
	"pipeline/layout":              "graph graph/model optim runtime/device runtime/device/host runtime/exec runtime/tune pipeline/config pipeline/engine pipeline/measure pipeline/partition pipeline/schedule pipeline/wire internal/...",
	"pipeline/weights":             "pipeline/pretrained pipeline/gguf graph graph/model optim runtime/exec pipeline/checkpoint/... pipeline/engine internal/...",
	"pipeline/inference":           "pipeline/pretrained pipeline/gguf graph graph/model runtime/device runtime/exec pipeline/checkpoint/... pipeline/config pipeline/data pipeline/engine pipeline/hooks pipeline/layout pipeline/tasks pipeline/tokenizer pipeline/weights wasm/hook internal/...",
	"pipeline/tasks":               "",
	"pipeline/serve":               "pipeline/inference pipeline/tokenizer internal/...",
	"pipeline/train":               "graph graph/model runtime/device runtime/exec runtime/tune runtime/profile optim pipeline/... wasm/... internal/...",
	"pipeline/train/cputest":       "", // this and the next four: tests only
	"pipeline/train/equaltest":     "",
	"pipeline/train/faulttest":     "",
	"pipeline/train/goldentest":    "",
	"pipeline/train/hooktest":      "",
	"pipeline/verify":              "runtime/device pipeline/wire pipeline/config pipeline/layout pipeline/schedule pipeline/train pipeline/checkpoint/... pipeline/metrics internal/...",
	"pipeline/runs":                "pipeline/config pipeline/layout pipeline/train pipeline/metrics internal/...",
	"pipeline/study":               "optim pipeline/config pipeline/runs pipeline/metrics pipeline/wire internal/...",
	"pipeline/sweep":               "optim pipeline/config pipeline/layout pipeline/runs pipeline/train pipeline/metrics internal/...",
	"wasm/...":                     "graph graph/op graph/autodiff graph/model wasm/... internal/...",
	"examples/...":                 "graph/... runtime/device runtime/exec optim pipeline/schedule pipeline/engine wasm/... examples/... internal/...",
	"examples/browser":             "runtime/device runtime/webgpujs wasm wasm/hook wasm/page examples/browser/trainer",
	"internal/...":                 "internal/...",
	"internal/kerneldump":          "runtime/device",
	"internal/traintest":           "graph graph/eval runtime/device runtime/exec runtime/null pipeline/checkpoint/... pipeline/config pipeline/engine pipeline/metrics internal/wasmtest",
	"internal/runtest":             "pipeline/config pipeline/metrics pipeline/train internal/traintest internal/usererror",
	"internal/testdevice":          "graph/target runtime/device runtime/cpu runtime/webgpu",
	"internal/gputest":             "internal/testdevice runtime/device runtime/vulkan runtime/webgpu",
	"internal/cooptest":            "graph graph/target shaders/...",
	"cmd/...":                      "graph/... shaders/... runtime/... pipeline/... optim/... wasm/... cmd/... internal/...",
}

// testHelpers may be imported by tests and by each other only.
var testHelpers = []string{"internal/slowlink", "internal/lossylink", "internal/traintest", "internal/runtest", "internal/gputest", "internal/testdevice", "internal/cooptest", "internal/columntest", "internal/usertest"}

// backends may be named by commands and test helpers only.
var backends = []string{"runtime/webgpu", "runtime/vulkan", "runtime/cpu", "runtime/null", "runtime/webgpujs", "runtime/sidecar"}

// portable packages use no cgo and build for WebAssembly.
var portable = []string{"./graph/...", "./shaders/...", "./optim/...", "./runtime/device/...", "./runtime/null", "./runtime/exec", "./runtime/tune",
	"./runtime/devicetest", "./pipeline/schedule/...", "./pipeline/partition", "./pipeline/stage", "./pipeline/trace", "./pipeline/wire", "./pipeline/engine", "./pipeline/gguf", "./pipeline/tokenizer/...",
	"./pipeline/checkpoint/...", "./pipeline/cluster/transport", "./pipeline/cluster/identity",
	"./pipeline/cluster/control", "./internal/strictyaml", "./wasm/graphhook", "./wasm/meter", "./wasm"}

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
				assert.True(t, !slices.Contains(testHelpers, in) || slices.Contains(testHelpers, path), "%s imports %s, which is for tests", path, in)
			}
		}
	}
}

func TestOnlyCommandsNameBackends(t *testing.T) {
	for importer := range allowed {
		for _, b := range backends {
			if !strings.HasPrefix(importer, "cmd/") && importer != "examples/browser" && !slices.Contains(testHelpers, importer) {
				assert.False(t, permitted(strings.TrimSuffix(importer, "/..."), b), "%s may import %s", importer, b)
			}
		}
	}
}

func TestRulesRefuse(t *testing.T) {
	assert.False(t, permitted("graph/op", "graph/autodiff"))
	assert.False(t, permitted("graph", "graph/op"))
	assert.False(t, permitted("pipeline/train", "runtime/webgpu"))
	assert.False(t, permitted("shaders/spirv", "runtime/device"))
	assert.True(t, permitted("pipeline/checkpoint/safetensors", "internal/atomicfile"))
	assert.Empty(t, rule("runtime/new"))
}

func TestTheCoreIsPortable(t *testing.T) {
	for _, p := range list(t, []string{"CGO_ENABLED=1"}, append([]string{"-deps"}, portable...)...) {
		if !p.Standard {
			assert.Empty(t, p.CgoFiles, "%s uses cgo", p.ImportPath)
		}
	}
	cmd := exec.Command("go", append([]string{"build", "-trimpath", "-tags=grpcnotrace"}, portable...)...)
	cmd.Env = append(os.Environ(), "GOOS=js", "GOARCH=wasm")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "GOOS=js: %s", out)
}

// The build for js uses the same compiler. For wasip1 it can refuse only types, and functions without a body. Checking
// them takes a sixth of the time of a build.
func TestTheCoreIsPortableToWASI(t *testing.T) {
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
