package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What go test -json writes for a package that passes with cases left out, one that fails, one without tests, and one that
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
	sum, err := read(strings.NewReader(events), &out)
	require.NoError(t, err)
	assert.Equal(t, "ok  \ta\t(cached)\nfound 1, expected 2\nFAIL\tb\t0.1s\nd.go:1:1: syntax error\n", out.String())
	assert.True(t, sum.failed)

	out.Reset()
	sum.print(&out, "make test-all")
	assert.Equal(t, "ran 4 of 13 cases; make test-all runs the rest\nnot run: 1: no cargo\n", out.String())
	out.Reset()
	sum.print(&out, "")
	assert.Equal(t, "ran 4 of 13 cases\nnot run: 8: left to make test-all\nnot run: 1: no cargo\n", out.String())
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ events, err string }{
		{`{"Action":"start","Package":"a"}`, "go test ended before a"},
		{`{"Action":"attr","Package":"a","Test":"T","Key":"cases","Value":"9 of 2"}`, `T of a: found cases "9 of 2", expected two counts`},
	} {
		_, err := read(strings.NewReader(c.events), &strings.Builder{})
		assert.EqualError(t, err, c.err)
	}
}
