package mockmodel

import (
	"strconv"
	"strings"
)

// matches tells whether a request fulfils the conditions of a rule. It returns the groups of the
// regexp.
func (r *Rule) matches(q *request) (groups []string, ok bool) {
	m := &r.Match
	last := q.last()
	text := last.text()
	turn, step := q.turn()
	groups = r.regexp.FindStringSubmatch(text)
	for _, fulfilled := range []bool{
		groups != nil,
		m.Turn == 0 || m.Turn == turn,
		m.Step == 0 || m.Step == step,
		m.Role == "" || m.Role == last.Role,
		m.Last == "" || strings.Contains(text, m.Last),
		m.ToolResult == "" || last.Role == "tool" && strings.Contains(text, m.ToolResult),
		m.Tool == "" || m.Tool == q.tool(),
		m.Offers == "" || q.offers(m.Offers),
		m.System == "" || q.inSystem(m.System),
		m.Model == "" || m.Model == q.Model,
		m.Key == "" || m.Key == q.key,
	} {
		if !fulfilled {
			return nil, false
		}
	}
	return groups, true
}

// fill replaces the placeholders of a text.
func (q *request) fill(text string, groups []string) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	pairs := []string{"{{last}}", q.last().text(), "{{user}}", q.user()}
	for i, g := range groups {
		pairs = append(pairs, "{{"+strconv.Itoa(i)+"}}", g)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// fillAll replaces the placeholders in all texts of a value.
func (q *request) fillAll(v any, groups []string) any {
	switch v := v.(type) {
	case string:
		return q.fill(v, groups)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = q.fillAll(v[i], groups)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = q.fillAll(v[k], groups)
		}
		return out
	}
	return v
}
