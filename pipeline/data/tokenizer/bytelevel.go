package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// byteChars and charBytes are GPT-2's alphabet: each byte is written as one printable character, so that a
// vocabulary of byte strings can be kept as text. Read only.
var byteChars, charBytes = byteAlphabet()

func byteAlphabet() ([256]string, map[rune]byte) {
	var chars [256]string
	back := make(map[rune]byte, 256)
	next := rune(256) // bytes that do not print are numbered from here
	for b := range 256 {
		r := rune(b)
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if !printable {
			r = next
			next++
		}
		chars[b] = string(r)
		back[r] = byte(b)
	}
	return chars, back
}

// fromAlphabet returns the bytes that s spells in GPT-2's alphabet; false if a character is not of it.
func fromAlphabet(s string) (string, bool) {
	out := make([]byte, 0, len(s))
	for _, r := range s {
		b, ok := charBytes[r]
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}

func toAlphabet(s string) string {
	out := make([]byte, 0, len(s)+8)
	for i := range len(s) {
		out = append(out, byteChars[s[i]]...)
	}
	return string(out)
}

// byteLevelJSON writes a tokenizer.json of a byte-level BPE. vocab is in order of ids and, like merges, in GPT-2's
// alphabet; special tokens are numbered after it. split says whether GPT-2's pattern cuts the text first.
func byteLevelJSON(vocab []string, merges [][2]string, special []string, split bool) []byte {
	var added []addedToken
	for i, s := range special {
		added = append(added, addedToken{ID: int64(len(vocab) + i), Content: s, Special: true})
	}
	part := fmt.Sprintf(`{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":%t}`, split)
	return bpeJSON(append(vocab[:len(vocab):len(vocab)], special...), merges, added, part, part)
}

// bpeJSON writes a tokenizer.json. vocab is in order of ids, added tokens included; pre and decoder are JSON.
func bpeJSON(vocab []string, merges [][2]string, added []addedToken, pre, decoder string) []byte {
	var w bytes.Buffer
	quote := func(s string) string {
		q, err := json.Marshal(s)
		if err != nil {
			panic(err) // a string always marshals
		}
		return string(q)
	}
	w.WriteString(`{"version":"1.0","truncation":null,"padding":null,"added_tokens":[`)
	for i, a := range added {
		fmt.Fprintf(&w, `%s{"id":%d,"content":%s,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":%t}`,
			comma(i), a.ID, quote(a.Content), a.Special)
	}
	fmt.Fprintf(&w, `],"normalizer":null,"pre_tokenizer":%s,"post_processor":null,"decoder":%s,`, pre, decoder)
	w.WriteString(`"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,` +
		`"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{`)
	for i, s := range vocab {
		fmt.Fprintf(&w, "%s%s:%d", comma(i), quote(s), i)
	}
	w.WriteString(`},"merges":[`)
	for i, m := range merges {
		fmt.Fprintf(&w, "%s%s", comma(i), quote(m[0]+" "+m[1]))
	}
	w.WriteString("]}}\n")
	if !utf8.Valid(w.Bytes()) {
		panic("tokenizer: a vocabulary that is not in GPT-2's alphabet")
	}
	return w.Bytes()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}
