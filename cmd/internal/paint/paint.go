// Package paint colours text for terminals.
package paint

import (
	"io"
	"os"
)

// Colours, as the numbers that terminals know them by.
const (
	Faint  = "2"
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Blue   = "34"
	Cyan   = "36"
)

// A Painter colours text if it is on, and leaves it as it is otherwise.
type Painter struct{ On bool }

// In sets a text in a colour.
func (p Painter) In(hue, text string) string {
	if !p.On || hue == "" {
		return text
	}
	return "\x1b[" + hue + "m" + text + "\x1b[0m"
}

// Bold sets a text in bold.
func (p Painter) Bold(text string) string { return p.In("1", text) }

// Dim sets a text that matters less.
func (p Painter) Dim(text string) string { return p.In(Faint, text) }

// Colourful tells whether colours are wanted: on a terminal, unless NO_COLOR is set, or when FORCE_COLOR says so.
func Colourful(w io.Writer) bool {
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
