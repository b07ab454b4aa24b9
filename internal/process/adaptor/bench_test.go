package adaptor

import (
	"os"
	"strings"
	"testing"
)

// BenchmarkParse measures lines of an agent, most of which state something.
func BenchmarkParse(b *testing.B) {
	text, err := os.ReadFile("testdata/claude-code.txt")
	if err != nil {
		b.Fatal(err)
	}
	var lines [][]byte
	size := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "\t") {
			lines = append(lines, []byte(line))
			size += len(line)
		}
	}
	a := load(b, "claude-code")
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, line := range lines {
			a.Parse(line)
		}
	}
}
