package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

const chatAbout = `Talks with an agent: the supervisor of the server (serve --supervisor), or any kind that answers
on a thread.
The answer is shown as it is written, beside what workers do. Ctrl-C leaves; the agent goes on, and its answer
will be in the thread. On a terminal, what the agent wants to be approved is asked in place.

  perdure chat "check disk space"        say one thing, and stay for the answer
  perdure chat                           a conversation, line by line
  perdure chat --resume                  come back to the last one
  perdure chat --thread ID "and now?"`

func chatCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("chat [TEXT…]", chatAbout, stderr)
	conn := addConnFlags(f)
	kind := f.String("kind", api.SupervisorKind, "`kind` of the agent")
	thread := f.String("thread", "", "go on with this `thread`")
	resume := f.Bool("resume", false, "go on with the thread on which something happened last")
	wait := f.Duration("wait", time.Hour, "stay for so long")
	asJSON := f.Bool("json", false, "print the answer as JSON; needs TEXT")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(strings.Join(words, " "))
	switch {
	case *thread != "" && *resume:
		fmt.Fprintln(stderr, "perdure chat: --thread or --resume, not both")
		return errUsage
	case *asJSON && text == "":
		fmt.Fprintln(stderr, "perdure chat: --json needs a TEXT")
		return errUsage
	case *wait <= 0:
		fmt.Fprintln(stderr, "perdure chat: --wait has to be positive")
		return errUsage
	}
	ctx, stop := detachable(ctx)
	defer stop()
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	ch := &conversation{c: c, kind: *kind, thread: perdure.ThreadID(*thread), wait: *wait,
		in:     newKeyboard(os.Stdin),
		stdout: stdout, stderr: stderr, asks: isTerminal(os.Stdin) && !*asJSON, ticks: isTerminalWriter(stderr),
		talks: text == "", voice: voice{width: widthOf(stdout)}}
	if *resume {
		if err := ch.findLast(ctx); err != nil {
			return err
		}
	}
	if *asJSON {
		return ch.sayOnce(ctx, text)
	}
	if ch.thread != "" {
		if err := ch.catchUp(ctx, text == ""); err != nil {
			return err
		}
	}
	if text != "" {
		return ch.say(ctx, text)
	}
	return ch.converse(ctx)
}

// A conversation is a thread on which a person talks with an agent.
type conversation struct {
	c      *client.Client
	kind   string
	thread perdure.ThreadID
	wait   time.Duration
	// silence is how long a stream may be silent. Zero means the client's default.
	silence time.Duration
	in      *keyboard

	stdout, stderr io.Writer
	// asks tells that a person is there to answer, and ticks that the last line can be written over.
	asks, ticks bool
	// talks tells that lines are said one after the other. What is typed after a single message is for
	// the next program.
	talks bool
	voice voice

	// screen is held by those who print or ask while a run is followed. It is taken before the
	// locks of the ticker and the keyboard.
	screen sync.Mutex
	// asked has the approvals that the person has been asked about.
	asked map[perdure.ApprovalID]bool
	// key is what the server knows of the chat's key, once the asker has asked for it.
	key *perdure.Key

	// seq is the number of the last message of the thread that was shown.
	seq int64
	// next is a run that answers what was typed when the run before had just ended.
	next perdure.RunID
	// streamed is what was shown of the current answer while it was written.
	streamed strings.Builder
}

// findLast finds the conversation in which something happened last. Threads of workers are passed over.
func (ch *conversation) findLast(ctx context.Context) error {
	for f := (client.ThreadFilter{Limit: 1, WithoutChildren: true}); ; {
		page, err := ch.c.Threads(ctx, f)
		if err != nil {
			return err
		}
		if len(page.Threads) > 0 {
			ch.thread = page.Threads[0].ThreadID
			return nil
		}
		if f.Cursor = page.NextCursor; f.Cursor == "" {
			break
		}
	}
	return errors.New("there is no conversation yet: perdure chat TEXT begins one")
}

