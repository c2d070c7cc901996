package tokenizer

import (
	"maps"
	"slices"
)

// Special is what belongs to a tokenizer besides the tokens of texts: special tokens by their role, the tokens that end
// a document or an answer, and chat templates. The zero value has none of it. A Special is read only.
type Special struct {
	Roles     map[string]Token // by the names of Hugging Face's tokenizer_config.json, such as RoleEOS
	Ends      []uint32         // each ends a document and an answer; RoleEOS is among them
	Templates []Template       // of chats, in Jinja's language; the first one is the default
	Extra     []string         // further special tokens, which have no role
}

// Roles of tokens.
const (
	RoleBOS     = "bos_token"
	RoleEOS     = "eos_token" // is written after each document
	RolePad     = "pad_token"
	RoleUnknown = "unk_token"

	roleSEP  = "sep_token"
	roleCLS  = "cls_token"
	roleMask = "mask_token"
)

// roles lists all roles of Hugging Face's library.
var roles = []string{RoleBOS, RoleEOS, RoleUnknown, roleSEP, RolePad, roleCLS, roleMask}

// DefaultTemplate is the name of the chat template that is used unless another one is asked for.
const DefaultTemplate = "default"

// Token is a token with its spelling in texts.
type Token struct {
	ID   uint32
	Text string
}

// Template is a chat template.
type Template struct{ Name, Source string }

// ID returns the token that has a role.
func (s *Special) ID(role string) (id uint32, ok bool) {
	t, ok := s.Roles[role]
	return t.ID, ok
}

// IsEnd reports whether a token ends a document or an answer.
func (s *Special) IsEnd(id uint32) bool { return slices.Contains(s.Ends, id) }

// WrittenFirst lists Ends from the one that is written after a document on.
func (s *Special) WrittenFirst() []uint32 {
	id, ok := s.ID(RoleEOS)
	if !ok {
		return s.Ends
	}
	ids := []uint32{id}
	for _, end := range s.Ends {
		if end != id {
			ids = append(ids, end)
		}
	}
	return ids
}

// Template returns the chat template of a name; "" is the default one. It is empty if there is none.
func (s *Special) Template(name string) (source string) {
	if name == "" {
		name = DefaultTemplate
	}
	for _, t := range s.Templates {
		if t.Name == name {
			return t.Source
		}
	}
	return ""
}

// Texts are the spellings of the tokens that have a role, by role: the variables of a chat template.
func (s *Special) Texts() map[string]string {
	texts := make(map[string]string, len(s.Roles))
	for role, t := range s.Roles {
		texts[role] = t.Text
	}
	return texts
}

// newSpecial makes a Special of tokens by role and further ends.
func newSpecial(roles map[string]Token, ends []uint32) *Special {
	s := &Special{Roles: maps.Clone(roles)}
	for _, id := range ends {
		if !s.IsEnd(id) {
			s.Ends = append(s.Ends, id)
		}
	}
	if id, ok := s.ID(RoleEOS); ok && !s.IsEnd(id) {
		s.Ends = slices.Insert(s.Ends, 0, id)
	}
	return s
}
