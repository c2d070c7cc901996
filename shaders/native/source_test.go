package native

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Sizes are macros in the line where they were declared; what is compiled does not have their values.
func TestParseSizes(t *testing.T) {
	text := func(n int, arrays string) string {
		return WithStore("// C\n"+SizeLine("N", n)+"#define A f32\n"+SizeLine("ARRAYS", arrays)+SizeLine("WHOLE", 1)+"KERNEL { }\n", "// C\nSTORE { }\n")
	}
	s, err := Parse(text(352, "args[2] args[4]"))
	require.NoError(t, err)
	assert.Equal(t, Source{"// C\n#define N sizes[0]\n#define A f32\n#define ARRAYS sizes[1]\n#define WHOLE sizes[2]\nKERNEL { }\n", "// C\nSTORE { }\n",
		[]uint64{352, 1<<2 | 1<<4, 1}}, s)
	other, err := Parse(text(1<<40, "args[63]"))
	require.NoError(t, err)
	assert.Equal(t, []uint64{1 << 40, 1 << 63, 1}, other.Sizes)
	assert.Equal(t, s.Kernel+s.Store, other.Kernel+other.Store)

	s, err = Parse("// C\nKERNEL { }\n")
	require.NoError(t, err)
	assert.Equal(t, Source{Kernel: "// C\nKERNEL { }\n"}, s)
	for _, bad := range []string{"", "-1", "x", "1.5", "args[64]", "args[x]", "args[2] 3"} {
		_, err := Parse("// C\n" + SizeLine("N", bad) + "KERNEL { }\n")
		require.ErrorContains(t, err, "size N: ", bad)
	}
}
