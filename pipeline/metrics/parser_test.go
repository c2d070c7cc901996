package metrics

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Parser reads every line as Parse does.
func TestParserAgreesWithParse(t *testing.T) {
	var p Parser
	for _, line := range []string{`{"step":1,"tokens":2048,"loss":5.5}`, `{"step":3,"loss":"NaN","grad_norm":"-Infinity"}`,
		`{"loss":1,"step":2}`,
		`{"step":1,"a\"b":2}`, `{"step":1,"é":2}`, `{"step":1, "loss": 2}`, `{"step":1,"nested":{"loss":3},"list":[1]}`,
		`{"step":1,"text":"x,}"}`,
		`{"step":1e3,"loss":-1e-9}`, `{"step":1.5}`, `{"step":"1"}`, `{"loss":1}`, `{"step":1,"loss":NaN}`, `{"step":1,"loss":Infinity}`,
		`{"step":1,"loss":01}`,
		`{"step":1,"loss":0x1p3}`, `{"step":1,"loss":1_0}`, `{"step":1,"loss":.5}`, `{"step":1,"loss":1e999}`, `{"step":1}x`,
		`{"step":1,}`, `{}`, ``, `[1]`, `{"step":1`, `{"step":-1}`,
		`{"step":1,"loss":null}`, `{"step":1,"loss":true}`, `{"step":9007199254740993}`, `{"step":1,"loss":+1}`, `{"step":1,"loss":1.}`,
		`{"step":1,"loss":1e}`, `{"step":1,"loss":--1}`} {
		agree(t, &p, []byte(line))
	}
}

func agree(t *testing.T, p *Parser, line []byte) {
	t.Helper()
	want, wantErr := Parse(line)
	step, values, err := p.Parse(line)
	require.Equal(t, wantErr == nil, err == nil, "%s: %v, %v", line, wantErr, err)
	if err != nil {
		return
	}
	got := Record{Step: int(step), Values: map[string]float64{}}
	for _, v := range values {
		got.Values[string(v.Name)] = v.Value
	}
	assert.Equal(t, fmt.Sprint(want), fmt.Sprint(got), "%s", line)
}

func FuzzParser(f *testing.F) {
	f.Add([]byte(`{"step":1,"loss":5.5,"grad_norm":"NaN"}`))
	f.Fuzz(func(t *testing.T, line []byte) { agree(t, &Parser{}, line) })
}
