package optim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// configs are the configs of all tables, by name.
func configs() map[string]interface{ Fields() []Field } {
	all := map[string]interface{ Fields() []Field }{"schedule": &Schedule{Name: ScheduleNames()[0]}}
	for _, k := range Optimizers() {
		all[k.Name] = k.New()
	}
	for _, k := range Corrections() {
		all["correction "+k.Name] = k.New()
	}
	return all
}

// Every exported field of a config is described by Fields once, with a default in range. Steps is the run's.
func TestFieldsDescribeTheWholeConfig(t *testing.T) {
	for name, c := range configs() {
		var names []string
		pointers := map[uintptr]bool{}
		for _, f := range c.Fields() {
			assert.NotEmpty(t, f.About, "%s: %s", name, f.Name)
			assert.NotContains(t, names, f.Name, name)
			assert.NotEmpty(t, f.Expected(), "%s: %s", name, f.Name)
			assert.NoError(t, f.Check(), name)
			if _, text := f.Value.(*string); text {
				assert.NotEmpty(t, f.Choices, "%s: %s", name, f.Name)
			} else if _, flag := f.Value.(*bool); !flag {
				assert.NotEqual(t, Range{}, f.Range, "%s: %s", name, f.Name)
			}
			names = append(names, f.Name)
			pointers[reflect.ValueOf(f.Value).Pointer()] = true
		}
		eachField(reflect.ValueOf(c).Elem(), func(field string, v reflect.Value) {
			if name != "schedule" || field != "Steps" {
				assert.True(t, pointers[v.Addr().Pointer()], "%s: Fields lacks %s", name, field)
			}
		})
	}
}

// eachField visits the exported fields of a struct, and those of structs in it.
func eachField(v reflect.Value, visit func(name string, v reflect.Value)) {
	for i := range v.NumField() {
		switch f := v.Type().Field(i); {
		case f.Type.Kind() == reflect.Struct:
			eachField(v.Field(i), visit)
		case f.IsExported():
			visit(f.Name, v.Field(i))
		}
	}
}

func TestFieldsRefuse(t *testing.T) {
	for name, c := range configs() {
		for i, f := range c.Fields() {
			switch v := f.Value.(type) {
			case *bool:
				continue
			case *int:
				*v = -1
			case *float64:
				*v = -1
			case *string:
				*v = "nothing"
			case *[2]float64:
				v[1] = -1
			case *[3]float64:
				v[2] = -1
			default:
				t.Errorf("%s: %s has the type %T", name, f.Name, v)
			}
			assert.ErrorContains(t, c.Fields()[i].Check(), f.Name+": found ", name)
		}
	}
}

// Names are unique, each row has a type of its own, and what the tables make is found by name.
func TestTables(t *testing.T) {
	for _, names := range [][]string{OptimizerNames(), CorrectionNames(), ScheduleNames()} {
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), len(names))
	}
	for _, k := range Optimizers() {
		a, err := NewAlgorithm(k.Name)
		require.NoError(t, err)
		assert.Equal(t, k.Name, Name(a))
		assert.Positive(t, a.LearningRate())
		SetLearningRate(a, 0.25)
		assert.Equal(t, 0.25, a.LearningRate())
		assert.NotEmpty(t, k.About)
		assert.NotEmpty(t, k.Takes)
		_, tested := testConfigs()[k.Name]
		assert.True(t, tested, "%s: testConfigs lacks it", k.Name)
	}
	for _, k := range Corrections() {
		assert.Equal(t, k.Name, CorrectionName(k.New()))
		assert.NotEmpty(t, k.About)
	}
	_, err := NewAlgorithm("adam")
	assert.EqualError(t, err, `name: found "adam", expected one of `+strings.Join(OptimizerNames(), ", "))
}

// Documents that list optimizers, corrections or schedules list all of them.
func TestDocumentsListTheTables(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../" + path)
		require.NoError(t, err)
		return string(text)
	}
	readme, rationale := read("README.md"), read("docs/RATIONALE.md")
	for _, name := range slices.Concat(OptimizerNames(), CorrectionNames()) {
		assert.Regexp(t, `\b`+name+`\b`, readme, "README.md")
	}
	for _, name := range OptimizerNames() {
		if name != "sgd" && name != "adamw" { // they need no note on their source
			assert.Contains(t, rationale, "| `"+name+"` |", "docs/RATIONALE.md")
		}
	}
}

// Every type of the package that is an Algorithm or a Correction is in its table.
func TestTablesAreComplete(t *testing.T) {
	inTables := map[string]bool{"NoCorrection": true}
	for _, k := range Optimizers() {
		inTables[reflect.TypeOf(k.New()).Elem().Name()] = true
	}
	for _, k := range Corrections() {
		inTables[reflect.TypeOf(k.New()).Elem().Name()] = true
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "Fields" {
				name := f.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name
				assert.True(t, inTables[name] || name == "Schedule", "%s: %s is in no table", file, name)
			}
		}
	}
}
