package main

import (
	"bytes"
	"debug/macho"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Load commands, flags and values that debug/macho does not name, of mach-o/loader.h.
const (
	loadWeakDylib     = 0x80000018
	loadReexported    = 0x8000001f
	loadLazyDylib     = 0x20
	loadUpwardDylib   = 0x80000023
	loadMain          = 0x80000028
	loadSignature     = 0x1d
	loadMinimum       = 0x24
	loadBuild         = 0x32
	macOS             = 1    // platform of loadBuild
	dynamicLookup     = 0xfe // library of a symbol that is looked up when the program starts
	undefinedSymbol   = 0x01
	symbolOfDebugger  = 0xe0
	symbolTypes       = 0x0e
	ordinalShift      = 8
	ofSystemLibrary   = "/usr/lib/"
	ofSystemFramework = "/System/Library/Frameworks/"
)

// program is what macOS reads of a program before it starts it.
type program struct {
	cpu        macho.Cpu
	flags      uint32
	kind       macho.Type
	minimum    string // macOS; "": not said
	dylibs     []string
	rpaths     []string
	imports    int
	unresolved []string // imported symbols without a library
	entry      bool
	signature  *signature // nil: none
}

// read reads a program.
func read(path string) (*program, error) {
	f, err := macho.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &program{cpu: f.Cpu, flags: f.Flags, kind: f.Type}
	for _, l := range f.Loads {
		if err := p.command(path, f, l.Raw()); err != nil {
			return nil, err
		}
	}
	if f.Symtab == nil {
		return nil, errors.New("found no symbol table")
	}
	for _, s := range f.Symtab.Syms {
		if s.Type&symbolOfDebugger != 0 || s.Type&symbolTypes != 0 || s.Type&undefinedSymbol == 0 || s.Value != 0 {
			continue
		}
		p.imports++
		if library := s.Desc >> ordinalShift; library == 0 || library == dynamicLookup {
			p.unresolved = append(p.unresolved, s.Name)
		}
	}
	return p, nil
}

// command reads a load command.
func (p *program) command(path string, f *macho.File, raw []byte) (err error) {
	get := func(at int) uint32 {
		if at+4 > len(raw) {
			return 0
		}
		return f.ByteOrder.Uint32(raw[at:])
	}
	switch command := get(0); command {
	case uint32(macho.LoadCmdDylib), loadWeakDylib, loadReexported, loadLazyDylib, loadUpwardDylib:
		p.dylibs = append(p.dylibs, text(raw, get(8)))
	case uint32(macho.LoadCmdRpath):
		p.rpaths = append(p.rpaths, text(raw, get(8)))
	case loadMinimum:
		p.minimum = version(get(8))
	case loadBuild:
		if get(8) != macOS {
			return fmt.Errorf("found the platform %d, expected %d, macOS", get(8), macOS)
		}
		p.minimum = version(get(12))
	case loadMain:
		p.entry = true
	case loadSignature:
		p.signature, err = readSignature(path, int64(get(8)), int64(get(12)))
	}
	return err
}

// text is the string at an offset of a load command.
func text(raw []byte, at uint32) string {
	if int(at) >= len(raw) {
		return ""
	}
	s, _, _ := bytes.Cut(raw[at:], []byte{0})
	return string(s)
}

// version writes xxxx.yy.zz, which a load command has in 4 bytes.
func version(v uint32) string {
	s := fmt.Sprintf("%d.%d", v>>16, v>>8&0xff)
	if patch := v & 0xff; patch != 0 {
		s += fmt.Sprintf(".%d", patch)
	}
	return s
}

func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  cpu %v\n  minos %s\n", p.cpu, p.minimum)
	for _, d := range p.dylibs {
		fmt.Fprintf(&b, "  dylib %s\n", d)
	}
	fmt.Fprintf(&b, "  %d imported symbols\n", p.imports)
	if p.signature == nil {
		return b.String() + "  no signature\n"
	}
	fmt.Fprintf(&b, "  signature of %d pages, ad hoc: %v\n", p.signature.pages, p.signature.adHoc)
	return b.String()
}

// check refuses a program that macOS would not start, or that needs more than the system.
func (p *program) check(minimum string) error {
	if p.kind != macho.TypeExec || !p.entry || p.flags&macho.FlagPIE == 0 {
		return fmt.Errorf("found the type %v, an entry: %v, and the flags %#x, expected a position-independent program", p.kind, p.entry, p.flags)
	}
	if p.minimum != minimum {
		return fmt.Errorf("found a program for macOS %q or later, expected %s", p.minimum, minimum)
	}
	at := slices.IndexFunc(p.dylibs, func(d string) bool {
		return !strings.HasPrefix(d, ofSystemLibrary) && !strings.HasPrefix(d, ofSystemFramework)
	})
	dylibs := slices.Sorted(slices.Values(p.dylibs))
	switch {
	case len(slices.Compact(dylibs)) < len(p.dylibs):
		return fmt.Errorf("found libraries that are linked twice: %s", strings.Join(p.dylibs, ", "))
	case at >= 0:
		return fmt.Errorf("found the library %s, expected those in %s and %s", p.dylibs[at], ofSystemLibrary, ofSystemFramework)
	case len(p.rpaths) > 0:
		return fmt.Errorf("found the run paths %s, expected none", strings.Join(p.rpaths, ", "))
	case p.flags&macho.FlagTwoLevel == 0:
		return errors.New("found imports without libraries, expected a library for each (two-level namespace)")
	case len(p.unresolved) > 0:
		return fmt.Errorf("found imported symbols without a library: %s", strings.Join(p.unresolved, ", "))
	case p.signature != nil:
		return p.signature.check()
	case p.cpu == macho.CpuArm64:
		return errors.New("found no signature, expected one: macOS kills programs for arm64 that have none")
	}
	return nil
}
