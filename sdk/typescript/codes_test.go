package typescript

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure/api"
)

var update = flag.Bool("update", false, "write the tables that are made from Go")

// compare compares what is between two marks of a file, or writes it.
func compare(t *testing.T, file, begin, end, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	got, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q … %q", file, begin, end)
	}
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not as it is made from Go: run go test ./sdk/typescript -update\n%s", file, want)
	}
	if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCodesAreThoseOfTheServer(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n/** The codes of refusals, with their status and what they say. */\nexport const codes = {\n")
	for _, d := range api.Codes {
		fmt.Fprintf(&b, "  %s: { status: %d, title: %q },\n", d.Code, d.Status, d.Title)
	}
	b.WriteString("} as const;\n")
	compare(t, "src/problems.ts", "// begin of codes", "// end of codes", b.String())
}
