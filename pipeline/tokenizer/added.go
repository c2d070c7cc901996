package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Files beside a tokenizer that older versions of transformers wrote. They count unless tokenizer_config.json has
// added_tokens_decoder.
const (
	specialMapFile  = "special_tokens_map.json"
	addedTokensFile = "added_tokens.json"
)

// sideToken is a token of a file beside a tokenizer.
type sideToken struct {
	addedToken        // ID is -1 where the file names none
	from       string // the file and the key
}

// readAdded reads the tokens that files beside a tokenizer add, in transformers' order: those with ids, those of roles,
// and further special tokens. config is tokenizer_config.json, or nil.
func (d *description) readAdded(folder string, config map[string]json.RawMessage) error {
	path := filepath.Join(folder, ConfigFile)
	if raw := config["added_tokens_decoder"]; !isNull(raw) {
		err := d.readRoles(path, config)
		if err == nil {
			err = d.readDecoder(path, raw)
		}
		d.addSpecial(path)
		return err
	}
	if err := d.readRoles(path, config); err != nil {
		return err
	}
	older := filepath.Join(folder, specialMapFile)
	fields, err := readObject(older)
	if err == nil {
		err = d.readRoles(older, fields)
	}
	if err == nil {
		err = d.readAddedTokens(filepath.Join(folder, addedTokensFile))
	}
	d.addSpecial(path)
	return err
}

// readRoles reads the roles of special tokens, and the list of further ones.
func (d *description) readRoles(path string, fields map[string]json.RawMessage) error {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		known := slices.Contains(roles, key)
		if !known && !strings.HasSuffix(key, "_token") {
			continue
		}
		token, err := parseToken(fields[key])
		if err != nil && known {
			return fmt.Errorf("%s: %s is %.40s: %w", path, key, fields[key], err)
		}
		if err == nil && (known || token.Content != "") {
			d.roles[key] = token
		}
	}
	raw := fields["extra_special_tokens"]
	if isNull(raw) || string(raw) == "[]" || string(raw) == "{}" {
		raw = fields["additional_special_tokens"]
	}
	if isNull(raw) {
		return nil
	}
	if raw[0] == '{' {
		var named map[string]json.RawMessage
		if err := json.Unmarshal(raw, &named); err != nil {
			return fmt.Errorf("%s: %w", path, jsonError(err))
		}
		for key, raw := range named {
			token, err := parseToken(raw)
			if err != nil {
				return fmt.Errorf("%s: extra_special_tokens: %s is %.40s: %w", path, key, raw, err)
			}
			d.roles[key] = token
		}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("%s: additional_special_tokens is %.40s: expected a list of tokens", path, raw)
	}
	d.extra = nil
	for i, raw := range list {
		token, err := parseToken(raw)
		if err != nil {
			return fmt.Errorf("%s: additional_special_tokens[%d] is %.40s: %w", path, i, raw, err)
		}
		d.extra = append(d.extra, token)
	}
	return nil
}

// parseToken reads a special token, which is its spelling or an object; null is a token without content.
func parseToken(raw json.RawMessage) (a addedToken, err error) {
	a = addedToken{ID: -1, Special: true}
	if json.Unmarshal(raw, &a.Content) == nil {
		return a, nil
	}
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &a) != nil {
		return a, errors.New("expected a string or an object with \"content\"")
	}
	a.Special = true
	return a, nil
}

