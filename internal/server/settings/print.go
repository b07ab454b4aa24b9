package settings

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// Text returns the value of a setting as Print shows it.
func (c *Config) Text(name string) string { return find(c.Table(), name).Text() }

// Print prints the effective values, without passwords.
func (c *Config) Print(w io.Writer) {
	inPolicy := false
	for _, s := range c.Table() {
		name, ok := s.inPolicy()
		if !ok {
			fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-16s  %s", s.Name, s.Text()), " "))
			continue
		}
		if !inPolicy {
			inPolicy = true
			fmt.Fprintf(w, "\n[%s]\n", policySection)
		}
		mark := ""
		if c.given[s.Name] {
			mark = "  (set)"
		}
		fmt.Fprintf(w, "%-26s %s%s\n", name, s.Text(), mark)
	}
	c.Policy.Liveness.Each(func(section []string, t *perdure.Thresholds) {
		fmt.Fprintf(w, "\n[%s]\n", thresholdName(section))
		for _, s := range t.Settings() {
			if d := *s.Value.(*time.Duration); d != 0 {
				fmt.Fprintf(w, "%-26s %s\n", s.Name, d)
			}
		}
	})
}

// JSON returns the effective values for programs, without passwords.
func (c *Config) JSON() map[string]any {
	policy, liveness := map[string]string{}, map[string]any{}
	out := map[string]any{policySection: policy, livenessSection: liveness}
	for _, s := range c.Table() {
		if name, ok := s.inPolicy(); ok {
			policy[name] = s.Text()
		} else {
			out[s.Name] = s.json()
		}
	}
	c.Policy.Liveness.Each(func(section []string, t *perdure.Thresholds) {
		at := liveness
		for _, key := range section {
			if at[key] == nil {
				at[key] = map[string]any{}
			}
			at = at[key].(map[string]any)
		}
		for _, s := range t.Settings() {
			if d := *s.Value.(*time.Duration); d != 0 {
				at[s.Name] = d.String()
			}
		}
	})
	return out
}
