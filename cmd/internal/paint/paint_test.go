package paint

import (
	"bytes"
	"testing"
)

func TestColourOnlyWhereItIsWanted(t *testing.T) {
	for _, c := range []struct {
		name, force, no string
		want            bool
	}{
		{"a pipe", "", "", false},
		{"forced", "1", "", true},
		{"forced and refused", "1", "1", true},
		{"forced off", "0", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FORCE_COLOR", c.force)
			t.Setenv("NO_COLOR", c.no)
			if got := Colourful(new(bytes.Buffer)); got != c.want {
				t.Errorf("colours: %v, want %v", got, c.want)
			}
		})
	}
}
