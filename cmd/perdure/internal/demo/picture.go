package demo

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/cmd/internal/paint"
)

// pictureWidth is the number of columns for the whole time.
const pictureWidth = 66

// A pictureRow is a row of the picture: a rune and a colour for each column.
type pictureRow struct {
	p     paint.Painter
	runes [pictureWidth + 1]rune
	hue   [pictureWidth + 1]string
}

// A timeline maps instants to columns.
type timeline struct {
	p        paint.Painter
	from, to perdure.Instant
}

func (x *timeline) column(at perdure.Instant) int {
	if at <= x.from {
		return 0
	}
	return min(pictureWidth, int(int64(at-x.from)*pictureWidth/int64(x.to-x.from)))
}

func (x *timeline) row() *pictureRow {
	c := &pictureRow{p: x.p}
	for i := range c.runes {
		c.runes[i] = ' '
	}
	return c
}

func (c *pictureRow) put(column int, text, hue string) {
	for _, r := range text {
		if column > pictureWidth {
			return
		}
		c.runes[column], c.hue[column] = r, hue
		column++
	}
}

// fill draws a bar of at least one column.
func (c *pictureRow) fill(from, to int, r rune, hue string) {
	for i := from; i < max(to, from+1) && i <= pictureWidth; i++ {
		c.runes[i], c.hue[i] = r, hue
	}
}

func (c *pictureRow) String() string {
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
		b.WriteString(c.p.In(c.hue[i], string(c.runes[i:j])))
		i = j
	}
	return b.String()
}

// lives draws two processes, of which the first was killed. The label is after its end. If the
// second begins too soon for that, the label is before the end. If the first was too short as well,
// the label covers the bars.
func (x *timeline) lives(two [2]life, hue string) *pictureRow {
	const label, before = "✗ kill -9", " kill -9 ✗"
	c := x.row()
	up, down, next := x.column(two[0].Up), x.column(two[0].Down), x.column(two[1].Up)
	c.fill(up, down, '█', hue)
	c.fill(max(next, down+1), x.column(two[1].Down), '█', hue)
	long, room := utf8.RuneCountInString(label), utf8.RuneCountInString(before)
	if next-down < long && down-up >= room {
		c.put(down+1-room, before, paint.Red)
	} else {
		c.put(down, label, paint.Red)
	}
	return c
}

// picture draws the server and the caller as the demo saw them, and both runs from their logs.
func (s *observation) picture(p paint.Painter) string {
	x := &timeline{p: p, from: s.Servers[0].Up, to: s.Servers[1].Down}
	var b strings.Builder
	write := func(name string, c *pictureRow) { fmt.Fprintf(&b, "  %s%s\n", p.Bold(fmt.Sprintf("%-8s", name)), c) }

	axis, ticks := x.row(), x.row()
	for at, n := x.from, 0; at <= x.to; at, n = at.Add(time.Second), n+1 {
		axis.put(x.column(at), "╵", paint.Faint)
		if tick := fmt.Sprintf("%d s", n); x.column(at)+len(tick) <= pictureWidth+1 {
			ticks.put(x.column(at), tick, paint.Faint)
		}
	}
	you, df := x.row(), x.row()
	you.fill(x.column(s.Wait.Up), x.column(s.Wait.Down), '━', paint.Cyan)
	you.fill(x.column(s.Back), x.column(s.Servers[1].Down), '━', paint.Cyan)
	df.fill(x.column(s.Look.Up), x.column(s.Look.Down), '─', paint.Green)
	write("server", x.lives(s.Servers, paint.Blue))
	write("you", you)
	write("agent", x.run(s.ChatEvents))
	write("worker", x.run(s.WorkerEvents))
	write("df", df)
	write("", axis)
	write("", ticks)
	fmt.Fprintf(&b, "\n          %s queued   %s running   %s asleep, until its worker is done   %s you wait\n",
		p.In(paint.Yellow, "░░"), p.In(paint.Green, "██"), p.In(paint.Faint, "··"), p.In(paint.Cyan, "━━"))
	return b.String()
}

// run draws the states of a run from its log.
func (x *timeline) run(lines []api.Event) *pictureRow {
	c := x.row()
	var since perdure.Instant
	state, free := perdure.State(""), 0 // the first column that has no bar yet
	for _, l := range lines {
		next := state
		switch l.Type {
		case perdure.LineCreated, perdure.LineResumed:
			next = perdure.Queued
		case perdure.LineDispatched, perdure.LineStarted:
			next = perdure.Running
		case perdure.LineSuspended:
			next = perdure.Suspended
		case perdure.LineCompleted, perdure.LineFailed, perdure.LineTimedOut, perdure.LineCancelled:
			next = perdure.Completed
		}
		if next == state {
			continue
		}
		from, to := max(x.column(since), free), x.column(l.At)
		if state != "" {
			free = max(to, from+1)
		}
		switch state {
		case perdure.Queued:
			c.fill(from, to, '░', paint.Yellow)
		case perdure.Running:
			c.fill(from, to, '█', paint.Green)
		case perdure.Suspended:
			c.fill(from, to, '·', paint.Faint)
		}
		state, since = next, l.At
	}
	return c
}

// conversation prints the messages as a person sees them.
func (s *observation) conversation(p paint.Painter) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s\n", p.Bold("The conversation"))
	for i := range s.Messages {
		m := &s.Messages[i]
		by, hue := "agent", paint.Green
		switch {
		case m.Notice():
			by, hue = "note", paint.Yellow
		case m.Role == perdure.RoleUser:
			by, hue = "you", paint.Cyan
		case m.Role != perdure.RoleAssistant || text(m.Content) == "":
			continue
		}
		for line := range strings.Lines(strings.TrimSpace(text(m.Content))) {
			fmt.Fprintf(&b, "    %s %s\n", p.In(hue, fmt.Sprintf("%-6s", by)), strings.TrimRight(line, "\n"))
			by = ""
		}
	}
	return b.String()
}

// verdict lists what was promised, and whether it was kept.
func (s *observation) verdict(p paint.Painter) string {
	var b strings.Builder
	for _, x := range s.promises() {
		mark := p.In(paint.Green, "✓")
		if !x.Kept {
			mark = p.In(paint.Red, "✗")
		}
		fmt.Fprintf(&b, "  %s %s\n", mark, x.Text)
	}
	return b.String()
}

// next says what to try after the demo.
func next(p paint.Painter) string {
	return "\n  " + p.Bold("Where to look next") + `
    bin/perdure dev                       a server to play with; it prints what to type
    bin/perdure chat "check disk space"   the same conversation, with you in it
    docs/tutorial.md                      an agent of your own, step by step

`
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

// who formats the name of an actor, each in a colour of its own.
func who(p paint.Painter, name string) string {
	hue := map[string]string{"server": paint.Blue, "you": paint.Cyan, "agent": paint.Green, "demo": paint.Red}[name]
	return p.In(hue, fmt.Sprintf("%-7s", name))
}
