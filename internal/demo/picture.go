package demo

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/paint"
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
func (x *timeline) lives(two [2]processLife, hue string) *pictureRow {
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

// picture draws the processes as the demo saw them, and below them the run from its log.
func (s *observation) picture(p paint.Painter) string {
	x := &timeline{p: p, from: s.Servers[0].Up, to: s.Servers[1].Down}
	var b strings.Builder
	write := func(name string, c *pictureRow) { fmt.Fprintf(&b, "  %s%s\n", p.Bold(fmt.Sprintf("%-8s", name)), c) }

	axis, ticks := x.row(), x.row()
	for at, n := x.from, 0; at <= x.to; at, n = at.Add(time.Second), n+1 {
		axis.put(x.column(at), "╵", paint.Faint)
		ticks.put(x.column(at), fmt.Sprintf("%d s", n), paint.Faint)
	}
	write("server", x.lives(s.Servers, paint.Blue))
	write("worker", x.lives(s.Workers, paint.Green))

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
			steps.fill(x.column(m.At), x.column(to), '─', paint.Green)
			steps.put(x.column(m.At), fmt.Sprint(m.Step), paint.Green)
			if worker == 0 && m.Step == workerDies {
				steps.put(x.column(to), "✗", paint.Red)
			}
		}
	}
	write("steps", steps)
	write("", axis)
	write("", ticks)
	fmt.Fprintf(&b, "\n          %s queued   %s running   %s lost, until its lease runs out   %s somebody waits\n",
		p.In(paint.Yellow, "░░"), p.In(paint.Green, "██"), p.In(paint.Red, "▒▒"), p.In(paint.Cyan, "━━"))
	return b.String()
}

// draw fills two rows from a run's log: when a caller waited, and the state of the run. Between the
// last sign of life of a holder and the loss of its lease nobody worked. That time begins with the
// last line of the holder, or when the demo killed it.
func draw(x *timeline, lines []api.Event, killed perdure.Instant, caller, run *pictureRow) {
	var since, waits, heard perdure.Instant
	state := perdure.State("")
	bar := func(to perdure.Instant) {
		switch state {
		case perdure.Queued:
			run.fill(x.column(since), x.column(to), '░', paint.Yellow)
		case perdure.Running:
			run.fill(x.column(since), x.column(to), '█', paint.Green)
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
			run.fill(x.column(heard), x.column(l.At), '▒', paint.Red)
			state, since = perdure.Queued, l.At
		case perdure.LineDeferred:
			caller.fill(x.column(waits), x.column(l.At), '━', paint.Cyan)
			waits = 0
		case perdure.LineReattached:
			waits = l.At
			continue // not a sign of life of the holder
		}
		if l.Type == perdure.LineCompleted {
			bar(l.At)
			if waits != 0 {
				caller.fill(x.column(waits), x.column(l.At), '━', paint.Cyan)
			}
		}
		heard = l.At
	}
}

// verdict lists what was promised, and whether it was kept.
func (s *observation) verdict(p paint.Painter) string {
	var b strings.Builder
	yes, no := p.In(paint.Green, "✓"), p.In(paint.Red, "✗")
	line := func(ok bool, format string, args ...any) {
		mark := yes
		if !ok {
			mark = no
		}
		fmt.Fprintf(&b, "  %s %s\n", mark, fmt.Sprintf(format, args...))
	}
	one := func(step, want int) {
		name := steps[step-1]
		line(s.recorded(step) == 1 && s.Effects[name] == want, "step %d, %-28s recorded %s, executed %s", step, name,
			times(s.recorded(step)), times(s.Effects[name]))
	}
	fmt.Fprintf(&b, "  %s\n", p.Bold("Acknowledged before the server was killed, and still there afterwards"))
	line(s.Back != nil, "the run itself")
	for _, step := range s.Acked {
		one(step, 1)
	}
	fmt.Fprintf(&b, "\n  %s\n", p.Bold("Done while the server was away, and delivered when it was back"))
	one(serverDies, 1)
	line(s.Back.Attempt == 1, "still attempt %d: the server's death cost nobody anything", s.Back.Attempt)
	fmt.Fprintf(&b, "\n  %s\n", p.Bold("Under way when the worker was killed, so nobody was told that it is done"))
	one(workerDies, 2)
	fmt.Fprintf(&b, "\n  %s\n", p.Bold("At the end"))
	line(s.Run.State == perdure.Completed, "%s, in attempt %d, with %d lines of log", s.Run.State, s.Run.Attempt,
		len(s.Events))
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

// who formats the name of an actor, each in a colour of its own.
func who(p paint.Painter, name string) string {
	hue := map[string]string{"server": paint.Blue, "caller": paint.Cyan, "worker": paint.Green,
		"watchdog": paint.Yellow, "demo": paint.Red, "store": paint.Blue}[name]
	return p.In(hue, fmt.Sprintf("%-9s", name))
}
