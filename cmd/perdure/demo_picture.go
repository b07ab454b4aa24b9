package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// pictureWidth is how many columns stand for the whole time.
const pictureWidth = 66

// A canvas is a row of the picture: a rune and a colour for each column.
type canvas struct {
	p     painter
	runes [pictureWidth + 1]rune
	hue   [pictureWidth + 1]string
}

// paper maps instants to columns.
type paper struct {
	p        painter
	from, to perdure.Instant
}

func (x *paper) column(at perdure.Instant) int {
	if at <= x.from {
		return 0
	}
	return min(pictureWidth, int(int64(at-x.from)*pictureWidth/int64(x.to-x.from)))
}

func (x *paper) row() *canvas {
	c := &canvas{p: x.p}
	for i := range c.runes {
		c.runes[i] = ' '
	}
	return c
}

func (c *canvas) put(column int, text, hue string) {
	for _, r := range text {
		if column > pictureWidth {
			return
		}
		c.runes[column], c.hue[column] = r, hue
		column++
	}
}

// fill draws a bar; one that is too short to see gets a column all the same.
func (c *canvas) fill(from, to int, r rune, hue string) {
	for i := from; i < max(to, from+1) && i <= pictureWidth; i++ {
		c.runes[i], c.hue[i] = r, hue
	}
}

func (c *canvas) String() string {
	last := len(c.runes)
	for last > 0 && c.runes[last-1] == ' ' {
		last--
	}
	var b strings.Builder
	for i := 0; i < last; {
		j := i
		for j < last && c.hue[j] == c.hue[i] {
			j++
		}
		b.WriteString(c.p.in(c.hue[i], string(c.runes[i:j])))
		i = j
	}
	return b.String()
}

// lives draws two processes, of which the first was killed. The label stands after its end. Where the second begins too
// soon for that, the label stands before the end, and over the bars if the first was too short as well.
func (x *paper) lives(two [2]life, hue string) *canvas {
	const label, before = "✗ kill -9", " kill -9 ✗"
	c := x.row()
	up, down, next := x.column(two[0].Up), x.column(two[0].Down), x.column(two[1].Up)
	c.fill(up, down, '█', hue)
	c.fill(max(next, down+1), x.column(two[1].Down), '█', hue)
	long, room := utf8.RuneCountInString(label), utf8.RuneCountInString(before)
	if next-down < long && down-up >= room {
		c.put(down+1-room, before, red)
	} else {
		c.put(down, label, red)
	}
	return c
}

// picture draws the run's life from its log, with what the demo itself saw of the processes above it.
func (s *story) picture(p painter) string {
	x := &paper{p: p, from: s.Servers[0].Up, to: s.Servers[1].Down}
	var b strings.Builder
	write := func(name string, c *canvas) { fmt.Fprintf(&b, "  %s%s\n", p.bold(fmt.Sprintf("%-8s", name)), c) }

	axis, ticks := x.row(), x.row()
	for at, n := x.from, 0; at <= x.to; at, n = at.Add(time.Second), n+1 {
		axis.put(x.column(at), "╵", dim)
		ticks.put(x.column(at), fmt.Sprintf("%d s", n), dim)
	}
	write("server", x.lives(s.Servers, blue))
	write("worker", x.lives(s.Workers, green))

	caller, run := x.row(), x.row()
	draw(x, s.Events, s.Workers[0].Down, caller, run)
	write("caller", caller)
	write("run", run)

	steps := x.row()
	for worker, marks := range s.Began {
		for i, m := range marks {
			to := s.Workers[worker].Down
			if i+1 < len(marks) {
				to = marks[i+1].At
			} else if at, ok := s.Ended[m.Step]; ok && worker == 1 {
				to = at
			}
			steps.fill(x.column(m.At), x.column(to), '─', green)
			steps.put(x.column(m.At), fmt.Sprint(m.Step), green)
			if worker == 0 && m.Step == demoWorkerDies {
				steps.put(x.column(to), "✗", red)
			}
		}
	}
	write("steps", steps)
	write("", axis)
	write("", ticks)
	fmt.Fprintf(&b, "\n          %s queued   %s running   %s lost, until its lease runs out   %s somebody waits\n", p.in(yellow, "░░"), p.in(green, "██"), p.in(red, "▒▒"), p.in(cyan, "━━"))
	return b.String()
}

