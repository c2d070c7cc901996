package tokenizer

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Names of tiktoken's files of ranks.
const (
	tiktokenExt = ".tiktoken"
	qwenFile    = "qwen.tiktoken"
	kimiFile    = "tiktoken.model"
)

// Patterns of published encodings in Oniguruma's syntax. tiktoken's $ matches at the end of a text alone, which is \z
// there, and its {1,3}+ is {1,3}.
const (
	r50kPattern   = `'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++\z|\s+(?!\S)|\s`
	cl100kPattern = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s+(?!\S)|\s`
	kimiPattern   = `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+` +
		contractions +
		`?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*` + contractions +
		`?|\p{N}{1,3}` + signsAndSpaces

	contractions   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	signsAndSpaces = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// encoding is what a published file of ranks does not say itself.
type encoding struct {
	name    string
	sha256  string // of the file, or:
	file    string // the name of the file,
	ranks   int    // and the number of its tokens
	pattern string
	nfc     bool
	special func(ranks int) map[int]string // by id
	roles   map[string]string
	addBOS  bool
}

var encodings = []encoding{
	{name: "r50k_base", sha256: "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", pattern: r50kPattern,
		special: listed(map[int]string{50256: "<|endoftext|>"}), roles: map[string]string{RoleEOS: "<|endoftext|>"}},
	{name: "p50k_base", sha256: "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", pattern: r50kPattern,
		special: listed(map[int]string{50256: "<|endoftext|>"}), roles: map[string]string{RoleEOS: "<|endoftext|>"}},
	{name: "cl100k_base", sha256: "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", pattern: cl100kPattern,
		special: listed(map[int]string{100257: "<|endoftext|>", 100258: "<|fim_prefix|>", 100259: "<|fim_middle|>",
			100260: "<|fim_suffix|>", 100276: "<|endofprompt|>"}), roles: map[string]string{RoleEOS: "<|endoftext|>"}},
	{name: "o200k_base", sha256: "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", pattern: gpt4oPattern,
		special: listed(map[int]string{199999: "<|endoftext|>", 200018: "<|endofprompt|>"}),
		roles:   map[string]string{RoleEOS: "<|endoftext|>"}},
	{name: "Qwen", file: qwenFile, ranks: 151643, pattern: qwenPattern, nfc: true, special: qwenSpecial,
		roles: map[string]string{RoleEOS: "<|endoftext|>"}},
	{name: "Kimi", file: kimiFile, ranks: 163584, pattern: kimiPattern, special: kimiSpecial,
		roles: map[string]string{RoleBOS: "[BOS]", RoleEOS: "[EOS]"}},
	{name: "Llama 3", file: SentencePieceFile, ranks: 128000, pattern: gpt4Pattern, special: llama3Special, addBOS: true,
		roles: map[string]string{RoleBOS: "<|begin_of_text|>", RoleEOS: "<|end_of_text|>"}},
}

func listed(tokens map[int]string) func(int) map[int]string {
	return func(int) map[int]string { return maps.Clone(tokens) }
}

func numbered(first int, tokens []string) map[int]string {
	out := make(map[int]string, len(tokens))
	for i, text := range tokens {
		out[first+i] = text
	}
	return out
}

func qwenSpecial(ranks int) map[int]string {
	tokens := []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
	for i := range 205 {
		tokens = append(tokens, fmt.Sprintf("<|extra_%d|>", i))
	}
	return numbered(ranks, tokens)
}

// kimiSpecial reserves 256 tokens; tokenizer_config.json names those in use.
func kimiSpecial(ranks int) map[int]string {
	out := make(map[int]string, 256)
	for id := ranks; id < ranks+256; id++ {
		out[id] = fmt.Sprintf("<|reserved_token_%d|>", id)
	}
	return out
}

// llama3Special are the tokens of Llama 3.1 and later. Llama 3.0 has reserved tokens for three of them.
func llama3Special(ranks int) map[int]string {
	tokens := []string{"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
		"<|finetune_right_pad_id|>",
		"<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"}
	for i := 3; len(tokens) < 256; i++ {
		tokens = append(tokens, fmt.Sprintf("<|reserved_special_token_%d|>", i))
	}
	return numbered(ranks, tokens)
}

var tiktokenLine = regexp.MustCompile(`^[A-Za-z0-9+/]+=* [0-9]+\r?\n`)

// isTiktoken reports whether the content of a .model file is one of tiktoken, and not SentencePiece's.
func isTiktoken(data []byte) bool { return tiktokenLine.Match(data[:min(len(data), 4096)]) }

// fromTiktoken returns the content of a tokenizer.json that encodes as tiktoken does with a published file of ranks.
func fromTiktoken(base string, data []byte, d *description) ([]byte, error) {
	ranks, err := readRanks(data)
	if err != nil {
		return nil, err
	}
	e, err := findEncoding(base, ranks)
	if err != nil {
		return nil, err
	}
	return e.json(base, ranks, d)
}

// json returns the content of a tokenizer.json of the encoding with ranks from the file base.
func (e encoding) json(base string, ranks map[string]int, d *description) ([]byte, error) {
	special := e.special(len(ranks))
	for _, t := range d.added {
		if _, ok := special[int(t.ID)]; ok {
			special[int(t.ID)] = t.Content
		}
	}
	d.setDefaults(base, e.roles)
	if e.addBOS && d.addBOS == nil {
		d.addBOS = &e.addBOS
	}
	vocab, merges := mergesOfRanks(ranks, 0)
	added := []addedToken{}
	for _, id := range slices.Sorted(maps.Keys(special)) {
		text := special[id]
		if _, ok := vocab[text]; ok {
			return nil, fmt.Errorf("the special token %q is an ordinary one, too", text)
		}
		vocab[text] = id
		added = append(added, addedToken{ID: int64(id), Content: text, Special: true})
	}
	return splitFile(e.pattern, e.nfc, vocab, merges, added), nil
}

// findEncoding finds the published encoding of ranks.
func findEncoding(base string, ranks map[string]int) (encoding, error) {
	sum := sha256.Sum256(writeRanks(ranks))
	for _, e := range encodings {
		if e.sha256 == hex.EncodeToString(sum[:]) || e.file == base && e.ranks == len(ranks) {
			return e, nil
		}
	}
	var known []string
	for _, e := range encodings {
		name := e.name
		if e.file != "" {
			name += fmt.Sprintf(" (%s of %d tokens)", e.file, e.ranks)
		}
		known = append(known, name)
	}
	return encoding{}, fmt.Errorf("found %d tokens of an encoding that is not known; a file of tiktoken says neither how text is split nor the special tokens: expected the tokenizer.json of the model, or one of %s",
		len(ranks), strings.Join(known, ", "))
}

// readRanks reads a file of tiktoken: a line for each token, of its bytes in base64 and its rank.
func readRanks(data []byte) (map[string]int, error) {
	ranks := map[string]int{}
	taken := map[int]int{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d is %.60q: expected a token in base64 and its rank", number, strings.TrimSpace(string(line)))
		}
		token, err := base64.StdEncoding.DecodeString(fields[0])
		if err != nil || len(token) == 0 {
			return nil, fmt.Errorf("line %d: the token is %.60q: expected bytes in base64", number, fields[0])
		}
		rank, err := strconv.Atoi(fields[1])
		if err != nil || rank < 0 || rank > 1<<31-1 {
			return nil, fmt.Errorf("line %d: the rank is %.60q: expected an integer from 0 to 2^31-1", number, fields[1])
		}
		if other, ok := taken[rank]; ok {
			return nil, fmt.Errorf("line %d has the rank %d of line %d: expected each rank once", number, rank, other)
		}
		if _, ok := ranks[string(token)]; ok {
			return nil, fmt.Errorf("line %d has the token %q of rank %d again", number, token, ranks[string(token)])
		}
		ranks[string(token)], taken[rank] = rank, number
	}
	return ranks, checkBytes(ranks)
}

// checkBytes checks that each byte is a token.
func checkBytes(ranks map[string]int) error {
	if len(ranks) == 0 {
		return errors.New("no tokens")
	}
	for b := range 256 {
		if _, ok := ranks[string([]byte{byte(b)})]; !ok {
			return fmt.Errorf("no token for the byte 0x%02X: expected one for each byte", b)
		}
	}
	return nil
}

// byRank lists tokens by rank.
func byRank(ranks map[string]int) []string {
	return slices.SortedFunc(maps.Keys(ranks), func(a, b string) int { return cmp.Compare(ranks[a], ranks[b]) })
}

// writeRanks writes ranks as the published files do.
func writeRanks(ranks map[string]int) []byte {
	var out bytes.Buffer
	for _, token := range byRank(ranks) {
		fmt.Fprintf(&out, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), ranks[token])
	}
	return out.Bytes()
}

// mergesOfRanks returns the vocabulary and the merges that join tokens in the order of their ranks, in GPT-2's
// alphabet: every pair of tokens that is a token together is merged with its rank, as transformers' converter lists
// them. Ids are ranks plus offset.
func mergesOfRanks(ranks map[string]int, offset int) (vocab map[string]int, merges [][2]string) {
	vocab = make(map[string]int, len(ranks))
	for _, token := range byRank(ranks) {
		vocab[toAlphabet(token)] = ranks[token] + offset
		first := len(merges)
		for i := 1; i < len(token); i++ {
			_, left := ranks[token[:i]]
			_, right := ranks[token[i:]]
			if left && right {
				merges = append(merges, [2]string{token[:i], token[i:]})
			}
		}
		slices.SortFunc(merges[first:], func(a, b [2]string) int {
			return cmp.Or(cmp.Compare(ranks[a[0]], ranks[b[0]]), cmp.Compare(ranks[a[1]], ranks[b[1]]))
		})
	}
	for i, m := range merges {
		merges[i] = [2]string{toAlphabet(m[0]), toAlphabet(m[1])}
	}
	return vocab, merges
}
