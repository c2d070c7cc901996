package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What go test -json writes for a package that passes and omits cases, one that fails, one without tests, and one that
// does not build.
const events = `{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestTable"}
{"Action":"output","Package":"a","Test":"TestTable","Output":"=== RUN   TestTable\n"}
{"Action":"attr","Package":"a","Test":"TestTable","Key":"cases","Value":"2 of 9"}
{"Action":"run","Package":"a","Test":"TestTable/x"}
{"Action":"pass","Package":"a","Test":"TestTable/x","Elapsed":0}
{"Action":"pass","Package":"a","Test":"TestTable","Elapsed":0}
{"Action":"output","Package":"a","Test":"TestLong","Output":"    a_test.go:9: left to make test-all\n"}
{"Action":"output","Package":"a","Test":"TestLong","Output":"--- SKIP: TestLong (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"TestLong","Elapsed":0}
{"Action":"output","Package":"a","Test":"TestRust","Output":"    a_test.go:12: no cargo\n"}
{"Action":"skip","Package":"a","Test":"TestRust","Elapsed":0}
{"Action":"output","Package":"a","Test":"TestEmpty","Output":"    a_test.go:15: left to make test-all\n"}
{"Action":"attr","Package":"a","Test":"TestEmpty","Key":"cases","Value":"0 of 3"}
{"Action":"skip","Package":"a","Test":"TestEmpty","Elapsed":0}
{"Action":"attr","Package":"a","Test":"TestClang","Key":"cases","Value":"2 of 2"}
{"Action":"output","Package":"a","Test":"TestClang","Output":"    a_test.go:17: no clang\n"}
{"Action":"skip","Package":"a","Test":"TestClang","Elapsed":0}
{"Action":"output","Package":"a","Test":"TestTools/zig","Output":"        a_test.go:19: no zig\n"}
{"Action":"skip","Package":"a","Test":"TestTools/zig","Elapsed":0}
{"Action":"pass","Package":"a","Test":"TestTools/c","Elapsed":0}
{"Action":"pass","Package":"a","Test":"TestTools","Elapsed":0}
{"Action":"output","Package":"a","Output":"PASS\n"}
{"Action":"output","Package":"a","Output":"ok  \ta\t(cached)\n"}
{"Action":"pass","Package":"a","Elapsed":0}
{"Action":"output","Package":"b","Test":"TestGood","Output":"good\n"}
{"Action":"pass","Package":"b","Test":"TestGood","Elapsed":0}
{"Action":"output","Package":"b","Test":"TestBad/sub","Output":"found 1, expected 2\n"}
{"Action":"fail","Package":"b","Test":"TestBad/sub","Elapsed":0}
{"Action":"fail","Package":"b","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"b","Output":"FAIL\tb\t0.1s\n"}
{"Action":"fail","Package":"b","Elapsed":0.1}
{"Action":"output","Package":"c","Output":"?   \tc\t[no test files]\n"}
{"Action":"skip","Package":"c","Elapsed":0}
{"ImportPath":"d","Action":"build-output","Output":"d.go:1:1: syntax error\n"}
{"ImportPath":"d","Action":"build-fail"}
`

func TestRead(t *testing.T) {
	var out strings.Builder
	c := newCounts()
	failed, err := read(strings.NewReader(events), &out, c)
	require.NoError(t, err)
	assert.Equal(t, "ok  \ta\t(cached)\nfound 1, expected 2\nFAIL\tb\t0.1s\nd.go:1:1: syntax error\n", out.String())
	assert.True(t, failed)

	out.Reset()
	c.print(&out, "make test-all")
	assert.Equal(t, "ran 5 of 20 cases; make test-all runs the rest\nnot run: 1: no cargo\nnot run: 2: no clang\nnot run: 1: no zig\n",
		out.String())
	out.Reset()
	c.print(&out, "")
	assert.Equal(t, "ran 5 of 20 cases\nnot run: 11: left to make test-all\nnot run: 1: no cargo\nnot run: 2: no clang\nnot run: 1: no zig\n", out.String())
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ events, err string }{
		{`{"Action":"start","Package":"a"}`, "go test ended before a"},
		{`{"Action":"attr","Package":"a","Test":"T","Key":"cases","Value":"9 of 2"}`, `T of a: found cases "9 of 2", expected two counts`},
	} {
		_, err := read(strings.NewReader(c.events), &strings.Builder{}, newCounts())
		assert.EqualError(t, err, c.err)
	}
}

// A run of the core, and then one of the tests with cases left: both count, and the first is of no use once sources
// change.
func TestRest(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.Mkdir("build", 0o777))
	require.NoError(t, os.WriteFile("a.go", []byte("package a"), 0o666))
	core := `{"Action":"attr","Package":"m/a","Test":"TestTable","Key":"cases","Value":"2 of 9"}
{"Action":"pass","Package":"m/a","Test":"TestTable"}
{"Action":"pass","Package":"m/a","Test":"TestWhole"}
{"Action":"pass","Package":"m/a"}
{"Action":"pass","Package":"m/b","Test":"TestWhole"}
{"Action":"pass","Package":"m/b"}
{"Action":"skip","Package":"m/c","Test":"TestLong"}
{"Action":"pass","Package":"m/c"}
`
	var out strings.Builder
	require.NoError(t, tally(strings.NewReader(core), &out, "make test-all", "build/kept", ""))
	assert.Equal(t, "ran 4 of 12 cases; make test-all runs the rest\nnot run: 1: \n", out.String())

	out.Reset()
	require.NoError(t, printLeft(&out, "build/kept"))
	assert.Equal(t, "-run=^(TestLong|TestTable)$ m/a m/c\n", out.String())

	rest := `{"Action":"attr","Package":"m/a","Test":"TestTable","Key":"cases","Value":"8 of 9"}
{"Action":"pass","Package":"m/a","Test":"TestTable"}
{"Action":"pass","Package":"m/a"}
{"Action":"pass","Package":"m/c","Test":"TestLong"}
{"Action":"pass","Package":"m/c"}
`
	out.Reset()
	require.NoError(t, tally(strings.NewReader(rest), &out, "", "", "build/kept"))
	assert.Equal(t, "ran 11 of 12 cases\nnot run: 1: left to make test-all\n", out.String())

	require.NoError(t, os.WriteFile("b.txt", nil, 0o666))
	require.ErrorContains(t, printLeft(&out, "build/kept"), "build/kept counts the tests of other sources: run make test again")

	failing := `{"Action":"fail","Package":"m/a"}`
	require.Error(t, tally(strings.NewReader(failing), &out, "", "build/kept", ""))
	require.ErrorContains(t, printLeft(&out, "build/kept"), "run make test first")
}
