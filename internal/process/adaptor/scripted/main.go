// Scripted is an agent for tests. It writes what claude-code writes with --output-format stream-json,
// and does what a script says instead of asking a model:
//
//	scripted --script FILE -p PROMPT [--resume SESSION] [--include-partial-messages]
//
// A script is a JSON object, see [script]. The path of one can also be in SCRIPTED_AGENT, so that a
// command line is that of the real agent. Sessions are kept in the folder FILE.sessions. A session can
// be continued any number of times, each with the next list of steps.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// A script says what the agent does.
type script struct {
	// Session is the id of a new session. By default it is random.
	Session string `json:"session"`
	// Turns has the steps of the first process of a session, of the one that continues it, and so on.
	// The last list is that of all further ones.
	Turns [][]step `json:"turns"`
	// IgnoreTerm lets the agent go on after SIGTERM, SIGINT and SIGHUP.
	IgnoreTerm bool `json:"ignore_term"`
	// CostUSD and the tokens are in the result.
	CostUSD      float64 `json:"cost_usd"`
	InputTokens  int64   `json:"input_tokens"`
	OutputTokens int64   `json:"output_tokens"`
}

// A step is one thing that the agent does. Texts can have {prompt}, {turn} and {before}, which are the
// prompt, the number of the turn and the prompts of earlier turns.
type step struct {
	Think  string   `json:"think"`
	Text   string   `json:"text"`
	Tool   *toolUse `json:"tool"`
	Stderr string   `json:"stderr"`
	// Raw is written to the standard output as it is, without a line break.
	Raw string `json:"raw"`
	// Fill writes so many bytes in lines of 100 to the standard output.
	Fill int64 `json:"fill"`
	// Sleep is a duration such as "1s".
	Sleep string `json:"sleep"`
	// Touch makes a file, and Await waits until there is one.
	Touch string `json:"touch"`
	Await string `json:"await"`
	// Fail ends the turn with an error and the exit code 1.
	Fail string `json:"fail"`
	// Crash ends the process with SIGKILL, in the middle of a line.
	Crash bool `json:"crash"`
	// Exit ends the process with a code, without a result.
	Exit *int `json:"exit"`
}

