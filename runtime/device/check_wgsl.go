package device

import (
	"math"
	"strconv"
	"strings"
)

// A Shader states its workgroup beside its source. Implementations accept a source that declares another one, even one
// with more workgroup memory than the device has. So what the source declares in literals is compared here.

// compact is a source without comments and spaces.
func compact(wgsl string) string {
	var s strings.Builder
	for line := range strings.Lines(wgsl) {
		line, _, _ = strings.Cut(line, "//")
		for _, field := range strings.Fields(line) {
			s.WriteString(field)
		}
	}
	return s.String()
}

// between are the texts between a beginning and the next end.
func between(s, begin, end string) (out []string) {
	for {
		_, after, found := strings.Cut(s, begin)
		text, rest, closed := strings.Cut(after, end)
		if !found || !closed {
			return out
		}
		out, s = append(out, text), rest
	}
}

// workgroupSize reads the literal @workgroup_size of a source; ok is false when there is none or several.
func workgroupSize(wgsl string) (size [3]int, ok bool) {
	found := 0
	for _, text := range between(compact(wgsl), "@workgroup_size(", ")") {
		if s, literal := sizeOf(text); literal {
			size = s
			found++
		}
	}
	return size, found == 1
}

// sizeOf reads one to three numbers.
func sizeOf(text string) (size [3]int, ok bool) {
	numbers := strings.Split(strings.TrimSuffix(text, ","), ",")
	if len(numbers) > len(size) {
		return size, false
	}
	size = [3]int{1, 1, 1}
	for i, s := range numbers {
		if n := len(s) - 1; n > 0 && (s[n] == 'u' || s[n] == 'i') {
			s = s[:n]
		}
		n, err := strconv.ParseUint(s, 10, 31)
		if err != nil {
			return size, false
		}
		size[i] = int(n)
	}
	return size, true
}

// workgroupMemory adds up the workgroup variables whose size is literal: a lower bound, in bytes.
func workgroupMemory(wgsl string) int64 {
	var sum int64
	for _, text := range between(compact(wgsl), "var<workgroup>", ";") {
		if _, typ, typed := strings.Cut(text, ":"); typed {
			sum += typeSize(typ)
		}
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
	if len(t) == len("vec2f") && strings.HasPrefix(t, "vec") && t[3] >= '2' && t[3] <= '4' {
		return int64(t[3]-'0') * typeSize(map[byte]string{'f': "f32", 'i': "i32", 'u': "u32", 'h': "f16"}[t[4]])
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
