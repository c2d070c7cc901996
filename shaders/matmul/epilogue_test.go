package matmul

import (
	"fmt"
)

// of is the pass with another source.
func (p Pass) of(source string) Pass {
	if p.Epilogue != nil {
		p.Epilogue = func(Pass) Declarations { return Declarations{} }
	}
	p.Directives, p.Head, p.Code, p.Arrays = "", "", source, nil
	return p
}

// bias is an array of an epilogue.
var bias = Array{"bias", "f32"}

// epilogueOf is an epilogue in Source: statements, and the value of an expression.
func epilogueOf(c Element, statements, value string, arrays ...Array) func(Pass) Declarations {
	return func(Pass) Declarations {
		return Declarations{arrays, fmt.Sprintf("fn mm_epilogue(acc: f32, b: u32, i: u32, j: u32) -> %s {\n%s\nreturn %s;\n}\n", one(c), statements,
			value)}
	}
}

// biased is 2·acc + i + 100·b + bias[j].
func biased(p Pass) Declarations {
	return epilogueOf(F32, "let row = f32(i) + 100.0 * f32(b);", "2.0 * acc + row + bias[j]", bias)(p)
}
