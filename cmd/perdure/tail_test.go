package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure/internal/process/jobdir"
)

// newTail makes a tail of the files of a job. It returns the one of stdout, and what is shown of it.
func newTail(t *testing.T) (*tail, *os.File, *bytes.Buffer) {
	t.Helper()
	d, err := jobdir.Of(t.TempDir(), "job")
	if err == nil {
		err = d.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, stream := range []string{jobdir.Stdout, jobdir.Stderr} {
		f, err := d.OpenOutput(stream)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	var out, errs bytes.Buffer
	shows := &tail{dir: d, printer: newOutputPrinter(nil, "job", shown{}, &out, &errs)}
	t.Cleanup(shows.close)
	return shows, files[0], &out
}

// more writes to a file, and shows it.
func (t *tail) more(test *testing.T, f *os.File, text string) {
	test.Helper()
	_, err := f.WriteString(text)
	if err == nil {
		err = t.copy()
	}
	if err != nil {
		test.Fatal(err)
	}
}

// A command truncates its output and writes as much again.
func TestTailShowsOutputOfTheSameSize(t *testing.T) {
	shows, f, out := newTail(t)
	shows.more(t, f, "first\n")
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	shows.more(t, f, "other\n")
	shows.more(t, f, "third\n")
	if got := out.String(); got != "first\nother\nthird\n" {
		t.Errorf("shown = %q, want all that was written", got)
	}
}

// The runner gives bytes back to the disk that were shown. The file is not shown again.
func TestTailGoesOnAfterAHole(t *testing.T) {
	shows, f, out := newTail(t)
	all := strings.Repeat("x", 2*jobdir.HoleAlign)
	shows.more(t, f, all)
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0,
		2*jobdir.HoleAlign); err != nil {
		t.Fatalf("the test needs a file system with holes: %v", err)
	}
	shows.more(t, f, "more")
	if got, at := out.String(), shows.at.Stdout; got != all+"more" || at != int64(len(all)+4) {
		t.Errorf("shown = %d bytes that end with %q, up to %d; want %d and more", len(got),
			got[max(0, len(got)-10):], at, len(all)+4)
	}
}
