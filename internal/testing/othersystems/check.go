package othersystems

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"
)

// Check type-checks packages and their tests as they are for a system and a processor, and applies analyzers to those
// packages of the module that have other files here. It compiles nothing, so that it needs neither the system's C
// compiler nor minutes: names of C are taken as they come. It returns the faults, and the number of packages of the
// module.
func Check(system, processor string, analyzers []*analysis.Analyzer, patterns ...string) (wrong []string, checked int, err error) {
	c := packages.Config{Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule,
		Tests: true, Env: append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=1")}
	roots, err := packages.Load(&c, patterns...)
	if err != nil {
		return nil, 0, err
	}
	l := loader{files: token.NewFileSet(), sizes: types.SizesFor("gc", processor), done: map[*packages.Package]bool{}}
	var own []*packages.Package
	for _, p := range roots {
		if strings.HasSuffix(p.PkgPath, ".test") { // the main program of its tests
			continue
		}
		l.check(p)
		own = append(own, p)
	}
	here := map[string][]string{} // files by the packages' identities
	found, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedFiles, Tests: true}, patterns...)
	if err != nil {
		return nil, 0, err
	}
	for _, p := range found {
		here[p.ID] = p.GoFiles
	}
	others := slices.DeleteFunc(slices.Clone(own), func(p *packages.Package) bool { return slices.Equal(p.GoFiles, here[p.ID]) })
	graph, err := checker.Analyze(analyzers, others, nil)
	if err != nil {
		return nil, 0, err
	}
	for _, action := range graph.Roots {
		if action.Err != nil {
			l.wrong = append(l.wrong, fmt.Sprintf("%s: %s: %v", action.Package.ID, action.Analyzer, action.Err))
		}
		for _, d := range action.Diagnostics {
			l.wrong = append(l.wrong, fmt.Sprintf("%s: %s: %s", l.files.Position(d.Pos), action.Analyzer, d.Message))
		}
	}
	return l.wrong, len(own), nil
}

// loader type-checks packages after those that they import.
type loader struct {
	files *token.FileSet
	sizes types.Sizes
	done  map[*packages.Package]bool
	wrong []string
}

func (l *loader) check(p *packages.Package) {
	if l.done[p] {
		return
	}
	l.done[p] = true
	for _, imported := range p.Imports {
		l.check(imported)
	}
	p.Fset, p.TypesSizes = l.files, l.sizes
	if p.PkgPath == "unsafe" {
		p.Types, p.TypesInfo = types.Unsafe, &types.Info{}
		return
	}
	own := p.Module != nil && p.Module.Main
	usesC := false
	report := func(err error) {
		if own && !(usesC && strings.Contains(err.Error(), "invalid type")) { // what follows from names of C
			l.wrong = append(l.wrong, err.Error())
		}
	}
	for _, path := range p.GoFiles {
		f, err := parser.ParseFile(l.files, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			report(err)
			continue
		}
		p.Syntax = append(p.Syntax, f)
		for _, s := range f.Imports {
			usesC = usesC || s.Path.Value == `"C"`
		}
	}
	p.TypesInfo = &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
		Uses: map[*ast.Ident]types.Object{}, Implicits: map[ast.Node]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Scopes: map[ast.Node]*types.Scope{},
		Instances: map[*ast.Ident]types.Instance{}, FileVersions: map[*ast.File]string{}}
	c := types.Config{Sizes: l.sizes, FakeImportC: usesC, IgnoreFuncBodies: !own, Error: report, Importer: importer(p.Imports)}
	if p.Module != nil && p.Module.GoVersion != "" {
		c.GoVersion = "go" + p.Module.GoVersion
	}
	p.Types, _ = c.Check(p.PkgPath, l.files, p.Syntax, p.TypesInfo)
	if !own {
		p.Syntax, p.TypesInfo = nil, &types.Info{} // a thousand packages
	}
}

// importer finds packages by the paths that a package imports them by.
type importer map[string]*packages.Package

func (i importer) Import(path string) (*types.Package, error) {
	if p := i[path]; p != nil && p.Types != nil {
		return p.Types, nil
	}
	return nil, fmt.Errorf("no package %s", path)
}
