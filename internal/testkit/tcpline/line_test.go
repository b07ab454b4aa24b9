package tcpline

import (
	"bufio"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testkit/eventually"
)

// An echo is a server that answers each line, and tells what it has heard.
func echo(t *testing.T) (addr string, heard chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	heard = make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for s := bufio.NewScanner(c); s.Scan(); {
					heard <- s.Text()
					fmt.Fprintln(c, "re:", s.Text())
				}
				heard <- "end"
				c.Close()
			}()
		}
	}()
	return l.Addr().String(), heard
}

// A caller is a connection through the line.
type caller struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func call(t *testing.T, l *Line) *caller {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{t, c, bufio.NewReader(c)}
}

func (c *caller) say(text string) { fmt.Fprintln(c.c, text) }

// silent fails the test if something arrives within a moment, which it does at once on a line that is well.
func (c *caller) silent() {
	c.t.Helper()
	c.c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	defer c.c.SetReadDeadline(time.Time{})
	if b, err := c.r.Peek(1); err == nil {
		c.t.Errorf("%q arrived over a line that holds back", b)
	}
}

func (c *caller) hears(want string) {
	c.t.Helper()
	if got, err := c.r.ReadString('\n'); err != nil || got != want+"\n" {
		c.t.Errorf("heard %q (%v), want %q", got, err, want)
	}
}

func expect(t *testing.T, heard chan string, want string) {
	t.Helper()
	if got := <-heard; got != want {
		t.Errorf("the server heard %q, want %q", got, want)
	}
}

func TestLineCarriesBothDirections(t *testing.T) {
	addr, heard := echo(t)
	c := call(t, New(t, addr))
	c.say("a")
	expect(t, heard, "a")
	c.hears("re: a")
	c.c.Close()
	expect(t, heard, "end")
}

func TestCutLineClosesConnections(t *testing.T) {
	addr, heard := echo(t)
	l := New(t, addr)
	c := call(t, l)
	c.say("a")
	c.hears("re: a")
	expect(t, heard, "a")
	l.Set(State{Cut: true})
	expect(t, heard, "end")
	for _, c := range []*caller{c, call(t, l)} {
		if _, err := c.r.ReadByte(); err == nil {
			t.Error("a connection over a line that is cut is open")
		}
	}
	l.Set(State{})
	c = call(t, l)
	c.say("b")
	c.hears("re: b")
}

func TestOneWayLineCarriesOneDirection(t *testing.T) {
	addr, heard := echo(t)
	l := New(t, addr)
	c := call(t, l)
	l.Set(State{HoldDown: true})
	c.say("a")
	expect(t, heard, "a") // the request arrives
	c.silent()            // and the answer does not
	l.Set(State{})
	c.hears("re: a")

	l.Set(State{HoldUp: true})
	c.say("b")
	select {
	case got := <-heard:
		t.Errorf("the server heard %q over a line that holds back", got)
	case <-time.After(20 * time.Millisecond):
	}
	l.Set(State{})
	c.hears("re: b")
}

// Neither side of a half open connection learns of the end of the other. The bytes sent meanwhile arrive later.
func TestHalfOpenConnectionHidesTheEnd(t *testing.T) {
	addr, heard := echo(t)
	l := New(t, addr)
	c := call(t, l)
	c.say("a")
	expect(t, heard, "a")
	c.hears("re: a")
	l.Set(State{HoldUp: true, HoldDown: true})
	c.say("late")
	c.c.Close()
	late := call(t, l) // is accepted, and gets no answer
	late.say("b")
	late.silent()
	l.Set(State{})
	got := map[string]bool{<-heard: true, <-heard: true, <-heard: true}
	if !got["late"] || !got["end"] || !got["b"] {
		t.Errorf("the server heard %v, want what was sent meanwhile, and the end", got)
	}
}

func TestResetDropsWhatIsHeldBack(t *testing.T) {
	addr, heard := echo(t)
	l := New(t, addr)
	c := call(t, l)
	c.say("a")
	expect(t, heard, "a")
	c.hears("re: a")
	l.Set(State{HoldUp: true})
	c.say("lost")
	l.Reset()
	expect(t, heard, "end")
	l.Set(State{})
	c = call(t, l)
	c.say("b")
	expect(t, heard, "b")
}

func TestDelayedLineIsLate(t *testing.T) {
	addr, _ := echo(t)
	l := New(t, addr)
	l.Set(State{Delay: 30 * time.Millisecond})
	c := call(t, l)
	begun := time.Now()
	c.say("a")
	c.hears("re: a")
	if took := time.Since(begun); took < 60*time.Millisecond {
		t.Errorf("there and back took %s, want at least two delays of 30ms", took)
	}
}

func TestLineToNobodyClosesConnections(t *testing.T) {
	l := New(t, "127.0.0.1:1")
	eventually.True(t, "the connection is closed", func() bool {
		_, err := call(t, l).r.ReadByte()
		return err != nil
	})
}

// A line is cut when a text comes, and not before the texts in front of it came.
func TestCutAtAText(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint("after=", after), func(t *testing.T) {
			addr, heard := echo(t)
			l := New(t, addr)
			first, second := call(t, l), call(t, l)
			cut := l.CutAt(after, "one", "two")
			first.say("two")
			expect(t, heard, "two")
			first.hears("re: two")
			first.say("one")
			expect(t, heard, "one")
			first.hears("re: one")
			second.say("two")
			<-cut
			if after {
				if got := <-heard; got != "two" && got != "end" { // the end of the first caller
					t.Errorf("the server heard %q, want the text before the cut", got)
				}
			}
			if _, err := second.r.ReadString('\n'); err == nil {
				t.Error("an answer came over a line that is cut")
			}
			l.Set(State{})
			third := call(t, l)
			third.say("two")
			third.hears("re: two")
		})
	}
}
