package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// tekkenFile is the name of Mistral's files.
const tekkenFile = "tekken.json"

// tekken is a tokenizer of Mistral: ranks as in a file of tiktoken, behind the special tokens.
type tekken struct {
	Config struct {
		Pattern    string `json:"pattern"`
		Size       *int   `json:"default_vocab_size"`         // special tokens included; vocab may list more
		NumSpecial *int   `json:"default_num_special_tokens"` // those that special_tokens does not list have numbers for names
		Version    string `json:"version"`
	} `json:"config"`
	Vocab []struct {
		Rank  *int   `json:"rank"`
		Bytes string `json:"token_bytes"`
	} `json:"vocab"`
	Special []struct {
		Rank *int   `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

// oldTekkenSpecial are the special tokens of files that list none.
var oldTekkenSpecial = []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
	"[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]",
	"[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}

// otherwiseRead finds what tiktoken and Hugging Face's tokenizers read in two ways: $ and ^, which stand for the ends
// of a text or of each line, and a possessive {n,m}+.
var otherwiseRead = regexp.MustCompile(`(?:^|[^\\\[])[$^]|\{[0-9,]+\}\+`)

// fromTekken returns the content of a tokenizer.json that encodes as a tekken.json does.
func fromTekken(data []byte, d *description) ([]byte, error) {
	var t tekken
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("not a tekken.json: %w", jsonError(err))
	}
	if t.Config.Pattern == "" {
		return nil, errors.New("not a tekken.json: no config.pattern")
	}
	if found := otherwiseRead.FindString(t.Config.Pattern); found != "" {
		return nil, fmt.Errorf("config.pattern has %q, which tiktoken and Hugging Face's tokenizers read in two ways: expected none of ^, $ and {n,m}+", found)
	}
	special, err := t.special()
	if err != nil {
		return nil, err
	}
	ranks, err := t.ranks(len(special))
	if err != nil {
		return nil, err
	}
	vocab, merges := mergesOfRanks(ranks, len(special))
	added := []addedToken{}
	for id, text := range special {
		if other, ok := vocab[text]; ok {
			return nil, fmt.Errorf("special_tokens: %q has the rank %d, but elsewhere the id %d", text, id, other)
		}
		vocab[text] = id
		added = append(added, addedToken{ID: int64(id), Content: text, Special: true})
	}
	d.setDefaults(tekkenFile, map[string]string{RoleBOS: "<s>", RoleEOS: "</s>", RoleUnknown: "<unk>", RolePad: "<pad>"})
	return splitFile(t.Config.Pattern, false, vocab, merges, added), nil
}

// special lists the special tokens by rank.
func (t *tekken) special() ([]string, error) {
	var list []string
	if t.Special == nil {
		list = append(list, oldTekkenSpecial...)
	} else {
		list = make([]string, len(t.Special))
	}
	for i, s := range t.Special {
		switch {
		case s.Rank == nil || *s.Rank < 0 || *s.Rank >= len(list) || list[*s.Rank] != "":
			return nil, fmt.Errorf("special_tokens[%d]: the rank is %s: expected each number from 0 to %d once", i, orNone(s.Rank),
				len(list)-1)
		case s.Text == "":
			return nil, fmt.Errorf("special_tokens[%d]: no token_str", i)
		}
		list[*s.Rank] = s.Text
	}
	if n := t.Config.NumSpecial; n != nil {
		if *n < len(list) || *n > maxHoles {
			return nil, fmt.Errorf("config.default_num_special_tokens is %d: expected %d, the number of special_tokens, to %d", *n,
				len(list), maxHoles)
		}
		for i := len(list); i < *n; i++ {
			list = append(list, fmt.Sprintf("<SPECIAL_%d>", i))
		}
	}
	return list, nil
}

// ranks returns the ordinary tokens that are in use.
func (t *tekken) ranks(special int) (map[string]int, error) {
	n := len(t.Vocab)
	if size := t.Config.Size; size != nil {
		if *size < special || *size > special+n {
			return nil, fmt.Errorf("config.default_vocab_size is %d: expected %d, the number of special tokens, to %d, with the %d of vocab", *size, special, special+n, n)
		}
		n = *size - special
	}
	ranks := make(map[string]int, n)
	for i, v := range t.Vocab[:n] {
		token, err := base64.StdEncoding.DecodeString(v.Bytes)
		switch {
		case err != nil || len(token) == 0:
			return nil, fmt.Errorf("vocab[%d]: token_bytes is %.60q: expected bytes in base64", i, v.Bytes)
		case v.Rank == nil || *v.Rank != i:
			return nil, fmt.Errorf("vocab[%d]: the rank is %s: expected %d", i, orNone(v.Rank), i)
		}
		if other, ok := ranks[string(token)]; ok {
			return nil, fmt.Errorf("vocab[%d] has the token %q of rank %d again", i, token, other)
		}
		ranks[string(token)] = i
	}
	return ranks, checkBytes(ranks)
}

func orNone(n *int) string {
	if n == nil {
		return "missing"
	}
	return fmt.Sprint(*n)
}
