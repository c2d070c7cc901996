// Package boundscheck instruments kernels for tests, so that they report indices outside their arrays. Kernels that
// promise in-bounds indices are not checked by devices.
package boundscheck

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	bound = regexp.MustCompile(`var<storage[^>]*> (\w+): array<`)
	own   = regexp.MustCompile(`var(?:<\w+>)? (\w+)(?:: | = )array<[^;]*, ([^<>;]+)>`)
	word  = regexp.MustCompile(`\w+`)
)

// Indices returns the kernel with one more binding, whose word 0 becomes 1 if an index leaves its array.
func Indices(wgsl string, binding int) string {
	sizes := map[string]string{}
	for _, m := range bound.FindAllStringSubmatch(wgsl, -1) {
		sizes[m[1]] = "arrayLength(&" + m[1] + ")"
	}
	for _, m := range own.FindAllStringSubmatch(wgsl, -1) {
		sizes[m[1]] = "u32(" + m[2] + ")"
	}
	i := strings.LastIndex(wgsl, "enable ") // directives come first
	if i >= 0 {
		i += strings.Index(wgsl[i:], "\n")
	}
	return wgsl[:i+1] + fmt.Sprintf("@group(0) @binding(%d) var<storage, read_write> outside: array<u32>;\n", binding) +
		"fn inside(i: u32, n: u32) -> u32 { if (i >= n) { outside[0] = 1u; return 0u; } return i; }\n" + check(wgsl[i+1:], sizes)
}

// check wraps every index into an array of known size in a call of inside.
func check(text string, sizes map[string]string) string {
	var out strings.Builder
	for {
		m := word.FindStringIndex(text)
		if m == nil {
			return out.String() + text
		}
		name := text[m[0]:m[1]]
		out.WriteString(text[:m[1]])
		text = text[m[1]:]
		if sizes[name] == "" || !strings.HasPrefix(text, "[") {
			continue
		}
		end := 1
		for depth := 1; depth > 0; end++ {
			depth += map[byte]int{'[': 1, ']': -1}[text[end]]
		}
		fmt.Fprintf(&out, "[inside(u32(%s), %s)]", check(text[1:end-1], sizes), sizes[name])
		text = text[end:]
	}
}
