package worker

import (
	"fmt"
	"os"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// LoadTrust reads trusted public keys from files, such as "perdure keys signing public" writes.
func LoadTrust(files ...string) (*perdure.Trust, error) {
	var sets [][]byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the keys that are trusted: %w", err)
		}
		sets = append(sets, b)
	}
	t, err := perdure.ParseTrust(sets...)
	if err != nil {
		return nil, fmt.Errorf("read the keys that are trusted: %w", err)
	}
	return t, nil
}

// verify checks the signature of a granted run, and that its deadline has not passed long ago.
// Without Options.Trust nothing is checked.
func (w *Worker) verify(g *api.Grant) error {
	if w.opt.Trust == nil {
		return nil
	}
	return session.Verify(w.opt.Trust, g)
}
