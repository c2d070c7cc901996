package device

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A Shader states its workgroup beside its source. Implementations accept a source that declares another one, even one
// with more workgroup memory than the device has. So what the source declares in literals is compared here.

var (
	wgslComment       = regexp.MustCompile(`//[^\n]*`)
	wgslWorkgroupSize = regexp.MustCompile(`@workgroup_size\s*\(\s*(\d+)[ui]?\s*(?:,\s*(\d+)[ui]?\s*)?(?:,\s*(\d+)[ui]?\s*)?,?\s*\)`)
	wgslWorkgroupVar  = regexp.MustCompile(`var\s*<\s*workgroup\s*>\s*\w+\s*:\s*([^;]+);`)
	wgslShortVector   = regexp.MustCompile(`^vec([234])([fiuh])$`)
)

// workgroupSize reads the literal @workgroup_size of a source; ok is false when there is none or several.
func workgroupSize(wgsl string) (size [3]int, ok bool) {
	m := wgslWorkgroupSize.FindAllStringSubmatch(wgslComment.ReplaceAllString(wgsl, ""), 2)
	if len(m) != 1 {
		return size, false
	}
	for i := range size {
		size[i] = 1
		if s := m[0][i+1]; s != "" {
			n, err := strconv.Atoi(s)
			if err != nil {
				return size, false
			}
			size[i] = n
		}
	}
	return size, true
}

// workgroupMemory adds up the workgroup variables whose size is literal: a lower bound, in bytes.
func workgroupMemory(wgsl string) int64 {
	var sum int64
	for _, m := range wgslWorkgroupVar.FindAllStringSubmatch(wgslComment.ReplaceAllString(wgsl, ""), -1) {
		sum += typeSize(strings.Join(strings.Fields(m[1]), ""))
	}
	return sum
}

// typeSize is the size of a type in bytes, or 0 when it is not made of literals.
func typeSize(t string) int64 {
	switch t {
	case "f32", "i32", "u32", "atomic<u32>", "atomic<i32>":
		return 4
	case "f16":
		return 2
	}
	if m := wgslShortVector.FindStringSubmatch(t); m != nil {
		return typeSize("vec" + m[1] + "<" + map[string]string{"f": "f32", "i": "i32", "u": "u32", "h": "f16"}[m[2]] + ">")
	}
	inner, isArray := strings.CutPrefix(t, "array<")
	if isArray && strings.HasSuffix(inner, ">") {
		inner = strings.TrimSuffix(inner, ">")
		i := strings.LastIndexByte(inner, ',')
		if i < 0 {
			return 0
		}
		n, err := strconv.ParseInt(strings.TrimRight(inner[i+1:], "ui"), 10, 32)
		if err != nil || n < 0 {
			return 0
		}
		return product(n, stride(typeSize(inner[:i])))
	}
	if len(t) > 5 && strings.HasPrefix(t, "vec") && t[3] >= '2' && t[3] <= '4' && t[4] == '<' && strings.HasSuffix(t, ">") {
		return int64(t[3]-'0') * typeSize(t[5:len(t)-1])
	}
	return 0
}

// product returns a·b, or math.MaxInt32 if that is less: sources are untrusted, and no device has so much memory.
func product(a, b int64) int64 {
	if b > 0 && a > math.MaxInt32/b {
		return math.MaxInt32
	}
	return a * b
}

// stride returns the size of a type as an element of an array: a vec3 is padded to a vec4.
func stride(size int64) int64 {
	switch size {
	case 6, 12:
		return size / 3 * 4
	}
	return size
}
