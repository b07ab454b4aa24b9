package release

import (
	"regexp"
	"testing"
)

func TestVersionHasThreeNumbers(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-dev)?$`).MatchString(Version) {
		t.Errorf("the version is %q, want three numbers, and -dev between two releases", Version)
	}
}

func TestOlder(t *testing.T) {
	for _, x := range []struct {
		a, b string
		want bool
	}{
		{"0.1.0", "0.2.0", true}, {"0.2.0", "0.1.0", false}, {"0.2.0", "0.2.0", false}, {"0.9.1", "0.10.0", true},
		{"1.0.0", "0.9.9", false}, {"0.2.0", "0.2.1", true}, {"0.2.0-dev", "0.2.0", false},
		{"0.2.0", "0.2.0-dev", false}, {"0.1.0", "0.2.0-dev", true}, {"", "0.1.0", true}, {"main", "0.0.0", true},
		{"", "", false},
	} {
		if got := Older(x.a, x.b); got != x.want {
			t.Errorf("Older(%q, %q) = %t, want %t", x.a, x.b, got, x.want)
		}
	}
}