// draw reads a run's log and fills two rows: when somebody waited for it, and how it stood. What lies between
// the last sign of a holder and the loss of its lease is time in which nobody worked; the log knows of its last
// line, the demo knows when it was killed.
func draw(x *paper, lines []api.Event, killed perdure.Instant, caller, run *canvas) {
	var since, waits, heard perdure.Instant
	state := perdure.State("")
	bar := func(to perdure.Instant) {
		switch state {
		case perdure.Queued:
			run.fill(x.column(since), x.column(to), '░', yellow)
		case perdure.Running:
			run.fill(x.column(since), x.column(to), '█', green)
		}
		since = to
	}
	for _, l := range lines {
		switch l.Type {
		case perdure.LineCreated:
			state, since, waits = perdure.Queued, l.At, l.At
		case perdure.LineDispatched:
			bar(l.At)
			state = perdure.Running
		case perdure.LineReclaimed:
			if heard < killed && killed < l.At {
				heard = killed
			}
			bar(heard)
			run.fill(x.column(heard), x.column(l.At), '▒', red)
			state, since = perdure.Queued, l.At
		case perdure.LineDeferred:
			caller.fill(x.column(waits), x.column(l.At), '━', cyan)
			waits = 0
		case perdure.LineReattached:
			waits = l.At
			continue // not a sign of the holder's life
		}
		if l.Type == perdure.LineCompleted {
			bar(l.At)
			if waits != 0 {
				caller.fill(x.column(waits), x.column(l.At), '━', cyan)
			}
		}
		heard = l.At
	}
}

// verdict says what was promised, and what became of it.
func (s *story) verdict(p painter) string {
	var b strings.Builder
	yes, no := p.in(green, "✓"), p.in(red, "✗")
	line := func(ok bool, format string, args ...any) {
		mark := yes
		if !ok {
			mark = no
		}
		fmt.Fprintf(&b, "  %s %s\n", mark, fmt.Sprintf(format, args...))
	}
	one := func(step, want int) {
		name := demoSteps[step-1]
		line(s.recorded(step) == 1 && s.Effects[name] == want, "step %d, %-28s recorded %s, executed %s", step, name, times(s.recorded(step)), times(s.Effects[name]))
	}
	fmt.Fprintf(&b, "  %s\n", p.bold("Acknowledged before the server was killed, and still there afterwards"))
	line(s.Back != nil, "the run itself")
	for _, step := range s.Acked {
		one(step, 1)
	}
	fmt.Fprintf(&b, "\n  %s\n", p.bold("Done while the server was away, and delivered when it was back"))
	one(demoServerDies, 1)
	line(s.Back.Attempt == 1, "still attempt %d: the server's death cost nobody anything", s.Back.Attempt)
	fmt.Fprintf(&b, "\n  %s\n", p.bold("Under way when the worker was killed, so nobody was told that it is done"))
	one(demoWorkerDies, 2)
	fmt.Fprintf(&b, "\n  %s\n", p.bold("At the end"))
	line(s.Run.State == perdure.Completed, "%s, in attempt %d, with %d lines of log", s.Run.State, s.Run.Attempt, len(s.Events))
	line(s.Broken == 0, "%d invariants checked over the whole store, %d rows break one", s.Checked, s.Broken)
	fmt.Fprintln(&b)
	return b.String()
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprint(n, " times")
}

// ---- colour

const (
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
	cyan   = "36"
)

// A painter colours text, or leaves it as it is.
type painter struct{ on bool }

func (p painter) in(hue, text string) string {
	if !p.on || hue == "" {
		return text
	}
	return "\x1b[" + hue + "m" + text + "\x1b[0m"
}

func (p painter) bold(text string) string { return p.in("1", text) }
func (p painter) dim(text string) string  { return p.in(dim, text) }

// who sets the name of somebody who acts, each in a colour.
func (p painter) who(name string) string {
	hue := map[string]string{"server": blue, "caller": cyan, "worker": green, "watchdog": yellow, "demo": red, "store": blue}[name]
	return p.in(hue, fmt.Sprintf("%-9s", name))
}

// colourful tells whether colours are wanted: on a terminal, unless NO_COLOR is set, or when FORCE_COLOR says so.
func colourful(w io.Writer) bool {
	if f := os.Getenv("FORCE_COLOR"); f != "" {
		return f != "0"
	}
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
