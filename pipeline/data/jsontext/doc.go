// Package jsontext reads one field of JSON objects from a stream: objects one a line, objects that are spread over
// several lines, or the elements of one array. The stream need not be trusted.
//
//	r := jsontext.NewReader(stream, "meta.text")
//	for r.Next() { use(r.Text()) }       // nil: the field is null or absent
//	err := r.Err()
//
// A stream is refused if none of its objects has the field.
//
// The grammar is RFC 8259's, with NaN, Infinity and -Infinity, which Python writes. Of a key that an object has twice
// the last one counts, as in Python. Bytes of a text that are not UTF-8 stay as they are. Half of a surrogate pair
// becomes U+FFFD. Memory is bounded by MaxValue for an object; of its values only the text is kept.
package jsontext