// readDecoder reads added_tokens_decoder, whose keys are ids.
func (d *description) readDecoder(path string, raw json.RawMessage) error {
	var list map[string]struct {
		addedToken
		Normalized *bool `json:"normalized"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("%s: added_tokens_decoder: %w", path, jsonError(err))
	}
	for key, token := range list {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil || id < 0 {
			return fmt.Errorf("%s: added_tokens_decoder: found the id %q, expected an integer from 0 to 2^31-1", path, key)
		}
		a := token.addedToken
		a.ID, a.Normalized = id, !a.Special
		if token.Normalized != nil {
			a.Normalized = *token.Normalized
		}
		d.added = append(d.added, sideToken{a, path + ": added_tokens_decoder"})
	}
	slices.SortFunc(d.added, func(a, b sideToken) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

// readAddedTokens reads added_tokens.json, an object of spellings and ids.
func (d *description) readAddedTokens(path string) error {
	fields, err := readObject(path)
	if err != nil {
		return err
	}
	special := func(text string) bool {
		is := func(a addedToken) bool { return a.Content == text }
		return slices.ContainsFunc(d.extra, is) || slices.ContainsFunc(roles, func(role string) bool { return is(d.roles[role]) })
	}
	for text, raw := range fields {
		a := addedToken{Content: text, Special: special(text)}
		if err := json.Unmarshal(raw, &a.ID); err != nil || a.ID < 0 {
			return fmt.Errorf("%s: %q has the id %.40s, expected an integer from 0 to 2^31-1", path, text, raw)
		}
		a.Normalized = !a.Special
		d.added = append(d.added, sideToken{a, path})
	}
	slices.SortFunc(d.added, func(a, b sideToken) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

// addSpecial appends the tokens of roles and the further special tokens to those that are added.
func (d *description) addSpecial(path string) {
	names := slices.Clone(roles)
	for _, role := range slices.Sorted(maps.Keys(d.roles)) {
		if !slices.Contains(names, role) {
			names = append(names, role)
		}
	}
	for _, role := range names {
		d.added = append(d.added, sideToken{d.roles[role], path + ": " + role})
	}
	for _, a := range d.extra {
		d.added = append(d.added, sideToken{a, path + ": additional_special_tokens"})
	}
}

// searchInText makes all tokens be searched in the text itself. SentencePiece's normalization, which puts a space in
// front of a text, would put it in front of their spellings, too.
func (d *description) searchInText() {
	for i := range d.added {
		d.added[i].Normalized = false
	}
}

// extend returns the added tokens of a tokenizer.json with those of the files beside it, as the library tokenizers
// numbers them: a token of the vocabulary keeps its id, another one gets the next.
func (d description) extend(list []addedToken, v *vocabulary) (all []addedToken, changed bool, err error) {
	all = slices.Clone(list)
	for _, side := range d.added {
		a := side.addedToken
		if a.Content == "" {
			continue
		}
		if i := slices.IndexFunc(all, func(have addedToken) bool { return have.Content == a.Content }); i >= 0 {
			switch have := all[i]; {
			case a.ID < 0: // a role or a special token: it is there
			case a.ID != have.ID:
				return nil, false, fmt.Errorf("%s: %q has the id %d, but elsewhere %d", side.from, a.Content, a.ID, have.ID)
			case a != have:
				all[i], changed = a, true
			}
			continue
		}
		id, ok := v.ids[a.Content]
		if !ok {
			id = nextID(all, v)
		}
		if a.ID >= 0 && a.ID != int64(id) {
			return nil, false, fmt.Errorf("%s: %q has the id %d, but transformers numbers tokens without gaps, and gives it %d", side.from, a.Content, a.ID, id)
		}
		a.ID = int64(id)
		all, changed = append(all, a), true
	}
	slices.SortStableFunc(all, func(a, b addedToken) int { return cmp.Compare(a.ID, b.ID) })
	return all, changed, nil
}

// nextID is the id of a further token.
func nextID(added []addedToken, v *vocabulary) uint32 {
	next := int64(len(v.ids))
	for _, a := range added {
		next = max(next, a.ID+1)
	}
	return uint32(next)
}

// withField returns a tokenizer.json with another value of a field.
func withField(data []byte, field string, v any) ([]byte, error) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(data, &fields)
	if err == nil {
		fields[field], err = json.Marshal(v)
	}
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err = e.Encode(fields)
	return out.Bytes(), err
}
