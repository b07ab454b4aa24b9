package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

type told struct{ Event, Data string }

var errFrame = errors.New("too large")

const maxFrame = 2 << 20

func newReader(r io.Reader) *Reader {
	return NewReader(bufio.NewReaderSize(r, 16<<10), maxFrame, errFrame)
}

func readAll(frames *Reader) (out []told, err error) {
	for {
		event, data, err := frames.Next()
		if err != nil {
			return out, err
		}
		out = append(out, told{event, string(data)})
	}
}

func TestFramesFollowTheStandard(t *testing.T) {
	for _, x := range []struct {
		name, in string
		want     []told
	}{
		{"nothing", "", nil},
		{"one", "id: 1\nevent: run:created\ndata: {}\n\n", []told{{"run:created", "{}"}}},
		{"CR", "event: a\rdata: 1\r\revent: b\rdata: 2\r\r", []told{{"a", "1"}, {"b", "2"}}},
		{"CRLF", "event: a\r\ndata: 1\r\n\r\nevent: b\r\ndata: 2\r\n\r\n", []told{{"a", "1"}, {"b", "2"}}},
		{"mixed ends", "event: a\rdata: 1\n\r\ndata: 2\r\n\n", []told{{"a", "1"}, {"", "2"}}},
		{"a byte order mark", "\xef\xbb\xbfdata: 1\n\n", []told{{"", "1"}}},
		{"a byte order mark later is none", "data: 1\n\n\xef\xbb\xbfdata: 2\n\n", []told{{"", "1"}}},
		{"comments", ": hb\n: hb\ndata: 1\n: hb\n\n: hb\n\n\n", []told{{"", "1"}}},
		{"data of several lines", "data: a\ndata: b\ndata:\ndata:  c\n\n", []told{{"", "a\nb\n\n c"}}},
		{"empty data", "data\n\ndata\ndata\n\n", []told{{"", ""}, {"", "\n"}}},
		{"a frame without data", "event: a\n\ndata: 1\n\n", []told{{"", "1"}}},
		{"a frame that breaks off", "data: 1\n\ndata: 2\n", []told{{"", "1"}}},
		{"a line that breaks off", "data: 1\n\ndata: 2", []told{{"", "1"}}},
		{"one space is taken", "data:1\n\ndata: 1\n\ndata:  1\n\n", []told{{"", "1"}, {"", "1"}, {"", " 1"}}},
		{"colons in a value", "data: a:b: c\n\n", []told{{"", "a:b: c"}}},
		{"unknown fields and pauses", "retry: 1000\nfoo: bar\nfoo\nid: 7\ndata: 1\n\n", []told{{"", "1"}}},
		{"names are exact", "Data: 1\n data: 2\ndata : 3\n\n", nil},
		{"the last name counts", "event: a\nevent: b\ndata: 1\n\n", []told{{"b", "1"}}},
		{"longer than any buffer", "data: " + strings.Repeat("x", 1<<20) + "\n\n",
			[]told{{"", strings.Repeat("x", 1<<20)}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{
				"at once":      strings.NewReader(x.in),
				"byte by byte": iotest.OneByteReader(strings.NewReader(x.in)),
			} {
				got, err := readAll(newReader(r))
				if !errors.Is(err, io.EOF) || !reflect.DeepEqual(got, x.want) {
					t.Errorf("%s: frames %.200q, %v, want %.200q and io.EOF", how, got, err, x.want)
				}
			}
		})
	}
}

func TestFrameSizeIsLimited(t *testing.T) {
	for _, x := range []struct{ name, first, then string }{
		{"a line without an end", "data: ", strings.Repeat("x", 1000)},
		{"a comment without an end", ": ", strings.Repeat("x", 1000)},
		{"data without an end", "", "data: " + strings.Repeat("x", 1000) + "\n"},
		{"empty data, for ever", "", strings.Repeat("data\n", 200)},
	} {
		r := &endless{text: []byte(x.then)}
		got, err := readAll(newReader(io.MultiReader(strings.NewReader(x.first), r)))
		if !errors.Is(err, errFrame) || len(got) > 0 || r.read > 6*maxFrame {
			t.Errorf("%s: %d frames, %v, after %d bytes, want none and %v", x.name, len(got), err, r.read, errFrame)
		}
	}
}

// The reader does not wait for the LF of a CRLF, which may never come.
func TestFrameIsReturnedAtItsLastByte(t *testing.T) {
	for _, end := range []string{"\n\n", "\r\r", "\r\n\r"} {
		r, w := io.Pipe()
		go io.WriteString(w, "data: 1"+end)
		if _, data, err := newReader(r).Next(); err != nil || string(data) != "1" {
			t.Errorf("frame that ends with %q: data %q, %v, want 1", end, data, err)
		}
		w.Close()
	}
}

