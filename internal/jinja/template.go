package jinja

import (
	"strings"
	"time"
)

// Template is a parsed template, which can be rendered any number of times, also at once.
type Template struct{ body []statement }

// Parse reads a template.
func Parse(source string) (t *Template, err error) {
	defer caught(&err)
	p := &parser{tokens: lex(source), used: map[string]bool{}}
	body, _ := p.body()
	return &Template{body}, nil
}

// Render returns the text of a template with variables. The template sees now as the time.
func (t *Template) Render(variables *Dict, now time.Time) (text string, err error) {
	defer caught(&err)
	m := &machine{work: maxWork, now: now, filters: filters}
	context := &frame{m: m, vars: map[string]any{}}
	for i, k := range variables.keys {
		context.vars[m.str(k)] = variables.values[i]
	}
	root := context.inner()
	root.out = &strings.Builder{}
	if root.run(t.body) != none {
		fail("break or continue outside of a loop")
	}
	return root.out.String(), nil
}
