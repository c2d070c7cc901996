// Package native translates WGSL kernels into C.
package native

import (
	_ "embed"
	"errors"
)

// Prelude is the beginning of every translation unit: types, mathematical functions and the arguments of kernels.
//
//go:embed prelude.h
var Prelude string

// Translate returns the C of a WGSL kernel, which begins with target.C. inside promises that no index leaves its
// array.
func Translate(wgsl string, inside bool) (string, error) {
	return "", errors.New("WGSL is not translated yet")
}
