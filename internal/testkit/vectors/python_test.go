package vectors

import (
	"os/exec"
	"testing"
)

// A program in another language computes the canonical texts, digests, keys and ids of the vectors by
// docs/journal.md alone, and comes to the same.
func TestVectorsAgreeWithAnotherLanguage(t *testing.T) {
	if *update {
		return // the stories are written after this
	}
	cmd := exec.CommandContext(t.Context(), "python3", "check.py")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("python3 testdata/journal/check.py: %v\n%s", err, out)
	}
}
