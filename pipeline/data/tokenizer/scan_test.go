package tokenizer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// scansAs compares the scanners with a matcher of patterns.
func scansAs(t *testing.T, text string) {
	for _, pattern := range []string{gpt2Pattern, gpt4Pattern, qwenPattern} {
		find, err := regexFinder(pattern)
		require.NoError(t, err)
		want, err := split{find: find}.cut(nil, fragment{text: text})
		require.NoError(t, err)
		got, err := scannerOf(pattern).cut(nil, fragment{text: text})
		require.NoError(t, err)
		require.Equal(t, want, got, "%s: %q", pattern, text)
	}
}

var scanTexts = []string{"", " ", "  ", "a", " a", "  a", "\n", "\n\n a", "a\n\n\nb", "x \n y\t\tz ", "it's I'LL we'd 're 'x '",
	"'S'T'RE'Ve'm'd'l", "'ſquire 'ſ'S x'ſ", "12345 6 ٣٤٥٦ ½",
	"!!!\r\n\r\nabc", " ...\n\n", "e\u0301 中文字 нет 🙂🙂 a\u200db", "a\u00a0\u00a0b\u3000", "\xff\xfe a\xffb",
	"func f(x int) {\n\treturn x\n}\n", "__x1__  = 0x1F;  // y\n"}

func TestScanners(t *testing.T) {
	for _, text := range scanTexts {
		scansAs(t, text)
	}
}

// Unicode 16's letters and numbers are such, as in Hugging Face's library.
func TestLaterCharacters(t *testing.T) {
	got, err := scannerOf(gpt4Pattern).cut(nil, fragment{text: "a\U0002EBF0b\U00010D40\U00010D41 \U000105C0"})
	require.NoError(t, err)
	require.Equal(t, []string{"a\U0002EBF0b", "\U00010D40\U00010D41", " \U000105C0"}, texts(got))
}

// The scanners cut every text as the patterns do.
func FuzzScanners(f *testing.F) {
	for _, text := range scanTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) < 1000 {
			scansAs(t, text)
		}
	})
}
