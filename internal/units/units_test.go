package units

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 24 << 30: "24 GiB",
		2_488_208: "2.373 MiB", 20000 << 30: "20000 GiB"} {
		assert.Equal(t, want, Bytes(n))
	}
}
