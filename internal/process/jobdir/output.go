package jobdir

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/wire/redact"
)

// Streams of output. A command on a terminal has only the first.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Event types of output, and the name of the view that has the offsets.
const (
	// EventOutput has bytes of a stream, or names the artifact that has them.
	EventOutput = "x:output"
	// EventDropped says which bytes of a stream were not kept.
	EventDropped = "x:output_dropped"
	// EventTruncated says that the command has truncated the file of a stream.
	EventTruncated = "x:output_truncated"
	// EventDiskFull says that the disk of the workspace is full.
	EventDiskFull = "x:disk_full"
	// EventExit has the exit code or the signal of the command.
	EventExit = "x:exit"

	// OutputView is the view with a [Logged]. Each output commit replaces it.
	OutputView = "output"
	// ProcessView is the view with a [Process].
	ProcessView = "process"
)

// Bounds of output in a run's log.
const (
	// chunkMax bounds the bytes of one event, and eventMax those of its JSON. Larger data would be shown
	// as a reference. As base64 a chunk is a third larger, and as text up to six times.
	chunkMax = 44 << 10
	eventMax = 60 << 10
	// commitMax bounds the bytes of output in one commit.
	commitMax = 512 << 10
	// inlineMax bounds the bytes of both streams that are in events. Later bytes go to
	// artifacts, so that following a run never means reading hundreds of megabytes of log.
	inlineMax = 4 << 20
	// SegmentMax bounds the bytes of one artifact. A run has at most 100 artifacts.
	SegmentMax = 16 << 20
)

// Offsets count the bytes of each stream.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// Logged says how much of the output of an execution is in the log. The output of the next execution
// begins at zero again.
type Logged struct {
	Epoch int64 `json:"epoch"`
	Offsets
}

// LoggedOutput reads the view OutputView: the offsets up to which the log has the output of an
// execution. A view that is missing, or of another execution, means none. An execution that outlived
// its store has a former epoch.
func LoggedOutput(view []byte, epoch int64, former ...int64) Offsets {
	var l Logged
	if err := json.Unmarshal(view, &l); err != nil || l.Epoch != epoch && !slices.Contains(former, l.Epoch) {
		return Offsets{}
	}
	return l.Offsets
}

// MoveOutput makes the commit that says of output in the log that it is of an execution's new epoch.
func MoveOutput(run perdure.RunID, epoch int64, at Offsets) (perdure.Commit, error) {
	view, err := perdure.Marshal(Logged{Epoch: epoch, Offsets: at})
	return perdure.Commit{ID: fmt.Sprintf("output-moved-%d", epoch), RunID: run, Epoch: epoch,
		Views: []perdure.View{{Name: OutputView, Value: view}}}, err
}

// Of returns the count of a stream.
func (o *Offsets) Of(stream string) *int64 {
	if stream == Stderr {
		return &o.Stderr
	}
	return &o.Stdout
}

// An Output is the data of an EventOutput. It has Text if the bytes are text, or Base64; with an
// Artifact it has neither.
type Output struct {
	Stream   string  `json:"stream"`
	Offset   int64   `json:"offset"`
	Size     int64   `json:"size"`
	Text     *string `json:"text,omitempty"`
	Base64   Binary  `json:"base64,omitempty"`
	Artifact string  `json:"artifact,omitempty"`
}

// Bytes returns the bytes of an event that has them.
func (o *Output) Bytes() []byte {
	if o.Text != nil {
		return []byte(*o.Text)
	}
	return o.Base64
}

// Binary is output that is no text. The server takes secrets out of its base64, which is then none any
// more: what stands before the first one and behind the last one is read all the same.
type Binary []byte

// UnmarshalJSON reads base64, also with redacted parts.
func (b *Binary) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	decoded, err := base64.StdEncoding.DecodeString(s)
	head, rest, redacted := strings.Cut(s, redact.Mark)
	if err == nil || !redacted {
		*b = decoded
		return err
	}
	// Base64 has groups of four characters. The head has whole ones from its beginning, and the tail
	// from its end.
	tail := rest
	if i := strings.LastIndex(rest, redact.Mark); i >= 0 {
		tail = rest[i+len(redact.Mark):]
	}
	before, err := base64.StdEncoding.DecodeString(head[:len(head)/4*4])
	if err != nil {
		return err
	}
	after, err := base64.StdEncoding.DecodeString(tail[len(tail)%4:])
	if err != nil {
		return err
	}
	*b = slices.Concat(before, []byte(redact.Mark), after)
	return nil
}