// A last frame without its end is returned if the caller wants it, whole lines or not.
func TestLastFrameWithoutItsEnd(t *testing.T) {
	for _, x := range []struct {
		in   string
		want []told
	}{
		{"data: 1\n\ndata: 2\n", []told{{"", "1"}, {"", "2"}}},
		{"data: 1\n\nevent: a\ndata: 2", []told{{"", "1"}, {"a", "2"}}},
		{"data: 1\n\nevent: a", []told{{"", "1"}}},
		{"\xef\xbb\xbfdata: 1", []told{{"", "1"}}},
	} {
		for how, r := range map[string]io.Reader{
			"at once":      strings.NewReader(x.in),
			"byte by byte": iotest.OneByteReader(strings.NewReader(x.in)),
		} {
			f := newReader(r)
			f.Unended = true
			if got, err := readAll(f); !errors.Is(err, io.EOF) || !reflect.DeepEqual(got, x.want) {
				t.Errorf("%q, %s: frames %q, %v, want %q and io.EOF", x.in, how, got, err, x.want)
			}
		}
	}
}

// A body of another kind is told from an event stream by its lines.
func TestLinesAreCounted(t *testing.T) {
	for _, x := range []struct {
		in             string
		known, unknown int
	}{
		{"", 0, 0}, {"<html>\nhello\n", 0, 2}, {": hb\nid: 1\nretry: 5\nevent: a\ndata: 1\n\n", 5, 0},
		{"data: 1\nfoo: bar\n\n", 1, 1},
	} {
		f := newReader(strings.NewReader(x.in))
		if _, err := readAll(f); !errors.Is(err, io.EOF) || f.Known != x.known || f.Unknown != x.unknown {
			t.Errorf("%q: %d known and %d unknown lines (%v), want %d and %d", x.in, f.Known, f.Unknown, err, x.known,
				x.unknown)
		}
	}
}

// A line and a frame have bounds of their own, as they are kept in memory.
func TestFramesAreBounded(t *testing.T) {
	const limit = 10_000
	for name, text := range map[string][2]string{"a line": {"data: ", "x"}, "a comment": {": ", "x"}, "a frame": {"",
		"data: x\n"}} {
		r := io.MultiReader(strings.NewReader(text[0]), &endless{text: []byte(text[1])})
		f := NewReader(bufio.NewReaderSize(io.LimitReader(r, 1<<20), 16), limit, errFrame)
		if _, _, err := f.Next(); !errors.Is(err, errFrame) || cap(f.line)+cap(f.data) > 3*limit {
			t.Errorf("%s without an end: error %v with %d bytes kept, want %v with at most %d", name, err,
				cap(f.line)+cap(f.data), errFrame, 3*limit)
		}
	}
}

// endless repeats a text without end.
type endless struct {
	text []byte
	at   int
	read int
}

func (r *endless) Read(b []byte) (n int, err error) {
	for n < len(b) {
		k := copy(b[n:], r.text[r.at:])
		r.at = (r.at + k) % len(r.text)
		n += k
	}
	r.read += n
	return n, nil
}

// plainly is a simple parser of a whole stream, as the standard describes it. The fuzz test
// compares with it.
func plainly(in []byte) (out []told) {
	in = bytes.TrimPrefix(in, []byte("\xef\xbb\xbf"))
	text := strings.ReplaceAll(strings.ReplaceAll(string(in), "\r\n", "\n"), "\r", "\n")
	event, data := "", ""
	lines := strings.Split(text, "\n")
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if data != "" {
				out = append(out, told{event, data[:len(data)-1]})
			}
			event, data = "", ""
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimPrefix(value, " "); name {
		case "event":
			event = value
		case "data":
			data += value + "\n"
		}
	}
	return out
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte("retry: 1000\n\nid: 0\nevent: stream:attached\ndata: {}\n\n" +
		": hb\nid: 1\nevent: run:created\ndata: {\"seq\":1}\n\n"))
	f.Add([]byte("\xef\xbb\xbfdata: a\r\ndata\r\rdata: b\n\r\n:x\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		want := plainly(in)
		for _, r := range []io.Reader{
			bytes.NewReader(in), iotest.OneByteReader(bytes.NewReader(in)),
			iotest.HalfReader(bytes.NewReader(in)), iotest.DataErrReader(bytes.NewReader(in)),
		} {
			got, err := readAll(newReader(r))
			if !errors.Is(err, io.EOF) || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: got %q, want %q (%v)", in, got, want, err)
			}
		}
	})
}
