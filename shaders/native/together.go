package native

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Beside returns the text of a kernel that may follow Prelude, or other such texts, in one translation unit: a macro
// renames each name of its file scope, and its own macros end with it. It is "" for a source that must be alone.
func Beside(source, file string) string {
	macros := macroNames(source)
	for _, m := range macros {
		if preludeMacros()[m] {
			return ""
		}
	}
	if alone.MatchString(source) {
		return ""
	}
	_, symbol := Unit(source, file)
	var b strings.Builder
	names := fileScope(source, macros)
	for _, n := range names {
		fmt.Fprintf(&b, "#define %s %s_%s\n", n, n, symbol)
	}
	b.WriteString(definition(source, file, symbol))
	for _, n := range append(append(names, macros...), "KERNEL") {
		fmt.Fprintf(&b, "\n#undef %s", n)
	}
	return b.String() + "\n"
}

var (
	alone     = regexp.MustCompile(`#\s*pragma\s+GCC\s+(optimize|target|push_options)`) // would apply to the kernels behind, too
	defines   = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*(?:define|undef)[ \t]+(\w+)`)
	comments  = regexp.MustCompile(`//.*|(?s:/\*.*?\*/)`)
	word      = regexp.MustCompile(`^(?:[A-Za-z]|_[^_])`) // others are the compiler's, numbers and strings
	directive = regexp.MustCompile(`(?m)^[ \t]*#(.*\\\n)*.*`)
	tokens    = regexp.MustCompile(`"(?:\\.|[^"\\])*"|\d\w*|[A-Za-z_]\w*|[(){}]`)

	preludeMacros = sync.OnceValue(func() map[string]bool { return set(macroNames(prelude)) })
)

// fixed returns what keeps its name: words of the prelude, of C, and of directives. Two kernels that declare such a name do
// not compile in one unit.
var fixed = sync.OnceValue(func() map[string]bool {
	return set(append(tokens.FindAllString(comments.ReplaceAllString(prelude, ""), -1), strings.Fields(`
		auto break case char const continue default do double else
		enum extern float for goto if inline int long register restrict return short signed sizeof static struct switch typedef union
		unsigned void volatile while true false asm KERNEL omp simd reduction GCC unroll noinline`)...))
})

func set(names []string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// macroNames lists the macros that a text defines or undefines.
func macroNames(text string) (names []string) {
	for _, m := range defines.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names
}

// fileScope lists the names that a source declares outside of functions. A macro outside of functions declares what its
// arguments name.
func fileScope(source string, macros []string) (names []string) {
	text := directive.ReplaceAllString(comments.ReplaceAllString(source, ""), "")
	isMacro, keeps, seen := set(macros), fixed(), map[string]bool{}
	braces, parentheses := 0, 0
	last, call := "", false // the token before; within the arguments of a macro
	for _, t := range tokens.FindAllString(text, -1) {
		switch t {
		case "{":
			braces++
		case "}":
			braces--
		case "(":
			if parentheses++; parentheses == 1 {
				call = braces == 0 && isMacro[last]
			}
		case ")":
			parentheses--
		default:
			declares := braces == 0 && (parentheses == 0 || call)
			if declares && word.MatchString(t) && !isMacro[t] && !keeps[t] && !seen[t] {
				seen[t] = true
				names = append(names, t)
			}
		}
		last = t
	}
	return names
}
