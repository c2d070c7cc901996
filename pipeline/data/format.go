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
	kindJSON
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
var kinds = map[string]kind{
	".bin":  kindBin,
	".json": kindJSON, ".jsonl": kindJSON, ".jsonlines": kindJSON, ".jl": kindJSON, ".ndjson": kindJSON,
	".parquet": kindParquet, ".arrow": kindArrow, ".feather": kindArrow,
}

var compressions = map[string]compression{".gz": compressedGzip, ".zst": compressedZstd}

const (
	textOfIt  = "expected its text, in a .txt or .jsonl file"
	filesInIt = "expected the files in it, or text or .jsonl, plain or as .gz or .zst"
)

// notDocuments are files that hold no documents that could be read, and what to do with them. Names of files that hold
// text of any kind, also programs and markup, are not among them.
var notDocuments = []struct {
	what, advice string
	endings      []string
}{
	{"a table as text", `expected .jsonl or .parquet; pandas.read_csv(%q).to_json("data.jsonl", orient="records", lines=True) converts it`, []string{".csv"}},
	{"a table as text", `expected .jsonl or .parquet; pandas.read_csv(%q, sep="\t").to_json("data.jsonl", orient="records", lines=True) converts it`, []string{".tsv", ".tab"}},
	{"a spreadsheet", `expected .jsonl or .parquet; pandas.read_excel(%q).to_json("data.jsonl", orient="records", lines=True) converts it`,
		[]string{".xls", ".xlsx", ".xlsm", ".xlsb", ".ods"}},
	{"a PDF document", textOfIt, []string{".pdf"}},
	{"a Word document", textOfIt, []string{".doc", ".docx", ".docm"}},
	{"an OpenDocument text", textOfIt, []string{".odt"}},
	{"an RTF document", textOfIt, []string{".rtf"}},
	{"a presentation", textOfIt, []string{".ppt", ".pptx", ".odp"}},
	{"an electronic book", textOfIt, []string{".epub", ".mobi", ".azw3"}},
	{"a scanned document", textOfIt, []string{".djvu"}},
	{"an image", "expected text", []string{".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ico", ".heic", ".avif"}},
	{"a recording", "expected text", []string{".mp3", ".wav", ".flac", ".ogg", ".m4a", ".mp4", ".mkv", ".avi", ".mov", ".webm"}},
	{"a ZIP archive", filesInIt, []string{".zip", ".jar", ".whl"}},
	{"a tar archive", filesInIt, []string{".tar", ".tgz", ".tbz2", ".txz"}},
	{"a 7z archive", filesInIt, []string{".7z"}},
	{"a RAR archive", filesInIt, []string{".rar"}},
	{"a file compressed in another way", "expected text or .jsonl, plain or as .gz or .zst",
		[]string{".xz", ".bz2", ".lz4", ".br", ".lzma", ".z", ".snappy"}},
	{"a pickle", "expected .jsonl or .parquet", []string{".pkl", ".pickle", ".joblib"}},
	{"an array of numbers", "expected text, or token shards (.bin) as llm.c or gpupipe data write them",
		[]string{".npy", ".npz", ".mat", ".h5", ".hdf5", ".zarr"}},
	{"a model", "expected text", []string{".pt", ".pth", ".ckpt", ".safetensors", ".gguf", ".onnx"}},
	{"a file of records", "expected .jsonl or .parquet", []string{".avro", ".orc", ".tfrecord", ".mds", ".msgpack", ".sqlite", ".db",
		".duckdb", ".lmdb"}},
	{"a program", "expected text", []string{".exe", ".dll", ".so", ".dylib", ".o", ".a", ".pyc", ".wasm"}},
}

// CheckName refuses a file whose name says that it holds no documents.
func CheckName(path string) error {
	_, err := formatOf(path)
	return err
}

// formatOf takes the format from the name: c4.json.gz is JSON, compressed by gzip.
func formatOf(path string) (format, error) {
	name := strings.ToLower(path)
	ext := filepath.Ext(name)
	c := compressions[ext]
	if c != compressedNot {
		name = strings.TrimSuffix(name, ext)
	}
	inner := filepath.Ext(name)
	for _, n := range notDocuments {
		if slices.Contains(n.endings, inner) {
			advice := n.advice
			if strings.Contains(advice, "%q") {
				advice = fmt.Sprintf(advice, path)
			}
			return format{}, fmt.Errorf("%s: %s files are not read, found %s: %s", path, inner, n.what, advice)
		}
	}
	k := kinds[inner]
	if c != compressedNot && k != kindText && k != kindJSON {
		return format{}, fmt.Errorf("%s: a compressed %s file: expected it without %s", path, inner, ext)
	}
	return format{k, c}, nil
}
