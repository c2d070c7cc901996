package data

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/pipeline/data/tokenizer"
)

// shardChecker compares shards with the manifests beside them.
type shardChecker struct {
	tok       Tokenizer
	framing   *tokenizer.Framing
	manifests map[string]*Manifest // by folder; nil: it has none
}

// checkShards refuses shards of another tokenizer, or of another framing. Shards without a manifest, which other
// programs wrote, are of any.
func (o *Options) checkShards(lists ...[]string) error {
	if o.Tokenizer == nil {
		return nil
	}
	c := shardChecker{o.Tokenizer, o.Framing, map[string]*Manifest{}}
	for _, files := range lists {
		for _, path := range files {
			if f, err := formatOf(path); err != nil || f.kind != kindBin {
				continue
			}
			if err := c.check(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *shardChecker) check(path string) error {
	dir, name := filepath.Split(path)
	m, ok := c.manifests[dir]
	if !ok {
		m = manifestIn(dir)
		c.manifests[dir] = m
	}
	if m == nil || !slices.ContainsFunc(m.Shards, func(s Shard) bool { return s.Name == name }) {
		return nil
	}
	full, ok := c.tok.(tokenizer.Tokenizer)
	if m.TokenizerID != c.tok.Hash() && !(ok && tokenizer.Is(full, m.TokenizerID)) {
		return fmt.Errorf("%s: found tokens of the tokenizer %q (%s), expected those of %q (%s); the shards' %s names their tokenizer",
			path, m.Tokenizer, short(m.TokenizerID), c.tok.Name(), short(c.tok.Hash()), manifestName)
	}
	if end := endOf(c.tok); !m.endsAlike(end) {
		return fmt.Errorf("%s: found documents that end with %s, expected %s, as the tokenizer %q says", path, endName(*m.End),
			endName(end), c.tok.Name())
	}
	if c.framing == nil {
		return nil
	}
	for _, f := range []struct{ key, found, expected string }{
		{"special_text", m.framing().SpecialText, c.framing.SpecialText},
		{"bos", m.framing().BOS, c.framing.BOS},
	} {
		if f.found != f.expected {
			return fmt.Errorf("%s: found shards that were made with %s %s, expected %s %s, as data.%s says", path, f.key, f.found, f.key,
				f.expected, f.key)
		}
	}
	return nil
}

func endName(end int64) string {
	if end == noEnd {
		return "no token"
	}
	return fmt.Sprintf("token %d", end)
}

// short is enough of a hash to tell tokenizers of one name apart.
func short(hash string) string { return hash[:min(len(hash), len("sha256:")+12)] }

// framing is what the shards were made with.
func (m *Manifest) framing() tokenizer.Framing {
	return tokenizer.Framing{SpecialText: cmp.Or(m.SpecialText, tokenizer.SpecialAsToken), BOS: cmp.Or(m.BOS, tokenizer.BOSNever)}
}

// manifestIn reads the manifest of a folder of shards; nil: there is none, or it is another program's.
func manifestIn(dir string) *Manifest {
	f, err := os.Open(filepath.Join(dir, manifestName))
	if err != nil {
		return nil
	}
	defer f.Close()
	var m Manifest
	if json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(&m) != nil || m.TokenizerID == "" {
		return nil
	}
	return &m
}
