package native

import (
	"fmt"
	"strconv"
	"strings"
)

// Source is a kernel in C, taken apart into what is compiled once for all sizes and the sizes.
//
// A line of the text
//
//	//size NAME value
//
// makes NAME an element of the kernel's parameter sizes. The value is a number, or a set of arguments, such as
// "args[2] args[4]", as a number with these bits. Behind a line //store is the C of a function that the kernel calls by
// its parameter store. Many kernels share such functions, which differ from kernel to kernel otherwise.
type Source struct {
	Kernel string // defines the function by KERNEL
	Store  string // defines the function by STORE; "": the kernel's store is NULL
	Sizes  []uint64
}

const (
	sizeLine  = "//size "
	storeLine = "//store\n"
)

// SizeLine returns the line of a text that declares a size.
func SizeLine(name string, value any) string { return fmt.Sprintf("%s%s %v\n", sizeLine, name, value) }

// WithStore returns the text of a kernel with that of its store.
func WithStore(kernel, store string) string { return kernel + storeLine + store }

// Parse takes a text apart.
func Parse(text string) (s Source, err error) {
	kernel, store, found := strings.Cut(text, "\n"+storeLine)
	if found {
		kernel += "\n"
	}
	if !strings.Contains(kernel, sizeLine) {
		return Source{Kernel: kernel, Store: store}, nil
	}
	var out strings.Builder
	for line := range strings.Lines(kernel) {
		declaration, ok := strings.CutPrefix(line, sizeLine)
		if !ok {
			out.WriteString(line)
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(declaration), " ")
		size, err := parseSize(value)
		if err != nil {
			return s, fmt.Errorf("size %s: %w", name, err)
		}
		fmt.Fprintf(&out, "#define %s sizes[%d]\n", name, len(s.Sizes))
		s.Sizes = append(s.Sizes, size)
	}
	s.Kernel, s.Store = out.String(), store
	return s, nil
}

// parseSize returns a number, or a set of arguments as one.
func parseSize(value string) (set uint64, err error) {
	if !strings.HasPrefix(value, "args[") {
		return strconv.ParseUint(value, 10, 64)
	}
	for _, arg := range strings.Fields(value) {
		var i uint
		if n, err := fmt.Sscanf(arg, "args[%d]", &i); n != 1 || err != nil || i > 63 {
			return 0, fmt.Errorf("%q is none of args[0] … args[63]", arg)
		}
		set |= 1 << i
	}
	return set, nil
}
