package device

// Dump receives the code of the kernels that a device loads, for inspection. Its error fails the load.
type Dump func(Kernel) error

// Kernel is the code of one kernel.
type Kernel struct {
	Device  string // "vulkan:0"
	Program string // the label of the program; "" for what a backend made of a source
	Shader  *Shader
	Format  Format
	Code    []byte
}

// Format is the language of a kernel's code, and the extension of its files.
type Format string

// The formats of kernels.
const (
	FormatWGSL     Format = "wgsl"
	FormatAssembly Format = "spvasm" // SPIR-V assembly, which takes the place of WGSL
	FormatC        Format = "c"      // of a native kernel, written so or made of WGSL
	FormatSPIRV    Format = "spv"    // what a Vulkan driver compiles
)

// Format returns the language of the shader's source.
func (s *Shader) Format() Format {
	switch {
	case s.Assembly():
		return FormatAssembly
	case s.C():
		return FormatC
	}
	return FormatWGSL
}
