package report

import (
	"fmt"
	"slices"
	"strings"
)

// Markdown renders the report for people.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# gpupipe report\n\ngpupipe %s, %s, budget %s.\n\n", r.Version, r.Started.Format("2006-01-02 15:04 MST"), r.Budget)
	problems := r.Problems()
	switch {
	case !r.Done:
		b.WriteString("**Incomplete:** the program stopped, or still runs. What follows is what it had by then.\n\n")
	case len(problems) == 0:
		b.WriteString("**Everything that ran passed.**\n\n")
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "- **%s**\n", p)
	}
	b.WriteString("\n## Machine\n\n")
	rows := slices.DeleteFunc(r.System.rows(), func(row []string) bool { return strings.Trim(row[1], ", ") == "" })
	writeTable(&b, Table{Head: []string{"", ""}, Rows: rows})
	for _, subject := range r.Subjects {
		fmt.Fprintf(&b, "## %s\n\n", subject.Title)
		overview := Table{Head: []string{"section", "result", "seconds", "limit", ""}}
		for _, s := range subject.Sections {
			overview.Rows = append(overview.Rows, []string{s.Name, string(s.Status), fmt.Sprintf("%.1f", s.Seconds),
				fmt.Sprintf("%.0f", s.Limit), s.Note})
		}
		writeTable(&b, overview)
		for _, s := range subject.Sections {
			s.write(&b)
		}
	}
	return b.String()
}

func (s Section) write(b *strings.Builder) {
	if len(s.Errors) == 0 && !slices.ContainsFunc(s.Tables, func(t Table) bool { return len(t.Rows) > 0 }) {
		return
	}
	fmt.Fprintf(b, "### %s\n\n", s.Name)
	if len(s.Errors) > 0 {
		fmt.Fprintf(b, "`gpupipe %s` %s:\n\n```\n%s\n```\n\n", strings.Join(s.Command, " "), s.Status,
			strings.ReplaceAll(strings.Join(s.Errors, "\n"), "```", "'''"))
	}
	for _, t := range s.Tables {
		writeTable(b, t)
	}
}

var cell = strings.NewReplacer("|", `\|`, "\n", " ", "\r", " ")

func writeTable(b *strings.Builder, t Table) {
	if len(t.Rows) == 0 {
		return
	}
	if t.Title != "" {
		fmt.Fprintf(b, "%s\n\n", t.Title)
	}
	row := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			fmt.Fprintf(b, " %s |", cell.Replace(c))
		}
		b.WriteString("\n")
	}
	row(t.Head)
	b.WriteString("|" + strings.Repeat(" --- |", len(t.Head)) + "\n")
	for _, r := range t.Rows {
		row(r)
	}
	b.WriteString("\n")
}
