package tokenizer

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"math"
)

// gpt2Ranks is the number of ordinary tokens of GPT-2: 256 bytes and 50,000 merges; <|endoftext|> follows.
const gpt2Ranks = 50256

// gpt2File is tiktoken's r50k_base.tiktoken: GPT-2's tokens by rank.
//
//go:embed gpt2.tiktoken.gz
var gpt2File []byte

// openGPT2 builds GPT-2's tokenizer.
func openGPT2() (Tokenizer, error) {
	data, err := unzippedGPT2()
	if err != nil {
		return nil, fmt.Errorf("tokenizer gpt2: %w", err)
	}
	rank, err := readRanks(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer gpt2: %w", err)
	}
	tokens := byRank(rank)
	vocab := make([]string, gpt2Ranks)
	var merges [][2]string
	for i, s := range tokens {
		vocab[i] = toAlphabet(s)
		if len(s) > 1 {
			a, b := splitByRank(s, rank, i)
			merges = append(merges, [2]string{toAlphabet(a), toAlphabet(b)})
		}
	}
	const end = "<|endoftext|>"
	t, err := parse("gpt2", byteLevelJSON(vocab, merges, []string{end}, true),
		description{roles: map[string]addedToken{RoleBOS: {Content: end}, RoleEOS: {Content: end}}})
	if err != nil {
		return nil, fmt.Errorf("tokenizer gpt2: %w", err)
	}
	return t, nil
}

func unzippedGPT2() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(gpt2File))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// splitByRank finds the two tokens that the token s of the given rank was merged from: the parts of its bytes after
// all merges of lower rank.
func splitByRank(s string, rank map[string]int, limit int) (a, b string) {
	parts := make([]string, len(s))
	for i := range parts {
		parts[i] = s[i : i+1]
	}
	for len(parts) > 2 {
		best, at := math.MaxInt, -1
		for i := range len(parts) - 1 {
			if r, ok := rank[parts[i]+parts[i+1]]; ok && r < best {
				best, at = r, i
			}
		}
		if at < 0 || best >= limit {
			panic(fmt.Sprintf("tokenizer: token %d is not reached by merges of lower rank", limit))
		}
		parts[at] += parts[at+1]
		parts = append(parts[:at+1], parts[at+2:]...)
	}
	return parts[0], parts[1]
}
