//go:build linux && cgo

package cpu

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/runtime/device"
)

var (
	wgslComment = regexp.MustCompile(`//[^\n]*`)
	wgslBinding = regexp.MustCompile(`@group\s*\(\s*(\d+)[ui]?\s*\)\s*@binding\s*\(\s*(\d+)[ui]?\s*\)\s*var\s*<\s*storage\s*(?:,\s*(read|read_write)\s*)?>`)
)

// fits compares the bindings that a WGSL source declares with the program, because C has no such declarations.
func fits(s *device.Shader) error {
	for _, m := range wgslBinding.FindAllStringSubmatch(wgslComment.ReplaceAllString(s.WGSL, ""), -1) {
		i, err := strconv.Atoi(m[2])
		if err != nil || i >= len(s.Bindings) || strings.TrimLeft(m[1], "0") != "" {
			return device.Invalid("the source has a binding %s of group %s, the program %d bindings of group 0", m[2], m[1], len(s.Bindings))
		}
		if readOnly := m[3] != "read_write"; readOnly != (s.Bindings[i] == device.ReadOnly) {
			return device.Invalid("the source declares binding %d %s, the program %s", i, accessName(readOnly), accessName(!readOnly))
		}
	}
	return nil
}

func accessName(readOnly bool) string {
	if readOnly {
		return "read"
	}
	return "read_write"
}
