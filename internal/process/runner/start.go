package runner

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/perdure/perdure/internal/process/adaptor"
	"github.com/perdure/perdure/internal/process/jobdir"
)

// prepare makes the folder and starts the command.
func (e *execution) prepare() *failure {
	if e.job.RunID == "" {
		if err := DecodeSpec(e.grant.Input, &e.spec); err != nil {
			return &failure{code: CodeSpec, err: err}
		}
		if e.spec.StdinBytes > 0 {
			return &failure{code: CodeSpec, err: errors.New("stdin_bytes is for perdure exec: a pool has no standard " +
				"input for its commands")}
		}
	}
	var err error
	if e.adaptor, err = adaptor.Load(e.spec.Engine, e.job.Engines); err != nil {
		return &failure{code: CodeEngine, err: err}
	}
	if e.spec.Session != "" {
		if e.spec.Command, err = e.adaptor.Continue(e.spec.Command, e.spec.Session); err != nil {
			return &failure{code: CodeSpec, err: err}
		}
	}
	e.facts.adaptor, e.viewChanged = e.adaptor, e.adaptor.Reads()
	// A run that ends before its first turn leaves the count of its session as it was.
	e.process = jobdir.Process{Engine: e.adaptor.Engine(), Status: jobdir.StatusRunning, SessionID: e.spec.Session,
		SessionTokens: e.spec.SessionTokens}
	env, f := e.environment()
	if f != nil {
		return f
	}
	if err := e.openFolder(); err != nil {
		return &failure{code: CodeWorkspace, err: err, retry: true}
	}
	if f := e.start(env); f != nil {
		e.closeSizes()
		e.lock.Close()
		return f
	}
	e.report(Report{Event: Started, RunID: e.grant.RunID})
	e.log.Info("command started", "run", e.grant.RunID, "epoch", e.grant.Epoch)
	return nil
}

// closeSizes removes the pipe of the terminal's sizes. Programs that read all files of the folder would
// wait for a writer.
func (e *execution) closeSizes() {
	if e.sizes != nil {
		_ = os.Remove(e.sizes.Name())
		e.sizes.Close()
	}
}

// DecodeSpec reads the input of a run.
func DecodeSpec(input []byte, s *Spec) error {
	dec := json.NewDecoder(strings.NewReader(string(input)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return fmt.Errorf("the input is no command: %w", err)
	}
	return s.Validate()
}

// environment returns the environment of the command.
func (e *execution) environment() ([]string, *failure) {
	env := append([]string(nil), e.job.Env...)
	set := func(name, value string) {
		for i, v := range env {
			if strings.HasPrefix(v, name+"=") {
				env[i] = name + "=" + value
				return
			}
		}
		env = append(env, name+"="+value)
	}
	for name, value := range e.spec.Env {
		set(name, value)
	}
	for name, ref := range e.spec.Secrets {
		value, ok := e.job.Secrets[ref]
		if !ok {
			return nil, &failure{code: CodeSecret, err: fmt.Errorf("the runner has no secret %.80q", ref)}
		}
		set(name, value)
	}
	set("PERDURE_RUN_ID", string(e.grant.RunID))
	return env, nil
}

// openFolder makes the job's folder, takes its lock, and opens runner.log.
func (e *execution) openFolder() (err error) {
	if e.dir, err = jobdir.Of(e.job.Workspace, string(e.grant.RunID)); err != nil {
		return err
	}
	if err := e.dir.Create(); err != nil {
		return err
	}
	if e.lock, err = e.dir.Lock(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			e.lock.Close()
		}
	}()
	if e.lockID, err = jobdir.LockID(e.lock); err != nil {
		return err
	}
	if err := e.dir.Clear(); err != nil {
		return err
	}
	path := filepath.Join(e.dir.Path, jobdir.LogFile)
	_ = os.Remove(path) // it may be a link that a command has left
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	e.log = slog.New(slog.NewTextHandler(&boundedWriter{f, maxLog}, nil))
	e.link.log = e.log
	return nil
}

