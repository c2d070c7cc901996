package cc

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
)

var errUndefined = errors.New("the library does not define the function")

// check returns an error unless library is a complete shared library that defines the function symbol. A library that
// ends too early would pass the loader and crash the process when the missing page is accessed.
func check(library []byte, symbol string) error {
	if len(library) == 0 {
		return errors.New("there is no library")
	}
	f, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return fmt.Errorf("not a complete library: %w", err)
	}
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("an ELF file of type %v, expected a shared library", f.Type)
	}
	size := uint64(len(library))
	for _, p := range f.Progs {
		if p.Filesz > size || p.Off > size-p.Filesz {
			return fmt.Errorf("not a complete library: %d bytes at %d exceed its %d", p.Filesz, p.Off, size)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("not a complete library: %w", err)
	}
	defined := func(s elf.Symbol) bool { return s.Name == symbol && s.Section != elf.SHN_UNDEF }
	if !slices.ContainsFunc(symbols, defined) {
		return errUndefined
	}
	return nil
}
