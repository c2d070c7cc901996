// Package crosstest runs a CPU's kernels in another process: built with sanitizers, by another compiler, or for another
// instruction set under an emulator. It has tests only.
//
// The device of its tests keeps buffers in files. A run hands the commands of a program to a harness in C, which loads
// the kernels and calls each with copies of its arguments that end at a page without access.
package crosstest
