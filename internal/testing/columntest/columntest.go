// Package columntest has what the tests of readers of columnar files share.
package columntest

// File is a columnar file.
type File[C Column] interface {
	Columns() []string
	Column(name string) (C, error)
}

// Column is the texts of a column.
type Column interface {
	Next() bool
	Null() bool
	Text() []byte
	Err() error
	Close()
}

// Read returns a column of a file that was opened with an error or without; nil stands for null.
func Read[C Column, F File[C]](f F, err error, name string) (texts []*string, _ error) {
	if err != nil {
		return nil, err
	}
	c, err := f.Column(name)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for c.Next() {
		if c.Null() {
			texts = append(texts, nil)
			continue
		}
		text := string(c.Text())
		texts = append(texts, &text)
	}
	return texts, c.Err()
}

// ReadAll reads at most the first 10,000 texts of each column that can be read, whatever the file holds.
func ReadAll[C Column, F File[C]](f F) {
	for _, name := range f.Columns() {
		c, err := f.Column(name)
		if err != nil {
			continue
		}
		for n := 0; n < 10_000 && c.Next(); n++ {
			_ = string(c.Text())
		}
		c.Close()
	}
}
