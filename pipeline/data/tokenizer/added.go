package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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
	weak       bool   // what tokenizer.json says of the token counts
	derived    bool   // Normalized is not given: it is the contrary of Special
}

// readAdded reads the tokens that files beside a tokenizer add, in transformers' order: tokens with ids, tokens of
// roles, and further special tokens. config is tokenizer_config.json, or nil.
func (d *description) readAdded(folder string, config map[string]json.RawMessage) error {
	path := filepath.Join(folder, ConfigFile)
	if raw := config["added_tokens_decoder"]; !isNull(raw) {
		d.numbered = true
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
	keys, err := keysOf(path)
	if err != nil {
		return err
	}
	older := filepath.Base(path) == specialMapFile
	for _, key := range keys {
		known := slices.Contains(roles, key)
		if !known && !strings.HasSuffix(key, "_token") {
			continue
		}
		token, err := parseToken(fields[key])
		switch {
		case known && err != nil:
			return fmt.Errorf("%s: %s is %.40s: %w", path, key, fields[key], err)
		case known:
			d.roles[key] = token
		case err != nil || token.Content == "":
		case older || fields[key][0] == '{':
			d.objects = append(d.objects, key)
			if !slices.Contains(d.texts, key) {
				d.roles[key] = token
			}
		default:
			d.texts, d.roles[key] = append(d.texts, key), token
		}
	}
	return d.readExtra(path, fields, older)
}

// keysOf lists the keys of a file that holds a JSON object, in its order: transformers numbers new tokens in it.
func keysOf(path string) (keys []string, err error) {
	data, err := readLimited(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		keys, err = orderedKeys(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, jsonError(err))
	}
	return keys, nil
}

func orderedKeys(object json.RawMessage) (keys []string, err error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		if text, ok := key.(string); ok && !slices.Contains(keys, text) {
			keys = append(keys, text)
		}
	}
	return keys, nil
}

// readExtra reads the list of further special tokens, or the object of those with names.
func (d *description) readExtra(path string, fields map[string]json.RawMessage, older bool) error {
	key := "extra_special_tokens"
	raw, named := fields[key]
	if more, ok := fields["additional_special_tokens"]; ok && (isNull(raw) || string(raw) == "[]" || string(raw) == "{}") {
		if older && d.namesExtra {
			return nil
		}
		key, raw, named = "additional_special_tokens", more, !older
		d.extraOfMap = older
	}
	d.namesExtra = d.namesExtra || named && (isNull(raw) || raw[0] != '{')
	if isNull(raw) {
		return nil
	}
	if raw[0] == '{' {
		return d.readNamed(path+": "+key, raw)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("%s: %s is %.40s: expected a list of tokens", path, key, raw)
	}
	if !older || d.extraOfMap {
		d.extra = nil
	}
	for i, raw := range list {
		token, err := parseToken(raw)
		if err != nil {
			return fmt.Errorf("%s: %s[%d] is %.40s: %w", path, key, i, raw, err)
		}
		if !slices.Contains(d.extra, token) {
			d.extra = append(d.extra, token)
		}
	}
	return nil
}

// readNamed reads an object of further special tokens. from is its file and key.
func (d *description) readNamed(from string, raw json.RawMessage) error {
	var named map[string]json.RawMessage
	keys, err := orderedKeys(raw)
	if err == nil {
		err = json.Unmarshal(raw, &named)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", from, jsonError(err))
	}
	for _, key := range keys {
		token, err := parseToken(named[key])
		if err != nil {
			return fmt.Errorf("%s: %s is %.40s: %w", from, key, named[key], err)
		}
		d.texts, d.roles[key] = append(d.texts, key), token
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
		d.added = append(d.added, sideToken{addedToken: a, from: path + ": added_tokens_decoder", derived: token.Normalized == nil})
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
		return !d.extraOfMap && slices.ContainsFunc(d.extra, is) ||
			slices.ContainsFunc(roles, func(role string) bool { return is(d.roles[role]) })
	}
	for text, raw := range fields {
		a := addedToken{Content: text, Special: special(text)}
		if err := json.Unmarshal(raw, &a.ID); err != nil || a.ID < 0 {
			return fmt.Errorf("%s: %q has the id %.40s, expected an integer from 0 to 2^31-1", path, text, raw)
		}
		a.Normalized = !a.Special
		d.added = append(d.added, sideToken{addedToken: a, from: path, weak: true})
	}
	slices.SortFunc(d.added, func(a, b sideToken) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

// addSpecial appends the tokens of roles and the further special tokens to those that are added.
func (d *description) addSpecial(path string) {
	names := slices.Concat(roles, d.objects, d.texts)
	for _, role := range names {
		d.added = append(d.added, sideToken{addedToken: d.roles[role], from: path + ": " + role})
	}
	for _, a := range d.extra {
		d.added = append(d.added, sideToken{addedToken: a, from: path + ": additional_special_tokens"})
	}
}

// searchInText makes all tokens be searched in the text itself. SentencePiece's normalization, which puts a space in
// front of a text, would put it in front of their spellings, too.
func (d *description) searchInText() {
	for i := range d.added {
		d.added[i].Normalized = false
	}
}

// extend adds the tokens of the files beside a tokenizer.json to its added tokens, as transformers adds and numbers
// them: a token of the vocabulary keeps its id, another one gets the next. A token without an id changes no token that
// has one or that the tokenizer.json has; of equal tokens without an id the last one counts.
func (d description) extend(list []addedToken, v *vocabulary) (all []addedToken, changed bool, err error) {
	all = slices.Clone(list)
	unnumbered := map[string]bool{}
	for _, side := range d.added {
		a := side.addedToken
		if a.Content == "" {
			continue
		}
		at := slices.IndexFunc(all, func(have addedToken) bool { return have.Content == a.Content })
		id, ok := v.ids[a.Content]
		switch {
		case at >= 0:
			id = uint32(all[at].ID)
		case !ok:
			id = nextID(all, v)
		}
		switch {
		case a.ID >= 0 && a.ID != int64(id) && at >= 0:
			return nil, false, fmt.Errorf("%s: %q has the id %d, but elsewhere %d", side.from, a.Content, a.ID, id)
		case a.ID >= 0 && a.ID != int64(id):
			return nil, false, fmt.Errorf("%s: %q has the id %d, but transformers numbers tokens without gaps, and gives it %d",
				side.from, a.Content, a.ID, id)
		case at >= 0 && (side.weak || a == all[at] || a.ID < 0 && !unnumbered[a.Content]):
			continue
		}
		unnumbered[a.Content] = a.ID < 0
		a.ID, a.Special, changed = int64(id), a.Special || d.names(a.Content), true
		a.Normalized = a.Normalized && !(a.Special && side.derived)
		if at >= 0 {
			all[at] = a
		} else {
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b addedToken) int { return cmp.Compare(a.ID, b.ID) })
	return all, changed, nil
}

// names reports whether a token has a role.
func (d description) names(text string) bool {
	for _, a := range d.roles {
		if a.Content == text {
			return true
		}
	}
	return false
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
