package api

import (
	"strings"
	"testing"
)

func TestFilesThatAreNoExportAreRefused(t *testing.T) {
	for file, want := range map[string]string{
		``:                     "is no exported journal",
		`{"run_id":"r"}`:       "perdure journal RUN --export FILE",
		`{"replay_version":1}`: "perdure journal RUN --export FILE",
		`{"replay_version":2,"run_id":"r","kind":"k"}`: "has version 2, and this program reads up to 1",
	} {
		if _, err := ParseReplay([]byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseReplay(%s): error %v, want %q", file, err, want)
		}
	}
	r, err := ParseReplay([]byte(`{"replay_version":1,"run_id":"r","kind":"k","added":true,"journal":[{"seq":1}]}`))
	if err != nil || r.RunID != "r" || len(r.Journal) != 1 {
		t.Errorf("ParseReplay of a file with a field that is new = %+v (error %v), want it read", r, err)
	}
}
