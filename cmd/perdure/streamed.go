package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// An eventPrinter prints the events of a run that is followed. Its zero value is usable.
//
// A step that is executed again tells its text again. A terminal can't take back what it has shown. So
// the printer prints only what goes beyond that, or the whole text if the new one is different.
type eventPrinter struct {
	w      io.Writer
	asJSON bool

	text  client.Text
	steps map[string]*toldStep
}

// A toldStep is the streamed text of a step, or of a task.
type toldStep struct {
	told []byte
	// shown is the text of an earlier try, while the current one repeats it.
	shown []byte
}

// print prints an event, unless it has nothing new.
func (p *eventPrinter) print(e *api.Event) error {
	if p.asJSON || e.Type != perdure.LineDelta {
		return printEvent(p.w, e, p.asJSON)
	}
	news, again := p.news(e)
	if news == "" {
		return nil
	}
	text, err := perdure.Marshal(news)
	if err != nil {
		return err
	}
	data := string(safeJSON(text))
	if again {
		data = "(again, and different) " + data
	}
	return printLine(p.w, e, data)
}

// news returns the text of an event that was not shown yet. With again it is the whole text of the
// step, because that differs from the text that was shown.
func (p *eventPrinter) news(e *api.Event) (news string, again bool) {
	before := p.text.Len()
	begun := p.text.Add(e)
	if !begun && p.text.Len() == before {
		return "", false // of an earlier try, or empty
	}
	step, try := perdure.DeltaOf(perdure.Value(e.Data))
	text := perdure.DeltaText(perdure.Value(e.Data))
	if try == 0 {
		return text, false // it is never told again
	}
	s := p.steps[step]
	if s == nil {
		if s = new(toldStep); p.steps == nil {
			p.steps = make(map[string]*toldStep)
		}
		p.steps[step] = s
	}
	if begun {
		if s.shown == nil {
			s.shown = s.told
		}
		s.told = nil
	}
	s.told = append(s.told, text...)
	shown := s.shown
	switch {
	case shown == nil:
		return text, false
	case bytes.HasPrefix(shown, s.told):
		return "", false
	}
	s.shown = nil
	if rest, longer := bytes.CutPrefix(s.told, shown); longer {
		return string(rest), false
	}
	return string(s.told), true
}

// printLine prints a line of a run's log with its data as it is.
func printLine(w io.Writer, e *api.Event, data string) error {
	_, err := fmt.Fprintf(w, "%s %4d  %-22s %s\n", e.At.Time().Local().Format("15:04:05.000"), e.Seq,
		visible(string(e.Type)), data)
	return err
}
