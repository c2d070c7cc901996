package data

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

type kind int

const (
	kindText kind = iota
	kindJSONL
	kindBin
	kindParquet
	kindArrow
)

// format is what a file holds and how it is compressed.
type format struct {
	kind        kind
	compression compression
}

// kinds are the kinds of files by the ends of their names. All other files are text.
var kinds = map[string]kind{".bin": kindBin, ".jsonl": kindJSONL, ".ndjson": kindJSONL, ".parquet": kindParquet, ".arrow": kindArrow, ".feather": kindArrow}

var compressions = map[string]compression{".gz": compressedGzip, ".zst": compressedZstd}

// formatOf goes by the name: c4.json.gz is jsonl, compressed by gzip.
func formatOf(path string) (format, error) {
	name := strings.ToLower(path)
	ext := filepath.Ext(name)
	if slices.Contains([]string{".xz", ".bz2", ".zip", ".lz4", ".br", ".tar", ".tgz"}, ext) {
		return format{}, fmt.Errorf("%s: %s files are not read: expected text or .jsonl, plain or as .gz or .zst, or .parquet, .arrow or .bin", path, ext)
	}
	c := compressions[ext]
	if c == compressedNot {
		return format{kind: kinds[ext]}, nil
	}
	inner := filepath.Ext(strings.TrimSuffix(name, ext))
	k := kinds[inner]
	switch {
	case inner == ".tar":
		return format{}, fmt.Errorf("%s: archives are not read: expected the files in it", path)
	case inner == ".json": // the name that C4 gives to files of one document a line
		k = kindJSONL
	case k != kindText && k != kindJSONL:
		return format{}, fmt.Errorf("%s: a compressed %s file: expected it without %s", path, inner, ext)
	}
	return format{k, c}, nil
}