// converse says line after line, until the input ends.
func (ch *conversation) converse(ctx context.Context) error {
	for {
		if ch.asks {
			fmt.Fprint(ch.stderr, "\n> ")
		}
		text, err := ch.in.next(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			if ch.asks && ch.thread != "" {
				fmt.Fprintf(ch.stderr, "\nperdure chat --thread %s goes on.\n", ch.thread)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		var code exitError
		if err := ch.say(ctx, text); err != nil && (!errors.As(err, &code) || int(code) == exitDeferred) {
			return err // a run that failed has said so, and the conversation goes on
		}
	}
}

// sayOnce says one thing, and prints the answer as JSON.
func (ch *conversation) sayOnce(ctx context.Context, text string) error {
	a, err := ch.c.Chat(ctx, api.Chat{ThreadID: ch.thread, Message: client.JSON(text), Kind: ch.kind,
		Wait: perdure.Duration(ch.wait)})
	if err != nil {
		return err
	}
	if err := printJSON(ch.stdout, a); err != nil {
		return err
	}
	switch {
	case !a.State.Terminal():
		return exitError(exitDeferred)
	case a.State != perdure.Completed:
		return outcome(&api.Run{State: a.State})
	}
	return nil
}

// say passes on what the person says, and shows the answer.
func (ch *conversation) say(ctx context.Context, text string) error {
	a, err := ch.c.Chat(ctx, api.Chat{ThreadID: ch.thread, Message: client.JSON(text), Kind: ch.kind, Foreground: true})
	if err != nil {
		return err
	}
	ch.thread = a.ThreadID
	return ch.follow(ctx, a.RunID, a.LastSeq)
}

// steer passes on what the person types while the agent works. The function that it returns ends that.
// Lines of a pipe are said one after the other instead.
func (ch *conversation) steer(ctx context.Context) (end func()) {
	if !ch.asks || !ch.talks {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for {
			text, err := ch.in.next(ctx)
			if err != nil {
				return // the end of the input comes again, to the next reader
			}
			if text == "" {
				continue
			}
			// A line that was read is passed on, even if the answer comes just now.
			a, err := ch.c.Chat(context.WithoutCancel(ctx), api.Chat{ThreadID: ch.thread, Message: client.JSON(text),
				Kind: ch.kind})
			ch.screen.Lock()
			switch {
			case err != nil:
				fmt.Fprintln(ch.stderr, visible(err.Error()))
			case a.Started: // the run had ended, so that another one answers this
				ch.next = a.RunID
			}
			ch.screen.Unlock()
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// follow shows the answer of a run, of those that continue it, and of those that answer what the person
// said meanwhile.
func (ch *conversation) follow(ctx context.Context, id perdure.RunID, after int64) error {
	for {
		err := ch.followOne(ctx, id, after)
		if id, after = ch.next, 0; id == "" {
			return err
		}
		ch.next = ""
	}
}

// followOne shows the answer of a run and of those that continue it.
func (ch *conversation) followOne(ctx context.Context, id perdure.RunID, after int64) error {
	limit, cancel := context.WithTimeout(ctx, ch.wait)
	defer cancel()
	defer ch.steer(limit)()
	for {
		err := ch.stream(limit, id, after)
		if err != nil {
			if limit.Err() == nil {
				return err
			}
			return ch.leave(ctx, id)
		}
		r, err := ch.c.Get(limit, id)
		if err != nil {
			return err
		}
		if err := ch.showMessages(limit, false); err != nil {
			return err
		}
		if r.ContinuedByRunID == "" {
			ch.sayWhatGoesOn(limit, id)
			return outcome(r)
		}
		id, after = r.ContinuedByRunID, 0
	}
}

// leave tells the server that nobody waits any more, and the person how to come back.
func (ch *conversation) leave(ctx context.Context, id perdure.RunID) error {
	// The context has ended, so the last call has one of its own.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	deferRun(last, ch.c, id)
	fmt.Fprintf(ch.stderr, "\nStill working. The answer will be in the thread:\n  perdure chat --thread %s\n",
		ch.thread)
	return exitError(exitDeferred)
}

// stream shows what a run writes and does, until it has ended.
func (ch *conversation) stream(ctx context.Context, id perdure.RunID, after int64) error {
	var text eventPrinter
	ch.streamed.Reset()
	t := ch.startTicker(ctx, id)
	defer t.stop()
	asker := ch.startAsker(ctx, id, t)
	defer asker.stop()
	for e, err := range ch.c.Stream(ctx, id, after, ch.watchdog(t)) {
		var gap *client.StreamGapError
		if errors.As(err, &gap) {
			continue
		}
		if err != nil {
			return err
		}
		if e.Type == perdure.LineWaitOpened || e.Type == perdure.LineWorkerAsks {
			asker.look()
		}
		ch.screen.Lock()
		ch.showEvent(&e, &text, t)
		ch.screen.Unlock()
	}
	asker.stop()
	ch.endLine(t)
	return ctx.Err()
}

// showEvent shows a text or the call of a tool.
func (ch *conversation) showEvent(e *api.Event, text *eventPrinter, t *ticker) {
	switch e.Type {
	case perdure.LineDelta:
		news, again := text.news(e)
		if again {
			news = "\n" + news
		}
		if news != "" {
			t.clear()
			ch.streamed.WriteString(news)
			ch.voice.say(ch.stdout, news)
			t.said(news)
		}
	case perdure.LineToolStarted:
		var tool struct {
			Tool string `json:"tool"`
			Name string `json:"name"`
		}
		if json.Unmarshal(e.Data, &tool) == nil {
			ch.endLine(t)
			fmt.Fprintf(ch.stderr, "· %s\n", visible(cmp.Or(tool.Tool, tool.Name)))
		}
	}
}

// watchdog returns options of a stream that may be silent: the run is then polled, and the person is told
// that it is working.
func (ch *conversation) watchdog(t *ticker) client.StreamOptions {
	told := false
	return client.StreamOptions{Silence: ch.silence, StillWorking: func(r *api.Run) {
		if told || ch.ticks { // the ticker tells more
			return
		}
		told = true
		ch.screen.Lock()
		defer ch.screen.Unlock()
		ch.endLine(t)
		fmt.Fprintf(ch.stderr, "[Still working: %s for %s.]\n", r.Status,
			formatDuration(time.Duration(r.ElapsedMS)*time.Millisecond))
	}}
}

// endLine ends a line of the answer that was begun.
func (ch *conversation) endLine(t *ticker) {
	t.clear()
	if s := ch.streamed.String(); s != "" && !strings.HasSuffix(s, "\n") {
		ch.streamed.WriteByte('\n')
		ch.voice.say(ch.stdout, "\n")
		t.said("\n")
	}
}

// showMessages shows the new messages of the thread: answers that were not streamed, and notices of the
// server. With all it also shows the messages of the person.
func (ch *conversation) showMessages(ctx context.Context, all bool) error {
	for {
		page, err := ch.c.Messages(ctx, ch.thread, ch.seq)
		if err != nil || len(page.Messages) == 0 {
			return err
		}
		for _, m := range page.Messages {
			var text string
			if json.Unmarshal(m.Content, &text) != nil {
				text = string(m.Content)
			}
			switch {
			case m.Role == perdure.RoleUser && all:
				fmt.Fprintf(ch.stderr, "> %s\n", indented(text))
			case !all && isQuestion(m.Metadata): // it was asked when it came
			case m.Role == perdure.RoleAssistant &&
				(all || !strings.Contains(ch.streamed.String(), strings.TrimSpace(text))):
				ch.voice.say(ch.stdout, text+"\n")
			case m.Role == perdure.RoleSystem:
				fmt.Fprintf(ch.stderr, "[%s]\n", indented(text))
			}
		}
		ch.seq = page.NextAfter
	}
}

// isQuestion tells whether a message is a question that the chat has shown when it was asked.
func isQuestion(metadata json.RawMessage) bool {
	var m map[string]any
	return json.Unmarshal(metadata, &m) == nil && m[api.QuestionMetadata] == true
}

// shownBefore is how many messages are shown of a conversation that somebody comes back to.
const shownBefore = 20

// catchUp shows the end of the conversation. If the agent is at work, and stays is set, it shows its
// answer.
func (ch *conversation) catchUp(ctx context.Context, stays bool) error {
	th, err := ch.c.Thread(ctx, ch.thread)
	if err != nil {
		return err
	}
	ch.seq = max(0, th.LastSeq-shownBefore)
	if err := ch.showMessages(ctx, true); err != nil || th.ActiveRun == "" || !stays {
		return err
	}
	var code exitError
	if err := ch.follow(ctx, th.ActiveRun, 0); err != nil && (!errors.As(err, &code) || int(code) == exitDeferred) {
		return err
	}
	return nil
}

// sayWhatGoesOn says that workers of an answered run go on.
func (ch *conversation) sayWhatGoesOn(ctx context.Context, id perdure.RunID) {
	a, err := ch.c.Activity(ctx, id)
	if err != nil {
		return
	}
	live := 0
	for i := range a.Children {
		if a.Children[i].State.Live() {
			live++
		}
	}
	if live > 0 {
		fmt.Fprintf(ch.stderr, "[%d in the background; what comes of it will be in the thread: perdure chat "+
			"--thread %s]\n", live, ch.thread)
	}
}

// speech returns a text of several lines that a terminal can show: with a dot for each character that
// has another effect.
func speech(s string) string {
	lines := strings.Split(strings.ReplaceAll(s, "\t", "    "), "\n")
	for i := range lines {
		lines[i] = visible(lines[i])
	}
	return strings.Join(lines, "\n")
}

// indented is speech with lines after the first indented, so that none of them looks like a line of this
// program.
func indented(s string) string { return strings.ReplaceAll(speech(s), "\n", "\n  ") }

// A voice writes what an agent says. On a terminal, every line of it is indented, also where the terminal
// would break it: what begins in the first column is the person's or this program's, and nothing that an
// agent writes looks like it.
type voice struct {
	// width is that of the terminal, or zero if there is none.
	width  int
	column int
}

// voiceIndent is how far the lines of an agent are indented.
const voiceIndent = 2

// widthOf returns the width of a terminal, or zero if the writer is none.
func widthOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col < 10 {
		return 80
	}
	return int(size.Col)
}

func (v *voice) say(w io.Writer, text string) {
	text = speech(text)
	if v.width == 0 {
		fmt.Fprint(w, text)
		return
	}
	var b strings.Builder
	for _, r := range text {
		if r == '\n' {
			b.WriteRune(r)
			v.column = 0
			continue
		}
		wide := 1
		if r >= 0x1100 { // some of these take two columns, and none takes more
			wide = 2
		}
		if v.column > 0 && v.column+wide > v.width {
			b.WriteByte('\n')
			v.column = 0
		}
		if v.column == 0 {
			b.WriteString(strings.Repeat(" ", voiceIndent))
			v.column = voiceIndent
		}
		b.WriteRune(r)
		v.column += wide
	}
	fmt.Fprint(w, b.String())
}
