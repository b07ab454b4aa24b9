package client

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

type told struct{ Event, Data string }

func readAll(r io.Reader) (out []told, err error) {
	frames := newFrameReader(r)
	for {
		f, err := frames.next()
		if err != nil {
			return out, err
		}
		out = append(out, told{f.event, string(f.data)})
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
				got, err := readAll(r)
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
		got, err := readAll(io.MultiReader(strings.NewReader(x.first), r))
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
		if f, err := newFrameReader(r).next(); err != nil || string(f.data) != "1" {
			t.Errorf("frame that ends with %q: data %q, %v, want 1", end, f.data, err)
		}
		w.Close()
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
			got, err := readAll(r)
			if !errors.Is(err, io.EOF) || !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: got %q, want %q (%v)", in, got, want, err)
			}
		}
	})
}
