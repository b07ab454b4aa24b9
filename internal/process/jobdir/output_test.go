package jobdir

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
)

// copied is what the log of a run has of its output.
type copied struct {
	t      *testing.T
	d      Dir
	log    Offsets
	bytes  map[string][]byte
	inline int
	stored int
	ids    map[string]bool
}

// copyAll copies the output up to have, and checks each step.
func (c *copied) copyAll(have Offsets, ended bool) {
	c.t.Helper()
	for {
		s, more, err := c.d.NextOutput(3, c.log, have, ended)
		if err != nil {
			c.t.Fatal(err)
		}
		if !more {
			return
		}
		if c.ids[s.Commit.ID] {
			c.t.Fatalf("the commit id %s is used twice", s.Commit.ID)
		}
		c.ids[s.Commit.ID] = true
		if err := s.Commit.Validate(); err != nil {
			c.t.Fatalf("step from %+v: %v", c.log, err)
		}
		for _, e := range s.Commit.Events {
			c.add(&s, e)
		}
		view := s.Commit.Views[0].Value
		if got, other := LoggedOutput(view, 3), LoggedOutput(view, 4); got != s.To || other != (Offsets{}) {
			c.t.Fatalf("view %s means %+v, want %+v, and nothing for another epoch", view, got, s.To)
		}
		c.log = s.To
	}
}

func (c *copied) add(s *Step, e perdure.Emitted) {
	c.t.Helper()
	var o Output
	if err := json.Unmarshal(e.Data, &o); err != nil || e.Type != EventOutput {
		c.t.Fatalf("event %s %s: %v", e.Type, e.Data, err)
	}
	if o.Offset != int64(len(c.bytes[o.Stream])) {
		c.t.Fatalf("%s goes on at %d after %d bytes", o.Stream, o.Offset, len(c.bytes[o.Stream]))
	}
	b := o.Bytes()
	if o.Artifact != "" {
		c.stored++
		b = make([]byte, o.Size)
		if _, err := c.d.ReadOutput(o.Stream, b, o.Offset); err != nil {
			c.t.Fatal(err)
		}
		if perdure.CheckArtifactName(o.Artifact) != nil || o.Artifact != s.Artifact || o.Size != s.Size ||
			o.Size > SegmentMax {
			c.t.Fatalf("segment %+v does not fit %+v", s, o)
		}
	} else {
		c.inline += len(b)
	}
	if int64(len(b)) != o.Size {
		c.t.Fatalf("event of %d bytes says %d", len(b), o.Size)
	}
	c.bytes[o.Stream] = append(c.bytes[o.Stream], b...)
}

func TestOutputIsCopiedByteForByte(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	binary := make([]byte, 300_000)
	for i := range binary {
		binary[i] = byte(rng.Uint32())
	}
	for name, x := range map[string]struct{ out, err []byte }{
		"nothing":  {},
		"one line": {out: []byte("hello\n")},
		"both":     {out: bytes.Repeat([]byte("out\n"), 50_000), err: bytes.Repeat([]byte("err\n"), 70_000)},
		"binary":   {out: binary, err: []byte{0, 0xff, 0xc3}},
		"umlauts":  {out: []byte(strings.Repeat("äöü€𝄞", 40_000))},
		"large":    {out: bytes.Repeat([]byte("0123456789abcdef"), 3<<20), err: bytes.Repeat([]byte("e"), 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			d := job(t)
			c := &copied{t: t, d: d, bytes: map[string][]byte{}, ids: map[string]bool{}}
			files := map[string]*os.File{}
			for _, s := range []string{Stdout, Stderr} {
				f, err := d.OpenOutput(s)
				ok(t, err)
				defer f.Close()
				files[s] = f
			}
			// The files grow in parts of any size, and are copied in between.
			var have Offsets
			for left := [2][]byte{x.out, x.err}; len(left[0])+len(left[1]) > 0; {
				for i, s := range []string{Stdout, Stderr} {
					n := min(len(left[i]), 1+rng.IntN(1+len(x.out)/3))
					_, err := files[s].Write(left[i][:n])
					ok(t, err)
					left[i] = left[i][n:]
					*have.Of(s) += int64(n)
				}
				c.copyAll(have, false)
			}
			c.copyAll(have, true)
			if !bytes.Equal(c.bytes[Stdout], x.out) || !bytes.Equal(c.bytes[Stderr], x.err) {
				t.Errorf("the log has %d and %d bytes, want the %d and %d that were written",
					len(c.bytes[Stdout]), len(c.bytes[Stderr]), len(x.out), len(x.err))
			}
			if c.inline > inlineMax+commitMax || name == "large" && c.stored == 0 || c.stored > 50 {
				t.Errorf("%d bytes are in events, and %d artifacts were stored", c.inline, c.stored)
			}
		})
	}
}

func TestTextStaysTextWhereverItIsCut(t *testing.T) {
	d := job(t)
	text := strings.Repeat("€", chunkMax)
	f, err := d.OpenOutput(Stdout)
	ok(t, err)
	defer f.Close()
	_, err = f.WriteString(text)
	ok(t, err)
	for cut := range int64(7) {
		s, _, err := d.NextOutput(1, Offsets{}, Offsets{Stdout: chunkMax + cut}, false)
		ok(t, err)
		for _, e := range s.Commit.Events {
			if !bytes.Contains(e.Data, []byte(`"text"`)) {
				t.Errorf("cut after %d bytes: the event %.80s has no text", chunkMax+cut, e.Data)
			}
		}
	}
}

// Output that was given back to the disk is told as dropped, and not as zeros.
func TestHolesAreDroppedOutput(t *testing.T) {
	d, err := Of(t.TempDir(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Create(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(d.file("stdout.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := bytes.Repeat([]byte("line of output\n"), 20_000)
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
	const hole = 2 * HoleAlign
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, hole); err != nil {
		t.Fatal(err)
	}
	from, have := Offsets{Stdout: 100}, Offsets{Stdout: int64(len(text))}
	step, more, err := d.NextOutput(1, from, have, true)
	if err != nil || !more || step.To.Stdout != hole || step.Commit.Events[0].Type != EventDropped {
		t.Fatalf("step = %+v, %t, %v; want that bytes 100 to %d were dropped", step, more, err, hole)
	}
	step, more, err = d.NextOutput(1, step.To, have, true)
	if err != nil || !more || step.Commit.Events[0].Type != EventOutput {
		t.Fatalf("step = %+v, %t, %v; want output", step, more, err)
	}
	var o Output
	if err := json.Unmarshal(step.Commit.Events[0].Data, &o); err != nil || !bytes.HasPrefix(text[hole:], o.Bytes()) {
		t.Errorf("output at %d is not what was written there: %v", o.Offset, err)
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0,
		int64(len(text))+HoleAlign); err != nil {
		t.Fatal(err)
	}
	if step, _, err = d.NextOutput(1, from, have, true); err != nil || step.To != have {
		t.Errorf("step of a file that is one hole = %+v, %v; want all of it dropped", step, err)
	}
}