// maxLog bounds runner.log.
const maxLog = 1 << 20

// A boundedWriter writes so many bytes and no more.
type boundedWriter struct {
	w    io.Writer
	left int
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return len(p), nil
	}
	return b.w.Write(p)
}

// start starts the command.
func (e *execution) start(env []string) *failure {
	dir := cmp.Or(e.job.Dir, e.spec.Dir, e.dir.Path)
	path, f := lookUp(e.spec.Command[0], dir, env)
	if f != nil {
		return f
	}
	attr := &os.ProcAttr{Dir: dir, Env: env}
	closeFiles, f := e.openFiles(attr)
	defer closeFiles()
	if f != nil {
		return f
	}
	attr.Files = append(attr.Files, e.lock)
	changed := func() { kick(e.kickBeat) }
	var err error
	if e.command, err = startCommand(path, e.spec.Command, attr, e.spec.PTY, changed); err != nil {
		return notStarted(err)
	}
	if t := e.terminal; t != nil {
		go t.copyTo(e.typescript, e.command.gone, e.noteWrite)
		if e.sizes != nil {
			go jobdir.ReadSizes(e.sizes, t.resize)
		}
	}
	return nil
}

// openFiles opens the files of the command: its standard input, output and error. The function that it
// returns closes this process's copies.
func (e *execution) openFiles(attr *os.ProcAttr) (closeFiles func(), _ *failure) {
	closeFiles = func() {
		for _, f := range attr.Files {
			if f != e.lock {
				f.Close()
			}
		}
	}
	files := make(map[string]*os.File)
	for _, stream := range streams {
		f, err := e.dir.OpenOutput(stream)
		if err != nil {
			return closeFiles, &failure{code: CodeWorkspace, err: err, retry: true}
		}
		files[stream] = f
	}
	var err error
	if e.output, err = openOutput(e.dir, e.job.MaxOutput); err != nil {
		return closeFiles, &failure{code: CodeWorkspace, err: err, retry: true}
	}
	if e.spec.PTY {
		files[jobdir.Stderr].Close() // it stays empty
		if e.terminal, err = openTerminal(e.job.Rows, e.job.Cols); err != nil {
			return closeFiles, &failure{code: CodeStart, err: err}
		}
		e.typescript = files[jobdir.Stdout]
		if e.sizes, err = e.dir.OpenTerminal(); err != nil {
			e.log.Warn("the terminal keeps its size", "error", err)
		}
		attr.Files = []*os.File{e.terminal.slave, e.terminal.slave, e.terminal.slave}
		return closeFiles, nil
	}
	var stdin *os.File
	if size := e.spec.StdinBytes; size > 0 {
		if stdin, err = e.dir.OpenStdin(size); err != nil {
			return closeFiles, &failure{code: CodeWorkspace, err: err}
		}
	} else if stdin, err = os.Open(os.DevNull); err != nil {
		return closeFiles, &failure{code: CodeStart, err: err}
	}
	attr.Files = []*os.File{stdin, files[jobdir.Stdout], files[jobdir.Stderr]}
	return closeFiles, nil
}

// notStarted returns the failure of a command that can't be executed, with the exit code of a shell.
func notStarted(err error) *failure {
	exit := 126
	if errors.Is(err, os.ErrNotExist) {
		exit = 127
	}
	return &failure{code: CodeStart, err: err, exit: exit}
}

// lookUp finds the program of a command, as a shell would with that environment in that folder.
func lookUp(name, dir string, env []string) (string, *failure) {
	if strings.Contains(name, "/") {
		return name, nil // relative to dir: the child starts there
	}
	path := ""
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value
		}
	}
	for _, folder := range filepath.SplitList(path) {
		if !filepath.IsAbs(folder) {
			folder = filepath.Join(dir, folder)
		}
		file := filepath.Join(folder, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", notStarted(fmt.Errorf("%s: %w in PATH", name, os.ErrNotExist))
}
