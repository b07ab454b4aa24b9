package jobdir

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// shownMax is the size up to which a run's log shows the data of an event.
const shownMax = 64 << 10

// Every event of output is small enough to be shown, and all of them together have all bytes.
func TestOutputEventsAreShown(t *testing.T) {
	for name, b := range map[string][]byte{
		"text":               []byte(strings.Repeat("0123456789abcde\n", 20_000)),
		"binary":             bytes.Repeat([]byte{0xff, 0, 1, 2}, 50_000),
		"control characters": bytes.Repeat([]byte{1}, 200_000),
		"quotes":             bytes.Repeat([]byte{'"', '\\'}, 100_000),
		"separators":         []byte(strings.Repeat("\u2028", 60_000)),
		"characters":         []byte("x" + strings.Repeat("日本", 40_000)),
		"one byte":           {'a'},
		"nothing":            nil,
	} {
		var got []byte
		next := Next{Epoch: 1, Inline: true, Read: func(_ string, to []byte, at int64) (int, error) {
			return bytes.NewReader(b).ReadAt(to, at)
		}}
		for from, have := (Offsets{}), (Offsets{Stdout: int64(len(b))}); ; {
			step, more, err := next.Output(from, have, true)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !more {
				break
			}
			for _, e := range step.Commit.Events {
				if err := perdure.CheckValue("data", e.Data); err != nil || len(e.Data) > shownMax {
					t.Errorf("%s: an event has %d bytes (error %v), want at most %d", name, len(e.Data), err, shownMax)
				}
				var o Output
				if err := json.Unmarshal(e.Data, &o); err != nil {
					t.Fatal(err)
				}
				if o.Offset != int64(len(got)) || o.Size != int64(len(o.Bytes())) {
					t.Fatalf("%s: an event has offset %d and size %d, want %d and %d", name, o.Offset, o.Size, len(got),
						len(o.Bytes()))
				}
				got = append(got, o.Bytes()...)
			}
			from = step.To
		}
		if !bytes.Equal(got, b) {
			t.Errorf("%s: the events have %d bytes, want the %d of the output", name, len(got), len(b))
		}

		d, err := Of(t.TempDir(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Create(); err != nil {
			t.Fatal(err)
		}
		f, err := d.OpenOutput(Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		f.Close()
		have := Offsets{Stderr: int64(len(b))}
		for from := (Offsets{}); ; {
			s, more, err := d.NextOutput(1, from, have, true)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if !more {
				if from != have {
					t.Errorf("%s: the log has %+v, want %+v", name, from, have)
				}
				break
			}
			for _, e := range s.Commit.Events {
				if len(e.Data) > shownMax {
					t.Errorf("%s: an event of a commit has %d bytes, want at most %d", name, len(e.Data), shownMax)
				}
			}
			from = s.To
		}
	}
}
