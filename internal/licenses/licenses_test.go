package licenses

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge,
publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR
ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH
THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

func TestClassify(t *testing.T) {
	m := Module{Path: "example.org/m", Dir: t.TempDir()}
	write := func(name, text string) {
		path := filepath.Join(m.Dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	_, err := m.Classify()
	require.EqualError(t, err, "example.org/m: no license is recognized in 0 license files in "+m.Dir)
	write("README", mit)
	write("LICENSE", "You may look at this.")
	_, err = m.Classify()
	require.ErrorContains(t, err, "in 1 license files")
	write("COPYING", mit)
	write("licenses/LICENSE-APACHE", `Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in
compliance with the License. You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0
`)
	ids, err := m.Classify()
	require.NoError(t, err)
	assert.Equal(t, []string{"Apache-2.0", "MIT"}, ids)
}

func TestProblems(t *testing.T) {
	notice := ParseNotice(`Program
Copyright 2026 its authors

example.org/mit         MIT                  Ann
example.org/both        MIT AND Apache-2.0   Ann  and Bob
example.org/choice      FTL OR GPL-2.0       Ann

See example.org/other for more.
wasm/example.wasm       GPL-3.0              Ann
`)
	assert.Equal(t, map[string]string{"example.org/mit": "MIT", "example.org/both": "MIT AND Apache-2.0",
		"example.org/choice": "FTL OR GPL-2.0"}, notice)
	found := func() map[string][]string {
		return map[string][]string{"example.org/mit": {"MIT"}, "example.org/both": {"Apache-2.0", "MIT"},
			"example.org/choice": {"FTL", "GPL-2.0"}}
	}
	assert.Empty(t, Problems(found(), notice))

	with := found()
	with["example.org/new"] = []string{"MIT"}
	assert.Equal(t, []string{"example.org/new (MIT) is linked into the program but not listed: add a line with its license and copyright holder"},
		Problems(with, notice))

	with = found()
	with["example.org/mit"] = []string{"AGPL-3.0"}
	assert.Equal(t, []string{`example.org/mit is listed as "MIT", but its license files hold AGPL-3.0`}, Problems(with, notice))
	notice["example.org/mit"] = "AGPL-3.0"
	problems := Problems(with, notice)
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0], `license "AGPL-3.0" is not compatible`)

	with = found()
	delete(with, "example.org/choice")
	notice["example.org/mit"] = "MIT"
	assert.Equal(t, []string{"example.org/choice is listed but not linked into the program: remove its line"}, Problems(with, notice))
}

func TestExpressions(t *testing.T) {
	for expression, want := range map[string]bool{"MIT": true, "GPL-2.0": false, "FTL OR GPL-2.0": true, "MIT AND GPL-2.0": false,
		"GPL-2.0 OR MIT AND Apache-2.0": true, "GPL-2.0 AND MIT OR AGPL-3.0": false, "": false} {
		assert.Equal(t, want, allowed(expression), expression)
	}
}
