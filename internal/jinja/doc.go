// Package jinja renders chat templates as Hugging Face's transformers does: Jinja 3.1 in an immutable sandbox with
// trim_blocks, lstrip_blocks, break and continue, the tag generation, and Python's values.
//
// Parse reads a template, and Template.Render writes the text for variables. What a template asks of Python that this
// package lacks is an error that names it: at Parse for tags, filters and tests, at Render for methods and formats. A
// template reads no files, and its work, its text and its depth are bounded.
//
// Values are nil, bool, int64, *big.Int, float64, string, and the types of this package: *List, Tuple and *Dict, whose
// keys keep their order. Decode reads them from JSON.
package jinja