// A toolUse is a tool call with its result.
type toolUse struct {
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`
	Output string          `json:"output"`
	Failed bool            `json:"failed"`
	// For is how long it takes.
	For string `json:"for"`
}

func main() {
	code, err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// options are the flags of the real agent that the scripted one knows, and --script.
type options struct {
	script, prompt, resume string
	partial                bool
}

func parseFlags(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("scripted", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.script, "script", os.Getenv("SCRIPTED_AGENT"), "the script's `file`")
	f.StringVar(&o.prompt, "p", "", "the `prompt`")
	f.StringVar(&o.resume, "resume", "", "the `session` to continue")
	f.BoolVar(&o.partial, "include-partial-messages", false, "stream text")
	f.String("output-format", "stream-json", "ignored")
	f.Bool("verbose", false, "ignored")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.script == "" {
		return o, errors.New("there is no --script")
	}
	return o, nil
}

func run(args []string, stdout, stderr io.Writer) (int, error) {
	o, err := parseFlags(args, stderr)
	if err != nil {
		return 2, err
	}
	text, err := os.ReadFile(o.script)
	if err != nil {
		return 2, err
	}
	var s script
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return 2, fmt.Errorf("%s: %w", o.script, err)
	}
	if s.IgnoreTerm {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	sess, err := openSession(o, s.Session)
	if err != nil {
		return 1, err
	}
	if err := sess.save(); err != nil {
		return 1, err
	}
	a := &scriptedAgent{script: &s, session: sess, partial: o.partial, out: bufio.NewWriter(stdout), stderr: stderr}
	return a.turn()
}

// A session is what is kept between processes.
type session struct {
	file    string
	ID      string   `json:"id"`
	Prompts []string `json:"prompts"`
}

var sessionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// openSession begins a session, or continues one.
func openSession(o options, id string) (*session, error) {
	s := &session{ID: id}
	if o.resume != "" {
		s.ID = o.resume
	}
	if s.ID == "" {
		b := make([]byte, 16)
		rand.Read(b)
		s.ID = hex.EncodeToString(b)
	}
	if !sessionName.MatchString(s.ID) {
		return nil, fmt.Errorf("%q is no session", s.ID)
	}
	s.file = filepath.Join(o.script+".sessions", s.ID+".json")
	if o.resume != "" {
		b, err := os.ReadFile(s.file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("no conversation found with session ID: %s", s.ID)
		}
		if err == nil {
			err = json.Unmarshal(b, s)
		}
		if err != nil {
			return nil, err
		}
	}
	s.Prompts = append(s.Prompts, o.prompt)
	return s, nil
}

func (s *session) save() error {
	if err := os.MkdirAll(filepath.Dir(s.file), 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file, b, 0o600)
}

// A scriptedAgent is a process at work.
type scriptedAgent struct {
	script  *script
	session *session
	partial bool
	out     *bufio.Writer
	stderr  io.Writer
	said    string // the last text
	n       int    // messages so far
}

// object is a JSON object.
type object = map[string]any

// line writes a line of output at once.
func (a *scriptedAgent) line(v object) {
	v["session_id"] = a.session.ID
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	a.out.Write(append(b, '\n'))
	a.out.Flush()
}

// message writes a message with one block of content.
func (a *scriptedAgent) message(role string, block object) {
	a.n++
	a.line(object{"type": role, "parent_tool_use_id": nil,
		"message": object{"id": fmt.Sprintf("msg_%d", a.n), "type": "message", "role": role, "content": []any{block}}})
}

// turn executes the steps of a process and returns its exit code.
func (a *scriptedAgent) turn() (int, error) {
	a.line(object{"type": "system", "subtype": "init", "model": "scripted", "tools": []string{}})
	var steps []step
	if n := len(a.script.Turns); n > 0 {
		steps = a.script.Turns[min(len(a.session.Prompts), n)-1]
	}
	for i := range steps {
		code, ended, err := a.step(&steps[i])
		if ended || err != nil {
			return code, err
		}
	}
	a.result(a.said, false)
	return 0, nil
}

// step executes a step. ended tells that the process exits with the code.
func (a *scriptedAgent) step(s *step) (code int, ended bool, err error) {
	switch {
	case s.Think != "":
		a.message("assistant", object{"type": "thinking", "thinking": a.fill(s.Think)})
	case s.Text != "":
		a.say(a.fill(s.Text))
	case s.Tool != nil:
		return 1, false, a.tool(s.Tool)
	case s.Stderr != "":
		_, err = io.WriteString(a.stderr, a.fill(s.Stderr))
	case s.Raw != "":
		a.out.WriteString(s.Raw)
		err = a.out.Flush()
	case s.Fill > 0:
		err = a.fillOutput(s.Fill)
	case s.Sleep != "":
		return 1, false, sleep(s.Sleep)
	case s.Touch != "":
		err = os.WriteFile(s.Touch, nil, 0o600)
	case s.Await != "":
		for {
			if _, err := os.Stat(s.Await); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
	case s.Fail != "":
		a.result(a.fill(s.Fail), true)
		return 1, true, nil
	case s.Crash:
		a.out.WriteString(`{"type":"assistant","message":{"con`)
		a.out.Flush()
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case s.Exit != nil:
		return *s.Exit, true, nil
	}
	return 1, false, err
}

// fill puts values into a text.
func (a *scriptedAgent) fill(text string) string {
	n := len(a.session.Prompts)
	return strings.NewReplacer("{prompt}", a.session.Prompts[n-1], "{turn}", fmt.Sprint(n),
		"{before}", strings.Join(a.session.Prompts[:n-1], ", ")).Replace(text)
}

// say writes a text, word by word before the whole if partial messages were asked for.
func (a *scriptedAgent) say(text string) {
	a.said = text
	if a.partial {
		for _, part := range strings.SplitAfter(text, " ") {
			a.line(object{"type": "stream_event", "parent_tool_use_id": nil, "event": object{
				"type": "content_block_delta", "index": 0, "delta": object{"type": "text_delta", "text": part}}})
		}
	}
	a.message("assistant", object{"type": "text", "text": text})
}

// tool writes a tool call and its result.
func (a *scriptedAgent) tool(t *toolUse) error {
	id := fmt.Sprintf("toolu_%d", a.n)
	var input any = object{}
	if len(t.Input) > 0 {
		input = t.Input
	}
	a.message("assistant", object{"type": "tool_use", "id": id, "name": t.Name, "input": input})
	if err := sleep(t.For); err != nil {
		return err
	}
	a.message("user", object{"type": "tool_result", "tool_use_id": id, "content": t.Output, "is_error": t.Failed})
	return nil
}

// fillOutput writes numbered lines.
func (a *scriptedAgent) fillOutput(n int64) error {
	for i := int64(0); n > 0; i++ {
		line := fmt.Sprintf("%-99d\n", i)
		line = line[:min(n, int64(len(line)))]
		if _, err := a.out.WriteString(line); err != nil {
			return err
		}
		n -= int64(len(line))
	}
	return a.out.Flush()
}

// result writes the end of a turn.
func (a *scriptedAgent) result(text string, failed bool) {
	subtype := "success"
	if failed {
		subtype = "error_during_execution"
	}
	a.line(object{"type": "result", "subtype": subtype, "is_error": failed, "result": text,
		"num_turns": len(a.session.Prompts), "total_cost_usd": a.script.CostUSD,
		"usage": object{"input_tokens": a.script.InputTokens, "output_tokens": a.script.OutputTokens}})
}

func sleep(text string) error {
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err == nil {
		time.Sleep(d)
	}
	return err
}
