package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// An execScreen is where perdure exec shows the output of a command, and what there is to say about it.
//
// With --json it prints a line of JSON for each: first "started", then "output" and "note" as they come,
// and at the end "ended" or "detached". Notes before the first line, and all with --detach, are text on
// the standard error, so that the first line is "started" and the only one.
type execScreen struct {
	// stdout and stderr are those of this program.
	stdout, stderr io.Writer
	json           bool
	// notes tells that notes are lines of JSON by now. With detach they never are.
	notes, detach bool
	// lines has the output that waits for the rest of a character.
	lines [2]*jsonOutput
	// exit is the exit code of the command, when it is known.
	exit *int
}

func newExecScreen(asJSON, detach bool, stdout, stderr io.Writer) *execScreen {
	return &execScreen{stdout: stdout, stderr: stderr, json: asJSON, detach: detach,
		lines: [2]*jsonOutput{{w: stdout, stream: jobdir.Stdout}, {w: stdout, stream: jobdir.Stderr}}}
}

// printer returns the printer of the command's output.
func (s *execScreen) printer(c *client.Client, id perdure.RunID, from shown) *outputPrinter {
	if !s.json {
		return newOutputPrinter(c, id, from, s.stdout, s.stderr)
	}
	p := newOutputPrinter(c, id, from, s.lines[0], s.lines[1])
	p.messages, p.say = s.stderr, s.sayText
	return p
}

// say says something about the command.
func (s *execScreen) say(format string, args ...any) { s.sayText(fmt.Sprintf(format, args...)) }

func (s *execScreen) sayText(text string) {
	if !s.notes {
		fmt.Fprintf(s.stderr, "[perdure: %s]\n", text)
		return
	}
	_ = printJSONLine(s.stdout, struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}{"note", text})
}

// An execStart is the first line of perdure exec --json, and the only one with --detach.
type execStart struct {
	Type      string        `json:"type"`
	RunID     perdure.RunID `json:"run_id"`
	Workspace string        `json:"workspace"`
	// Watched tells whether a server looks after the workspace.
	Watched bool `json:"watched"`
}

// started prints the first line.
func (s *execScreen) started(start execStart) error {
	if !s.json {
		return nil
	}
	s.notes = !s.detach
	start.Type = "started"
	return printJSONLine(s.stdout, start)
}

// An execEnd is the last line of perdure exec --json.
type execEnd struct {
	Type   string        `json:"type"`
	RunID  perdure.RunID `json:"run_id"`
	State  perdure.State `json:"state,omitempty"`
	Status string        `json:"status,omitempty"`
	// ExitCode is the command's, and absent if it goes on, or nobody has seen how it ended.
	ExitCode *int             `json:"exit_code,omitempty"`
	Error    *perdure.Failure `json:"error,omitempty"`
	// Message says what has gone wrong with perdure exec itself.
	Message string `json:"message,omitempty"`
}

// endPrintPatience is how long the last line waits for what the server has to say.
const endPrintPatience = 3 * time.Second

// ended prints the last line. It returns the error with which exec ends.
func (s *execScreen) ended(ctx context.Context, c *client.Client, id perdure.RunID, err error) error {
	if !s.json {
		return err
	}
	for _, o := range s.lines {
		o.flush()
	}
	end := execEnd{Type: "ended", RunID: id}
	var left detachedError
	var code exitError
	switch {
	case errors.As(err, &left):
		end.Type = "detached"
	case err != nil && !errors.As(err, &code):
		end.Message = err.Error()
	}
	// The context may have ended.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPrintPatience)
	defer cancel()
	if r, err := c.Get(last, id); err == nil {
		end.State, end.Status, end.Error = r.State, r.Status, r.Error
		if s.exit == nil && r.State.Terminal() {
			s.exit = knownExit(exitCode(last, c, r))
		}
	}
	end.ExitCode = s.exit
	if printErr := printJSONLine(s.stdout, &end); err == nil {
		err = printErr
	}
	return err
}

// knownExit returns the exit code that exitCode has found, or nil.
func knownExit(code error, known bool) *int {
	var n exitError
	if !known {
		return nil
	}
	_ = errors.As(code, &n) // nil is 0
	exit := int(n)
	return &exit
}

// A jsonOutput writes bytes of a stream as lines of JSON. Bytes that are no text are base64.
type jsonOutput struct {
	w      io.Writer
	stream string
	// rest is the beginning of a character.
	rest []byte
}

func (j *jsonOutput) Write(b []byte) (int, error) {
	all := append(j.rest, b...)
	whole := jobdir.WholeRunes(all)
	j.rest = append([]byte(nil), all[len(whole):]...)
	return len(b), j.print(whole)
}

// flush writes what waits for the rest of a character that does not come.
func (j *jsonOutput) flush() {
	_ = j.print(j.rest)
	j.rest = nil
}

func (j *jsonOutput) print(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	line := struct {
		Type   string  `json:"type"`
		Stream string  `json:"stream"`
		Text   *string `json:"text,omitempty"`
		Base64 []byte  `json:"base64,omitempty"`
	}{Type: "output", Stream: j.stream}
	if text := string(b); utf8.ValidString(text) {
		line.Text = &text
	} else {
		line.Base64 = b
	}
	return printJSONLine(j.w, &line)
}

// watched tells whether a server looks after a workspace, and says so if none does. The first line of
// --json has it in a field.
func (s *execScreen) watched(workspace string) bool {
	if jobdir.Watched(workspace) {
		return true
	}
	if !s.json {
		s.say("no server looks after the workspace %s: a runner that is lost is noticed after dead_after only, ten "+
			"minutes by default", visible(workspace))
	}
	return false
}