// Dropped is the data of an EventDropped.
type Dropped struct {
	Stream string `json:"stream"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
	Reason string `json:"reason"`
}

// A Notice is the data of an EventTruncated or an EventDiskFull.
type Notice struct {
	// Stream is the one whose file was truncated, and Offset is from where on its output is new.
	Stream  string `json:"stream,omitempty"`
	Offset  int64  `json:"offset,omitempty"`
	Message string `json:"message"`
}

// A Process is the view of a run that is a process.
type Process struct {
	Engine    string `json:"engine"`
	SessionID string `json:"session_id,omitempty"`
	Status    string `json:"status"`
	// ExitCode is that of a shell: 128 and the signal's number, if a signal ended the command. It is
	// nil while the command runs.
	ExitCode *int   `json:"exit_code,omitempty"`
	Signal   string `json:"signal,omitempty"`
	// Text is the last that the agent said, if its engine tells.
	Text string `json:"text,omitempty"`
	// Tail is the end of the output, if the engine tells no text.
	Tail         string  `json:"output_tail,omitempty"`
	InputTokens  int64   `json:"input_tokens,omitempty"`
	OutputTokens int64   `json:"output_tokens,omitempty"`
	CostUSD      float64 `json:"cost_usd,omitempty"`
	// SessionTokens is what the session has used in all, also before this run, if its engine tells that.
	SessionTokens Tokens `json:"session_tokens,omitzero"`
	// DiskFull tells that the disk of the output was full at some time, so that some may be missing.
	DiskFull bool `json:"disk_full,omitempty"`
	// Dropped counts bytes of output that were not kept.
	Dropped Offsets `json:"dropped,omitzero"`
}

// Tokens count what a session of an agent has used.
type Tokens struct {
	Input  int64 `json:"input,omitempty"`
	Output int64 `json:"output,omitempty"`
}

// Since returns what was used after an earlier count. An engine that has begun to count anew has less
// than before.
func (t Tokens) Since(before Tokens) Tokens {
	if t.Input < before.Input || t.Output < before.Output {
		return t
	}
	return Tokens{Input: t.Input - before.Input, Output: t.Output - before.Output}
}

// Used returns the count of the session at the end of this run, for a run that continues it. A view of
// an earlier release has it as the tokens of its run.
func (p *Process) Used() Tokens {
	if p.SessionTokens != (Tokens{}) {
		return p.SessionTokens
	}
	return Tokens{Input: p.InputTokens, Output: p.OutputTokens}
}

// OpenOutput creates the file of a stream for writing.
func (d Dir) OpenOutput(stream string) (*os.File, error) {
	return os.OpenFile(d.file(stream+".log"), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
}

// OpenWritten opens the file of a stream for reading.
func (d Dir) OpenWritten(stream string) (*os.File, error) { return d.openPlain(stream + ".log") }

// maxLast is how many bytes are compared to see that a file was truncated and written to again.
const maxLast = 64

// LastBytes returns the bytes before a position of a file. Compared with those of a later look they tell
// that the file was truncated and has grown again.
func LastBytes(f io.ReaderAt, at int64) []byte {
	b := make([]byte, min(at, maxLast))
	n, _ := f.ReadAt(b, at-int64(len(b)))
	return b[:n]
}

// Clear removes output and result of an earlier execution. The caller holds the lock.
func (d Dir) Clear() error {
	for _, name := range []string{Stdout + ".log", Stderr + ".log", ResultFile, TerminalFile} {
		if err := os.RemoveAll(d.file(name)); err != nil {
			return err
		}
	}
	return nil
}

// ReadOutput reads bytes of a stream at an offset.
func (d Dir) ReadOutput(stream string, b []byte, offset int64) (int, error) {
	f, err := d.openPlain(stream + ".log")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, io.EOF
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.ReadAt(b, offset)
}

// Sizes returns how many bytes the output files have. A file that is not there has none.
func (d Dir) Sizes() (have Offsets, err error) {
	for _, stream := range []string{Stdout, Stderr} {
		f, err := d.openPlain(stream + ".log")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return have, err
		}
		info, err := f.Stat()
		f.Close()
		if err != nil {
			return have, err
		}
		*have.Of(stream) = info.Size()
	}
	return have, nil
}

// A Step is the next part of the output that goes to the log: a commit, and the artifact that has
// to be stored before it, if there is one.
type Step struct {
	Commit perdure.Commit
	// To is what the log has after the commit.
	To Offsets
	// Artifact names bytes that are stored before the commit. It is empty if the commit has the bytes.
	Artifact string
	Stream   string
	Offset   int64
	Size     int64
}

// NextOutput makes the next step of copying the output to the log, or returns false if there is
// nothing to copy. from is what the log has, and have is what the files have. ended tells that
// nothing will be added.
//
// The id of the commit follows from the epoch and from. Two senders that make different commits from
// the same offsets get one of them accepted; the other reads the offsets again and goes on.
//
// Output that a runner has given back to the disk is a hole in its file. It is told as dropped.
func (d Dir) NextOutput(epoch int64, from, have Offsets, ended bool) (Step, bool, error) {
	if s, more, err := d.lostOutput(epoch, from, have); more || err != nil {
		return s, more, err
	}
	return Next{Run: perdure.RunID(d.ID), Read: d.ReadOutput, Epoch: epoch}.Output(from, have, ended)
}

// lostOutput makes the step that tells of a hole, or returns false if none is next.
func (d Dir) lostOutput(epoch int64, from, have Offsets) (Step, bool, error) {
	for _, stream := range []string{Stdout, Stderr} {
		at := *from.Of(stream)
		data, err := d.nextData(stream, at)
		if err != nil {
			return Step{}, false, err
		}
		if lost := min(data, *have.Of(stream)) - at; lost > 0 {
			s, err := DropOutput(perdure.RunID(d.ID), epoch, from, stream, lost, "the server was away for too long")
			return s, err == nil, err
		}
	}
	return Step{}, false, nil
}

// LastOutput is NextOutput for a run that has ended. It takes no artifacts any more, so that all bytes are
// in events.
func (d Dir) LastOutput(epoch int64, from, have Offsets) (Step, bool, error) {
	if s, more, err := d.lostOutput(epoch, from, have); more || err != nil {
		return s, more, err
	}
	return Next{Run: perdure.RunID(d.ID), Read: d.ReadOutput, Epoch: epoch, Inline: true}.Output(from, have, true)
}

// HoleAlign is what the ends of holes in output files are multiples of. Blocks of file systems are not
// larger.
const HoleAlign = 64 << 10

// nextData returns where the next bytes of a stream are, at an offset or after it. A hole at the end of
// the file reaches to the end.
func (d Dir) nextData(stream string, offset int64) (int64, error) {
	f, err := d.openPlain(stream + ".log")
	if errors.Is(err, fs.ErrNotExist) {
		return offset, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	at, err := f.Seek(offset, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO): // nothing but a hole, or beyond the end
		info, err := f.Stat()
		if err != nil {
			return 0, err
		}
		return max(offset, info.Size()), nil
	case err != nil:
		return offset, nil // the file system has no holes
	}
	return at, nil
}

// A Source reads bytes of a stream at an offset.
type Source func(stream string, b []byte, offset int64) (int, error)

// A Next makes steps of copying output.
type Next struct {
	Run   perdure.RunID
	Epoch int64
	Read  Source
	// Hide is left out of what is copied. Its length is counted as it is in the file. Nil hides nothing.
	Hide *redact.Set
	// Inline puts all bytes into events, and none into artifacts.
	Inline bool
}

// Output is [Dir.NextOutput] for a runner, which reads the files that it has open. They outlive the folder.
func (x Next) Output(from, have Offsets, ended bool) (Step, bool, error) {
	s := newStep(x.Run, x.Epoch, from)
	var outputs []Output
	if from.Stdout+from.Stderr >= inlineMax && !x.Inline {
		stream := Stdout
		if have.Stdout == from.Stdout {
			stream = Stderr
		}
		s.Stream, s.Offset = stream, *from.Of(stream)
		end, err := x.border(stream, s.Offset, min(*have.Of(stream), s.Offset+SegmentMax), *have.Of(stream), ended)
		if s.Size = end - s.Offset; s.Size <= 0 || err != nil {
			return s, false, err
		}
		s.Artifact = fmt.Sprintf("%s-%d-%012d", stream, x.Epoch, s.Offset)
		*s.To.Of(stream) += s.Size
		outputs = []Output{{Stream: stream, Offset: s.Offset, Size: s.Size, Artifact: s.Artifact}}
	} else {
		room := int64(commitMax)
		for _, stream := range []string{Stdout, Stderr} {
			got, err := x.inline(stream, *from.Of(stream), *have.Of(stream), room, ended)
			if err != nil {
				return s, false, err
			}
			for i := range got {
				*s.To.Of(stream) += got[i].Size
				room -= got[i].Size
			}
			outputs = append(outputs, got...)
		}
	}
	if len(outputs) == 0 {
		return s, false, nil
	}
	for i := range outputs {
		if err := s.emit(EventOutput, &outputs[i]); err != nil {
			return s, false, err
		}
	}
	return s, true, s.logged(x.Epoch)
}

// DropOutput makes the step that says which bytes of a stream, after those in the log, are not kept.
func DropOutput(id perdure.RunID, epoch int64, from Offsets, stream string, size int64, reason string) (Step, error) {
	s := newStep(id, epoch, from)
	s.Stream, s.Offset, s.Size = stream, *from.Of(stream), size
	*s.To.Of(stream) += size
	if err := s.emit(EventDropped, Dropped{Stream: stream, Offset: s.Offset, Size: size, Reason: reason}); err != nil {
		return s, err
	}
	return s, s.logged(epoch)
}

// newStep returns a step without events.
func newStep(id perdure.RunID, epoch int64, from Offsets) Step {
	return Step{To: from, Commit: perdure.Commit{
		ID: fmt.Sprintf("output-%d-%d-%d", epoch, from.Stdout, from.Stderr), RunID: id, Epoch: epoch,
	}}
}

// emit adds an event.
func (s *Step) emit(typ perdure.LineType, data any) error {
	b, err := perdure.Marshal(data)
	s.Commit.Events = append(s.Commit.Events, perdure.Emitted{Type: typ, Data: b})
	return err
}

// logged adds the view with the offsets.
func (s *Step) logged(epoch int64) error {
	view, err := perdure.Marshal(Logged{epoch, s.To})
	s.Commit.Views = []perdure.View{{Name: OutputView, Value: view}}
	return err
}

// inline cuts bytes of a stream into events.
func (x Next) inline(stream string, from, to, room int64, ended bool) ([]Output, error) {
	var out []Output
	for from < to && room > 0 {
		b := make([]byte, min(chunkMax, to-from, room))
		n, err := x.Read(stream, b, from)
		if n == 0 && err != nil {
			return nil, err
		}
		b = b[:n]
		if !ended || from+int64(n) < to {
			b = WholeRunes(b)
		}
		if len(b) == 0 {
			break
		}
		o, err := x.chunk(stream, from, b, to, ended)
		if err != nil {
			return nil, err
		}
		if o.Size == 0 {
			break
		}
		out = append(out, o)
		from += o.Size
		room -= o.Size
	}
	return out, nil
}

// chunk is [chunk] without what is hidden. The event may have fewer bytes than are given: what is hidden is
// not cut in two.
func (x Next) chunk(stream string, from int64, b []byte, have int64, ended bool) (Output, error) {
	if x.Hide == nil {
		return chunk(stream, from, b), nil
	}
	text, at, err := x.around(stream, from, b, have)
	if err != nil {
		return Output{}, err
	}
	for {
		shown, end := x.Hide.Part(text, at, at+len(b), !ended)
		o := Chunk(stream, from, []byte(shown))
		if o.Size = int64(end - at); o.Text == nil || textSize(*o.Text) <= eventMax {
			return o, nil
		}
		b = WholeRunes(b[:len(b)/2])
	}
}

// around returns bytes of a stream with those before and behind them, as far as something that is hidden
// may reach, and where they begin in it.
func (x Next) around(stream string, from int64, b []byte, have int64) (text string, at int, err error) {
	reach := int64(x.Hide.Longest())
	before := make([]byte, min(reach, from))
	if n, _ := x.Read(stream, before, from-int64(len(before))); n < len(before) {
		before = nil // they are no longer there
	}
	end := from + int64(len(b))
	behind := make([]byte, min(reach, have-end))
	n, err := x.Read(stream, behind, end)
	if n == 0 && len(behind) > 0 && err != nil {
		return "", 0, err
	}
	return string(before) + string(b) + string(behind[:n]), len(before), nil
}

// border returns where an artifact ends, so that nothing that is hidden is cut in two.
func (x Next) border(stream string, from, to, have int64, ended bool) (int64, error) {
	if x.Hide == nil || to <= from {
		return to, nil
	}
	b := make([]byte, min(int64(x.Hide.Longest()), to-from))
	if n, err := x.Read(stream, b, to-int64(len(b))); n < len(b) {
		return from, err
	}
	text, at, err := x.around(stream, to-int64(len(b)), b, have)
	if err != nil {
		return from, err
	}
	_, end := x.Hide.Part(text, at, at+len(b), !ended)
	return to - int64(at+len(b)-end), nil
}

// chunk makes the data of an output event of the first bytes, as many as an event takes.
func chunk(stream string, offset int64, b []byte) Output {
	for {
		o := Chunk(stream, offset, b)
		if o.Text == nil || textSize(*o.Text) <= eventMax {
			return o
		}
		b = WholeRunes(b[:len(b)/2])
	}
}

// textSize returns the size of a text as JSON, at most.
func textSize(text string) (n int) {
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			n += 2
		case c < 0x20:
			n += 6
		case c == 0xe2: // U+2028 and U+2029 are escaped
			n += 4
		default:
			n++
		}
	}
	return n
}

// Chunk makes the data of an output event: text where the bytes are text, else base64. A NUL is no
// text, because stores differ on it.
func Chunk(stream string, offset int64, b []byte) Output {
	o := Output{Stream: stream, Offset: offset, Size: int64(len(b))}
	if text := string(b); utf8.ValidString(text) && !strings.Contains(text, "\x00") {
		o.Text = &text
	} else {
		o.Base64 = b
	}
	return o
}

// WholeRunes leaves out the beginning of a character at the end of bytes. The rest of it is still to come.
func WholeRunes(b []byte) []byte {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			return b
		}
	}
	return b
}
